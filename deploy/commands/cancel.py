"""`headrace cancel`."""

import asyncio
from typing import Annotated

import typer

from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.console import note
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=examples("headrace cancel req_0198c5 --session s1"))
@with_settings(*KAFKA, errors_only=True)
def cancel(
    settings: Settings,
    request_id: Annotated[str, typer.Argument(help="The id of the request.")],
    session: Annotated[str, typer.Option(help="The conversation that it belongs to.")],
    tenant: Annotated[str, typer.Option(help="Whose request it is.")] = DEFAULT_TENANT,
) -> int:
    """End a generation early; it need not have been read yet. No effect on one that is finished."""

    async def run() -> None:
        producer = RequestProducer(settings, source="headrace/cli")
        try:
            await producer.start()
            await producer.cancel(request_id, session_id=session, tenant=tenant)
        finally:
            await producer.stop()

    asyncio.run(run())
    note(f"asked to cancel {request_id} in session {session}")
    return 0
