"""`headrace up`: its flags, and what it says when all runs."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.consumers.auth import check_bind
from headrace.deploy.autoscale.policy import MAX_WORKERS, Policy, parse_bounds
from headrace.deploy.commands.options import (
    KAFKA,
    LOG,
    UP_FLAGS,
    examples,
    flag_name,
    with_settings,
)
from headrace.deploy.up import Stack, UpOptions, run_up
from headrace.schemas.settings import Settings

_ASK = 'headrace send "What is the capital of France?"'
_URL_PASSWORD = re.compile(r"://[^/@]*@")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace up",
        "headrace up --workers 2 --http-port 8000",
        "headrace up --autoscale 0..4 --autoscale-target 20",
        "HEADRACE_KAFKA=broker:9092 headrace up",
    )
)
@with_settings(*UP_FLAGS, errors_only=True)
def up(
    settings: Settings,
    workers: Annotated[
        int | None, typer.Option(min=1, max=MAX_WORKERS, help="Worker processes; default 1.")
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="MIN..MAX", help="As many workers as the backlog needs, in place of --workers."
        ),
    ] = None,
    autoscale_target: Annotated[
        float | None,
        typer.Option(min=0.1, max=86_400, help="Seconds of backlog aimed at; default 10."),
    ] = None,
    autoscale_window: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=86_400,
            help="Seconds that fewer workers must have been enough before one goes; default 60.",
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=10_000, help="Partitions of topics that are created.")
    ] = 12,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where Kafka's and Redis' data and the logs go; default in the cache, or a "
            "temporary folder if both addresses are given."
        ),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep nothing after the end.")
    ] = False,
) -> int:
    """Run everything on this machine: Kafka, Redis, topics, workers, gateway with the chat page.

    A Kafka or Redis that the settings name is used in place of an own one. Ctrl-C stops it all;
    conversations are kept for the next time.
    """
    check_bind(settings)
    policy = _policy(autoscale, autoscale_target, autoscale_window)
    if policy is not None and workers is not None:
        raise typer.BadParameter("--workers and --autoscale are one or the other")
    options = UpOptions(workers or 1, policy, partitions, data_dir, ephemeral)
    return run_up(settings, options, on_ready=show_ready)


def _policy(bounds: str | None, target_s: float | None, window_s: float | None) -> Policy | None:
    if bounds is None:
        if target_s is not None or window_s is not None:
            raise typer.BadParameter("--autoscale-target and -window need --autoscale MIN..MAX")
        return None
    try:
        policy = Policy(*parse_bounds(bounds))
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--autoscale") from problem
    if target_s is not None:
        policy = replace(policy, target_s=target_s)
    return policy if window_s is None else replace(policy, window_s=window_s)


def show_ready(stack: Stack) -> None:
    """Say where everything is: a box on a terminal, plain lines in a pipe."""
    lines = ready_lines(stack)
    if not sys.stdout.isatty():
        print("\n".join(["Headrace is ready", *lines, *stack.exports]), flush=True)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Panel(Text("\n".join(lines)), title="Headrace is ready", expand=False))
    for line in stack.exports:
        console.print(line, markup=False, soft_wrap=True)


def ready_lines(stack: Stack) -> list[str]:
    """Page, addresses, and what to type next."""
    settings = stack.settings
    host = f"[{settings.http_host}]" if ":" in settings.http_host else settings.http_host
    scheme = "http" if settings.tls_cert_file is None else "https"
    rows = {
        "chat page": f"{scheme}://{host}:{settings.http_port}/",
        **({} if settings.grpc_port is None else {"gRPC": f"{host}:{settings.grpc_port}"}),
        "Kafka": settings.kafka,
        "Redis": _URL_PASSWORD.sub("://***@", settings.redis),
        "workers": _workers_text(stack),
        **({"metrics": f"all in {stack.scrape_targets}"} if stack.scrape_targets else {}),
        "logs": str(stack.log_dir),
        "ask": " ".join([_ASK, *_flags_to_reach(settings)]),
        "stop": "Ctrl-C",
    }
    return [f"{name:10} {value}" for name, value in rows.items()]


def _workers_text(stack: Stack) -> str:
    pids = f"pid {', '.join(map(str, stack.worker_pids))}" if stack.worker_pids else "none yet"
    if stack.autoscale is None:
        return pids
    return f"{stack.autoscale.min_workers} to {stack.autoscale.max_workers}, by lag; {pids}"


def _flags_to_reach(settings: Settings) -> list[str]:
    """What a client in another terminal, whose environment may be bare, must be told."""
    words: list[str] = []
    for name in (name for name in KAFKA if name not in LOG):
        value = getattr(settings, name)
        if value != Settings.model_fields[name].default:
            words += [flag_name(name), shlex.quote(str(value))]
    return words
