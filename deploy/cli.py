"""The command line `headrace`: finds the command, turns errors into one line and an exit code.

Loads a command's module only when that command is asked for: `--help` does not wait for torch.
Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import atexit
import logging
import os
import select
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

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
    "bench": ("bench", "Put a load on the pipeline, and measure it"),
    "cancel": ("cancel", "End a generation early"),
    "models": ("models", "List and fetch models"),
    "sessions": ("sessions", "Forget a conversation"),
    "keys": ("keys", "Make API keys"),
    "dlq": ("dlq", "Look at dead letters, and ask them again"),
    "dump": ("dump", "Write requests and their answers to a file"),
    "restore": ("restore", "Write a dump back into topics"),
    "replay": ("replay", "Answer recorded requests again, and compare"),
    "shadow": ("shadow", "Answer live requests with another model too, and compare"),
    "lag": ("lag", "How far the workers are behind, in records, seconds and tokens"),
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
    except SystemExit as ended:  # typer's answer to a closed pipe
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return report(ended.__context__)
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
    if isinstance(problem, BrokenPipeError) and _reader_is_gone():
        return _end_quietly()
    logging.getLogger(__name__).debug("the command failed", exc_info=problem)
    if isinstance(problem, HeadraceError):
        fail(f"{problem}{_advice(problem)}")
        return WRONG_USAGE if isinstance(problem, SettingsError | RequestError) else FAILED
    if isinstance(problem, OSError) and problem.filename is not None:
        fail(_file_text(problem))
    elif isinstance(problem, OSError) or _is_expected(problem):
        fail(" ".join(str(problem).split()) or type(problem).__name__)
    else:
        fail(f"unexpected {type(problem).__name__}: {problem} (--log-level debug says where)")
    return FAILED


def _file_text(problem: OSError) -> str:
    """`day.jsonl: no such file`."""
    path = problem.filename.decode() if isinstance(problem.filename, bytes) else problem.filename
    if isinstance(problem, FileNotFoundError) and Path(path).absolute().parent.is_dir():
        return f"{path}: no such file"
    text = problem.strerror or type(problem).__name__
    return f"{path}: {text[:1].lower()}{text[1:]}"


def _is_expected(problem: BaseException) -> bool:
    """Whether a library or the engine says what is not there or not right, in words for people."""
    from aiokafka.errors import KafkaError

    if isinstance(problem, KafkaError) or _is_of_models(type(problem).__module__):
        return True
    raised_in = ""
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        raised_in = str(frame.f_globals.get("__name__"))
    return isinstance(problem, ValueError) and _is_of_models(raised_in)  # e.g. no such device


def _is_of_models(module: str) -> bool:
    """Told by the name: importing these would load torch."""
    return module.startswith("headrace.models.")


def _advice(problem: BaseException) -> str:
    """What to do about a Kafka or Redis that does not answer, unless the text says it."""
    from headrace.schemas.errors import UnavailableError

    if not isinstance(problem, UnavailableError) or "headrace topics create" in str(problem):
        return ""
    name = "redis" if "redis" in problem.what.lower() else "kafka"
    return f": is it running? (`headrace up` starts one; --{name} / HEADRACE_{name.upper()})"


def _wrong_usage(problem: Any) -> int:
    text = str(problem.format_message())
    if problem.ctx is not None and problem.ctx.get_help() == text:  # no command at all: the help
        print(text, file=sys.stderr)
        return WRONG_USAGE
    where = f"{problem.ctx.command_path} --help" if problem.ctx is not None else "headrace --help"
    fail(f"{text} (see `{where}`)".replace("\n", " "))
    return WRONG_USAGE


def _reader_is_gone() -> bool:
    """Whether it was our output's pipe that broke, and no connection of ours."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _end_quietly() -> int:
    """The program that read our output has all it wanted, as `head` does: stop without a word."""
    sys.stdout = sys.__stdout__ or sys.stdout  # typer has put another in its place
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def main() -> NoReturn:
    """Entry point of the `headrace` program."""
    code = run(sys.argv[1:])
    if "torch" in sys.modules:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """End without the interpreter's last steps, in which libraries that torch brings write some
    hundred lines about leaks of theirs.
    """
    atexit._run_exitfuncs()
    with suppress(OSError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
