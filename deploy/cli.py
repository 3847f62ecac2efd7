"""The command line `headrace`: finds the command, turns errors into one line and an exit code.

Loads a command's module only when that command is asked for: `--help` does not wait for torch.
Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace.deploy.console import fail

DONE, FAILED, WRONG_USAGE = 0, 1, 2

COMMANDS = {
    "up": ("up", "All on this machine: Kafka, Redis, topics, workers, web page"),
    "worker": ("worker", "One worker process: one model on one device"),
    "gateway": ("gateway", "HTTP and WebSocket bridge with the chat page"),
    "topics": ("topics", "Create the topics, or check them"),
    "send": ("send", "Ask, and print the answer as it comes"),
    "tail": ("tail", "Follow response events"),
    "cancel": ("cancel", "End a generation early"),
    "models": ("models", "List and fetch models"),
    "sessions": ("sessions", "Forget a conversation"),
}
"""Name of each command → its module in `headrace.deploy.commands`, and what it does."""

_EXAMPLES = """\b
Examples:
  headrace up
  headrace send "What is the capital of France?"
  headrace send "And of Italy?" --session s1
  headrace worker --kafka broker:9092 --redis redis://store:6379/0

Every setting is also read from the environment, as HEADRACE_KAFKA for --kafka; flags win.
"""

# click's UsageError, whichever copy of click this typer carries
_USAGE_ERRORS: tuple[type[Any], ...] = typer.BadParameter.__bases__


class LazyCommands(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command called `cmd_name`, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"headrace.deploy.commands.{COMMANDS[cmd_name][0]}")
        return typer.main.get_command(module.app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in `--help`, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyCommands,
    help="Serve language models as a durable Kafka stream.",
    epilog=_EXAMPLES,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def run(args: Sequence[str]) -> int:
    """Run one command; returns the exit code, with the reason on stderr where it is not 0."""
    try:
        code = typer.main.get_command(app).main(
            args=list(args), prog_name="headrace", standalone_mode=False
        )
    except _USAGE_ERRORS as problem:
        return _wrong_usage(problem)
    except (typer.Abort, KeyboardInterrupt):
        return FAILED
    except BrokenPipeError:
        return _reader_gone()
    except (
        Exception
    ) as problem:  # the boundary of the process: nothing above us could decide better
        return report(problem)
    if code == 130:  # typer's answer to Ctrl-C, which is no exit code of ours
        return FAILED
    return int(code or DONE)


def report(problem: BaseException) -> int:
    """Print the one line for `problem`; returns the exit code that goes with it."""
    from headrace.schemas.errors import HeadraceError, RequestError, SettingsError

    while isinstance(problem, BaseExceptionGroup) and len(problem.exceptions) == 1:
        problem = problem.exceptions[0]  # of a task group that one task ended
    logging.getLogger(__name__).debug("the command failed", exc_info=problem)
    if isinstance(problem, HeadraceError):
        fail(str(problem))
        return WRONG_USAGE if isinstance(problem, SettingsError | RequestError) else FAILED
    if isinstance(problem, OSError) or _is_expected(problem):
        fail(str(problem) or type(problem).__name__)
    else:
        fail(f"unexpected {type(problem).__name__}: {problem} (--log-level debug says where)")
    return FAILED


def _is_expected(problem: BaseException) -> bool:
    """Whether a library says that a service or a part is not there, in words meant for people."""
    from aiokafka.errors import KafkaError

    from headrace.deploy.processes import ServiceStartError

    return isinstance(problem, KafkaError | ServiceStartError)


def _wrong_usage(problem: Any) -> int:
    text = str(problem.format_message())
    if problem.ctx is not None and problem.ctx.get_help() == text:  # no command at all: the help
        print(text, file=sys.stderr)
        return WRONG_USAGE
    where = f"{problem.ctx.command_path} --help" if problem.ctx is not None else "headrace --help"
    fail(f"{text} (see `{where}`)".replace("\n", " "))
    return WRONG_USAGE


def _reader_gone() -> int:
    """The program that read our output has ended, as `head` does: stop without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def main() -> None:
    """Entry point of the `headrace` program."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
