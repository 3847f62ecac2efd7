"""A gateway that does not know its place in the log takes nobody in."""

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from headrace.consumers.gateway import build_app
from headrace.consumers.response_log import ResponseLog
from headrace.schemas.settings import Settings
from tests.unit.consumers.doubles import RecordingSink
from tests.unit.consumers.running import running

pytestmark = pytest.mark.integration

CALL = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "hi"}]}


async def test_before_its_position_is_known_it_answers_503() -> None:
    """Every way in says try again, and says it before a socket opens; nothing is produced."""
    settings, sink = Settings(), RecordingSink()
    async with running(build_app(settings, ResponseLog(settings), sink), settings) as address:
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/readyz")).status_code == 503
            for refused in (
                await client.post("/v1/chat/completions", json=CALL),
                await client.post("/v1/chat/completions", json=CALL | {"stream": True}),
                await client.get("/v1/requests/r1/events"),
                await client.get("/v1/requests/r1/events?cursor=c1.0.0"),
            ):
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "overloaded"
                assert int(refused.headers["retry-after"]) > 0
        with pytest.raises(InvalidStatus) as denied:
            await connect(f"ws://{address}/v1/stream")
        assert denied.value.response.status_code == 503
    assert sink.submitted == []
