"""`headrace dump`: requests and their answers as a file."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.commands.output import write_json
from headrace.deploy.commands.range_flags import From, Last, Offsets, Sessions, To, selection_of
from headrace.deploy.console import note
from headrace.deploy.replaying.recording import record
from headrace.schemas.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace dump yesterday.jsonl.zst --from 2d --to 1d",
        "headrace dump s1.jsonl --session s1",
        "headrace dump part.jsonl.zst --offsets 3:100-199 --offsets 4:0-",
    )
)
@with_settings(*KAFKA, errors_only=True)
def dump(
    settings: Settings,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to; one that ends in .zst is compressed.")
    ],
    offsets: Offsets = None,
    since: From = None,
    until: To = None,
    session: Sessions = None,
    last: Last = None,
    requests_only: Annotated[
        bool, typer.Option("--requests-only", help="Without answers and control records.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Write requests, and the answers to them, to a file: for `headrace replay`, or as a fixture.

    Without a range: everything that can be read now.
    """
    selection = selection_of(offsets, since, until, session, last)
    done = asyncio.run(
        record(settings, selection, file, with_answers=not requests_only, replace=force)
    )
    if as_json:
        write_json(
            {
                "file": str(file),
                "requests": done.num_requests,
                "responses": done.num_responses,
                "unfinished": None if requests_only else done.num_unfinished,
                "read_up_to": {str(number): end for number, end in sorted(done.ends.items())},
            }
        )
        return 0
    note(f"{file}: {done}")
    if done.num_unfinished:
        note(f"{done.num_unfinished} requests have no complete answer")
    return 0
