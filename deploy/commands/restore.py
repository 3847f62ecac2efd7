"""`headrace restore`: a dump back into topics."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.commands.output import write_json
from headrace.deploy.console import note
from headrace.deploy.replaying.restoring import restore as restore_dump
from headrace.schemas.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "headrace restore yesterday.jsonl.zst --topic-prefix copy",
        "headrace restore fixture.jsonl --json",
    )
)
@with_settings(*KAFKA, "max_request_bytes", errors_only=True)
def restore(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `headrace dump` has written.")],
    append: Annotated[
        bool, typer.Option("--append", help="Also into topics that hold records already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Write the records of a dump into topics that are there: same partitions, keys, values,
    headers and times.

    Requests among them are answered by workers on these topics. Nothing is written from a file that
    is damaged anywhere, nor into a topic that holds records, unless --append is given.
    """
    contents = asyncio.run(restore_dump(settings, file, append=append))
    counts = {f"{kind}s": contents.counts[kind] for kind in ("request", "response")}
    counts["control"] = contents.counts["control"]
    if as_json:
        write_json({"file": str(file), "topic_prefix": settings.topic_prefix, **counts})
    else:
        text = ", ".join(f"{count} {name}" for name, count in counts.items())
        note(f"restored into {settings.topic_prefix}: {text}")
    return 0
