"""`headrace topics create` and `check`."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.console import note
from headrace.deploy.topics import DEFAULT_PARTITIONS, check_topics, ensure_topics
from headrace.schemas.settings import Settings

app = typer.Typer(
    help="Create the topics, or check them.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("headrace topics create --partitions 24", "headrace topics check"),
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(
    epilog=examples(
        "headrace topics create",
        "headrace topics create --partitions 48 --replication-factor 3 --kafka broker:9092",
    )
)
@with_settings(*KAFKA, "max_request_bytes", errors_only=True)
def create(
    settings: Settings,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help=f"Partitions of each topic that is created; default {DEFAULT_PARTITIONS}.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=100, help="Copies of each partition; default 1.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Create the topics that are missing; those that are there stay as they are."""
    done = asyncio.run(
        ensure_topics(settings, partitions=partitions, replication_factor=replication_factor)
    )
    if as_json:
        print(json.dumps(asdict(done)))
        return 0
    for name in done.created:
        print(f"created {name} with {partitions or DEFAULT_PARTITIONS} partitions")
    for name in done.left:
        print(f"left {name} as it is")
    for difference in done.differences:
        note(difference)
    return 0


@app.command(epilog=examples("headrace topics check", "headrace topics check --json"))
@with_settings(*KAFKA, errors_only=True)
def check(settings: Settings, as_json: Json = False) -> int:
    """Say what differs from what workers need; exit code 1 if anything does."""
    found = asyncio.run(check_topics(settings))
    if as_json:
        print(json.dumps({"differences": found}))
    else:
        print("\n".join(found) or "all topics are as they should be")
    return 1 if found else 0
