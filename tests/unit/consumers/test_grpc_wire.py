"""gRPC messages to and from what the gateway speaks."""

from typing import Any

import orjson
import pytest

from headrace.consumers.grpc_wire import body_of, response_of
from headrace.consumers.log_event import LogEvent
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.request import validate_request
from tests.unit.consumers.doubles import completion, failure, writer


def log_event(value: bytes) -> LogEvent:
    return LogEvent(1, 2, "default", None, orjson.loads(value), ())


FULL: dict[str, Any] = {
    "request_id": "r1",
    "session_id": "s1",
    "messages": [
        {"role": "system", "content": ""},
        {"role": "user", "content": "hi"},
    ],
    "context": "append",
    "turn": 0,
    "truncation": "auto",
    "model": "m",
    "max_tokens": 5,
    "max_completion_tokens": 6,
    "temperature": 0.0,
    "top_p": 0.5,
    "min_p": 0.25,
    "top_k": -1,
    "seed": -(2**63),
    "stop": ["a", "b"],
    "stop_token_ids": [1, 2],
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "repetition_penalty": 1.5,
    "logit_bias": {"7": -100.0},
    "ignore_eos": False,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}},
    },
    "stream": False,
    "return_token_ids": True,
    "priority": -3,
    "ttl_ms": 9,
    "metadata": {"a": "b"},
    "background": True,
}


def test_every_field_arrives_as_it_was_said() -> None:
    """Also zeros and falses, which are values where the contract has another default."""
    said = FULL | {
        "messages": [
            pb.Message(role=pb.ROLE_SYSTEM),
            pb.Message(role=pb.ROLE_USER, content="hi"),
        ],
        "context": pb.CONTEXT_APPEND,
        "truncation": pb.TRUNCATION_AUTO,
        "logit_bias": {7: -100.0},
        "response_format": pb.ResponseFormat(
            type=pb.ResponseFormat.TYPE_JSON_SCHEMA,
            json_schema=pb.ResponseFormat.JsonSchema(
                name="n", strict=True, schema='{"type":"object"}'
            ),
        ),
    }
    body = body_of(pb.GenerateRequest(**said))
    assert body == FULL
    validate_request(body)


def test_what_is_not_said_is_absent() -> None:
    """So that the contract's defaults hold; an unspecified enum is not said."""
    assert body_of(pb.GenerateRequest()) == {}
    assert body_of(pb.GenerateRequest(context=pb.CONTEXT_UNSPECIFIED)) == {"context": None}


@pytest.mark.parametrize(
    "schema", ["{", "[]", '{"a":1,"a":2}', "[" * 40, '{"x":' * 30 + "{}" + "}" * 30]
)
def test_a_schema_that_no_worker_would_read_is_refused(schema: str) -> None:
    """Broken, doubled names, and too deep where it will stand."""
    format_ = pb.ResponseFormat(
        type=pb.ResponseFormat.TYPE_JSON_SCHEMA,
        json_schema=pb.ResponseFormat.JsonSchema(schema=schema),
    )
    with pytest.raises(RequestError) as refused:
        body_of(pb.GenerateRequest(response_format=format_))
    assert refused.value.param == "response_format.json_schema.schema"
    assert refused.value.code is ErrorCode.INVALID_VALUE


def test_events_keep_what_they_say() -> None:
    """Ids, text, places; a whole answer; an error."""
    build = writer("r1", "s1", attempt=3)
    first = response_of(
        log_event(build.chunk(0, "He", token_ids=[1, 2], prompt_token_ids=[3]).value)
    )
    assert (first.request_id, first.session_id, first.attempt, first.cursor) == (
        "r1",
        "s1",
        3,
        "c1.1.2",
    )
    assert (first.model, first.system_fingerprint, first.created) == (
        "test-model",
        "fp-test",
        1_796_000_000,
    )
    assert list(first.chunk.token_ids) == [1, 2]
    assert list(first.chunk.prompt_token_ids) == [3]
    assert first.chunk.role == pb.ROLE_ASSISTANT
    second = response_of(log_event(build.chunk(1, "y").value))
    assert not second.chunk.HasField("role")
    whole = response_of(log_event(build.whole("Hey", completion("length")).value))
    assert (whole.completed.content, whole.completed.finish_reason) == (
        "Hey",
        pb.FINISH_REASON_LENGTH,
    )
    lost = response_of(
        log_event(failure("r1", "s1", RequestError(ErrorCode.OUT_OF_MEMORY, "full")))
    )
    assert (lost.failed.error.code, lost.failed.error.HasField("param")) == ("out_of_memory", False)


def test_words_that_came_later_are_unspecified() -> None:
    """A newer worker's finish reason does not break the stream."""
    event = log_event(writer("r1", "s1").chunk(0, "x", completion=completion("moderated")).value)
    assert response_of(event).completed.finish_reason == pb.FINISH_REASON_UNSPECIFIED
