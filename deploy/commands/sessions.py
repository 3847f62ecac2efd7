"""`headrace sessions delete`."""

import asyncio
from typing import Annotated

import typer

from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.console import note
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.settings import Settings

app = typer.Typer(
    help="Forget a conversation.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("headrace sessions delete s1"),
)


@app.callback()
def _group() -> None:
    """Makes this a group, though it has one command as yet."""


@app.command(epilog=examples("headrace sessions delete s1"))
@with_settings(*KAFKA, errors_only=True)
def delete(
    settings: Settings,
    session: Annotated[str, typer.Argument(help="The conversation.")],
    tenant: Annotated[str, typer.Option(help="Whose it is.")] = DEFAULT_TENANT,
) -> int:
    """Forget a conversation and its KV state as soon as a worker reads this."""

    async def run() -> None:
        producer = RequestProducer(settings, source="headrace/cli")
        try:
            await producer.start()
            await producer.delete_session(session, tenant)
        finally:
            await producer.stop()

    asyncio.run(run())
    note(f"asked to delete session {session}")
    return 0
