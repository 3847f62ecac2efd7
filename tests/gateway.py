"""A gateway on a real socket and a real log, with a scripted worker behind it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from headrace.consumers.gateway import build_app
from headrace.consumers.openapi import DocumentedApp
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings
from tests.unit.consumers.doubles import TOPIC_PARTITIONS, ResponseWriter, ScriptedSink
from tests.unit.consumers.running import running

WORDS = ("Paris ", "is ", "the ", "capital.")


@dataclass
class ScriptedGateway:
    """A running gateway: where it is, and what its doubles saw."""

    address: str
    settings: Settings
    app: DocumentedApp
    log: ResponseLog
    events: ResponseWriter
    sink: ScriptedSink

    @property
    def url(self) -> str:
        return f"http://{self.address}/v1"

    def client(self, **options: Any) -> AsyncOpenAI:
        """OpenAI's own client; it does not try again unless a test wants that."""
        given: dict[str, Any] = {
            "api_key": "none",
            "base_url": self.url,
            "max_retries": 0,
            "timeout": 10,
        }
        return AsyncOpenAI(**(given | options))


@asynccontextmanager
async def scripted_gateway(
    settings: Settings, *, words: Sequence[str] = WORDS, **app_options: Any
) -> AsyncIterator[ScriptedGateway]:
    """Serve until left; nothing is left behind."""
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    log = ResponseLog(settings)
    await log.start()
    try:
        async with ResponseWriter(settings) as events, ScriptedSink(events, words) as sink:
            app = build_app(settings, log, sink, **app_options)
            async with running(app, settings) as address:
                yield ScriptedGateway(address, settings, app, log, events, sink)
    finally:
        await log.stop()
