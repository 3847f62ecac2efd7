"""A real gateway on a free port, for the tests that need a socket under it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

from headrace.consumers.gateway import build_app
from headrace.consumers.request_sink import RequestSink
from headrace.consumers.response_log import ResponseLog
from headrace.consumers.server import build_server
from headrace.deploy.processes import free_port
from headrace.schemas.settings import Settings


@asynccontextmanager
async def running(
    app: Starlette, settings: Settings, port: int | None = None, **options: Any
) -> AsyncIterator[str]:
    """Serve `app`; yields its `host:port`. `options` override those of the server."""
    port = port or free_port()
    server = build_server(app, settings, port=port, timeout_graceful_shutdown=1, **options)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        async with asyncio.timeout(10):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event
                await asyncio.sleep(0.01)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.should_exit = True


@asynccontextmanager
async def serving(
    settings: Settings, sink: RequestSink, port: int | None = None, **app_options: Any
) -> AsyncIterator[tuple[ResponseLog, str]]:
    """A gateway with a log of its own, as another process would be; yields both."""
    log = ResponseLog(settings)
    await log.start()
    try:
        async with running(build_app(settings, log, sink, **app_options), settings, port) as found:
            yield log, found
    finally:
        await log.stop()
