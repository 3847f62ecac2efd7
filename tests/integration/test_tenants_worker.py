"""Two tenants with the same names, where a real worker decides: conversations, ids, cancels, KV."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from headrace.consumers.gateway import build_app
from headrace.consumers.response_log import ResponseLog
from headrace.deploy.topics import ensure_topics
from headrace.producers.request_producer import RequestProducer
from tests.faults import settings_of
from tests.pipeline import WorkerProcess
from tests.unit.consumers.doubles import TOPIC_PARTITIONS
from tests.unit.consumers.running import running

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

TENANTS = ("acme", "other")
LONG_TEXT = "a word and another one, " * 20
"""Several blocks of KV state."""


@dataclass
class Tenants:
    """A client of each tenant."""

    acme: httpx.AsyncClient
    other: httpx.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenants(
    kafka_bootstrap: str,
    redis_url: str,
    tiny_model_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Tenants]:
    """NOTE: without the reader of `Pipeline`, for which a request id is one request."""
    folder = tmp_path_factory.mktemp("tenants")
    path = folder / "keys.json"
    path.write_text(json.dumps({f"key-{name}": name for name in TENANTS}))
    plain = settings_of(kafka_bootstrap, redis_url, tiny_model_dir, prefix=f"t{uuid4().hex}")
    settings = plain.model_copy(update={"api_keys_file": path})
    await ensure_topics(settings, partitions=TOPIC_PARTITIONS)
    log, requests = ResponseLog(settings), RequestProducer(settings)
    worker = WorkerProcess(settings, folder)
    try:
        await worker.ready()
        await requests.start()
        await log.start()
        async with running(build_app(settings, log, requests), settings) as address:
            acme, other = (_client(address, name) for name in TENANTS)
            async with acme, other:
                yield Tenants(acme, other)
    finally:
        await log.stop()
        await requests.stop()
        worker.kill()


def _client(address: str, tenant: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer key-{tenant}"}
    return httpx.AsyncClient(base_url=f"http://{address}/v1", headers=headers, timeout=60)


async def ask(http: httpx.AsyncClient, text: str, **fields: Any) -> dict[str, Any]:
    """The answer, or the error, to one message."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
    }
    answered = await http.post("/chat/completions", json=body | fields)
    found: dict[str, Any] = answered.json()
    return found


async def test_a_session_of_another_tenant_is_another_conversation(tenants: Tenants) -> None:
    """Neither goes on with what the other said, nor forgets it by a delete."""
    first = await ask(tenants.acme, "one", session_id="s1", context="append")
    theirs = await ask(tenants.other, "one", session_id="s1", context="append", turn=0)
    assert theirs["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    lost = await ask(tenants.other, "two", session_id="s1", context="append", turn=2)
    assert lost["error"]["code"] == "session_out_of_sync"
    assert (await tenants.other.delete("/sessions/s1")).status_code == 202
    fresh = await ask(tenants.other, "two", session_id="s1", context="append", turn=0)
    second = await ask(tenants.acme, "two", session_id="s1", context="append", turn=1)
    assert second["usage"]["prompt_tokens"] > fresh["usage"]["prompt_tokens"]


async def test_a_request_id_and_its_cancel_are_their_tenants_own(tenants: Tenants) -> None:
    """A cancel that came before its request is kept for its own tenant's request of that id."""
    names = {"request_id": "r1", "session_id": "s2"}
    answered = await tenants.other.post("/requests/r1/cancel", json={"session_id": "s2"})
    assert answered.status_code == 202
    mine = await ask(tenants.acme, "mine", **names)
    theirs = await ask(tenants.other, "a longer text of theirs", **names)
    assert mine["choices"][0]["finish_reason"] == "length"
    assert theirs["choices"][0]["finish_reason"] == "cancelled"
    again = await ask(tenants.acme, "other words", **names)
    assert again["choices"] == mine["choices"]


async def test_no_kv_state_of_another_tenant_is_used(tenants: Tenants) -> None:
    """A long prompt that is in the cache for one is computed for the other: its time tells
    nothing of what others asked.
    """
    cached = []
    for http in (tenants.acme, tenants.acme, tenants.other):
        found = await ask(http, LONG_TEXT)
        cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[1] > 0
    assert cached[2] == 0
