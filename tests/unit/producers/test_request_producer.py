"""What the request producer refuses before it talks to Kafka."""

from typing import Any

import pytest

from headrace.producers.request_producer import RequestProducer
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.settings import load_settings

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


async def refusal(body: dict[str, Any], *, session_id: str = "s1", **settings: Any) -> RequestError:
    """The error that `submit` raises; no broker is there, so it comes before the connection."""
    producer = RequestProducer(load_settings(**settings))
    with pytest.raises(RequestError) as caught:
        await producer.submit(body, session_id=session_id)
    return caught.value


async def test_a_request_that_breaks_the_contract_is_refused_with_its_field() -> None:
    """The same checks as in a worker, before anything is produced."""
    error = await refusal({**HELLO, "temperature": 3.0})
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, "temperature")


async def test_nan_is_refused_not_turned_into_null() -> None:
    """orjson would write NaN as null, which reads as absent (cases C4)."""
    error = await refusal({**HELLO, "temperature": float("nan")})
    assert error.param == "temperature"


async def test_another_session_in_the_body_is_refused() -> None:
    """The key orders a session's requests, so body and key must agree."""
    error = await refusal({**HELLO, "session_id": "s2"})
    assert error.code == ErrorCode.SESSION_KEY_MISMATCH


async def test_a_request_that_is_too_large_is_refused() -> None:
    """Before the client library or the broker would, and with the two numbers."""
    long = {"messages": [{"role": "user", "content": "x" * 2_000}]}
    error = await refusal(long, max_request_bytes=1_000)
    assert "at most 1000" in str(error)


async def test_trace_headers_count_in_the_size() -> None:
    """Somebody else's baggage must not make the broker refuse what we let through."""
    producer = RequestProducer(load_settings(max_request_bytes=1_000))
    with pytest.raises(RequestError):
        await producer.submit(HELLO, session_id="s1", trace=[("baggage", b"x" * 2_000)])


async def test_half_a_surrogate_pair_is_refused() -> None:
    """It has no UTF-8 form."""
    error = await refusal({"messages": [{"role": "user", "content": "\ud800"}]})
    assert error.code in (ErrorCode.INVALID_TEXT, ErrorCode.INVALID_VALUE)


@pytest.mark.parametrize("session_id", ["", "x" * 513])
async def test_a_session_id_that_is_no_identifier_is_refused(session_id: str) -> None:
    """The record's key is a session id: not empty, at most 512 characters."""
    await refusal(HELLO, session_id=session_id)


async def test_a_cancel_without_a_request_id_is_refused() -> None:
    """Control records pass the same decoder as in a worker."""
    producer = RequestProducer(load_settings())
    with pytest.raises(RequestError):
        await producer.cancel("", session_id="s1")


async def test_stop_without_start_does_nothing() -> None:
    """So that a clean-up need not know how far a start came."""
    await RequestProducer(load_settings()).stop()
