"""OpenAPI and AsyncAPI are valid, say what the code does, and the committed copies say the same.

`asyncapi-3.0.0.schema.json` is the specification's own JSON Schema (npm `@asyncapi/specs` 6.11.1,
`3.0.0-without-$id.json`, Apache-2.0) without its white space.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft7Validator
from openapi_spec_validator import validate

from headrace.consumers.admission import LIMIT_HEADERS
from headrace.consumers.errors_http import status_of
from headrace.consumers.openai_answers import FinishReason
from headrace.consumers.socket_frames import decode_frame
from headrace.consumers.submission import prepare
from headrace.deploy import documents
from headrace.schemas.errors import ErrorCode, RateLimitedError, RequestError
from headrace.schemas.event import FINISH_REASONS
from headrace.schemas.json_schema import file_text
from tests.documented_shapes import frame_problems, problems

FOLDER = Path(__file__).parents[3] / "docs" / "schemas"
DOCUMENTS = documents.documents()
OPENAPI, ASYNCAPI = DOCUMENTS["openapi"], DOCUMENTS["asyncapi"]
OFFICIAL = json.loads(
    (Path(__file__).parent / "asyncapi-3.0.0.schema.json").read_text(encoding="utf-8")
)


def test_the_committed_copies_are_current() -> None:
    """Else run `python -m headrace.deploy.documents docs/schemas`."""
    files = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.json")}
    assert {name: file_text(document) for name, document in DOCUMENTS.items()} == files


def test_writing_makes_the_folder(tmp_path: Path) -> None:
    """One file per document."""
    documents.write(tmp_path / "a" / "b")
    written = {file.name for file in (tmp_path / "a" / "b").iterdir()}
    assert {f"{name}.json" for name in DOCUMENTS} == written


def test_openapi_is_valid() -> None:
    """By the specification's own schema and rules."""
    validate(OPENAPI)


def test_asyncapi_is_valid() -> None:
    """By the specification's own schema, which does refuse what is wrong."""
    validator = Draft7Validator(OFFICIAL)
    assert [error.message for error in validator.iter_errors(ASYNCAPI)] == []
    assert not validator.is_valid(ASYNCAPI | {"channels": {"x": {"address": 1}}})
    assert not validator.is_valid(ASYNCAPI | {"operations": {"x": {"action": "stir"}}})


@pytest.mark.parametrize("document", [OPENAPI, ASYNCAPI], ids=["openapi", "asyncapi"])
def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    """A schema validator looks at the form of a `$ref` only."""
    for pointer in references(document):
        place: Any = document
        for name in pointer.removeprefix("#/").split("/"):
            place = place[name]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_how_the_limits_stand_is_documented(path: str) -> None:
    """In the headers of answers and of refusals by a limit, all that the gateway sends."""
    responses = OPENAPI["paths"][path]["post"]["responses"]
    for status in ("200", "429"):
        assert set(LIMIT_HEADERS) <= set(responses[status]["headers"])
    assert "Retry-After" in responses["429"]["headers"]


@pytest.mark.parametrize("document", [OPENAPI, ASYNCAPI], ids=["openapi", "asyncapi"])
def test_how_long_to_wait_is_documented(document: dict[str, Any]) -> None:
    """In the error itself; only some have it."""
    error = document["components"]["schemas"]["ErrorBody"]
    told = RateLimitedError("too many", retry_after_s=20, limit="requests").body()
    assert set(told) == set(error["properties"])
    assert set(error["required"]) == set(told) - {"retry_after_s"}


@pytest.mark.parametrize("status", ["408", "413", "415"])
def test_refused_bodies_are_documented(status: str) -> None:
    """Every route that reads a body may refuse it before it is parsed."""
    for path, routes in OPENAPI["paths"].items():
        for operation in routes.values():
            if "requestBody" in operation:
                assert status in operation["responses"], path


def test_every_refusal_of_a_call_is_documented() -> None:
    """The statuses of all codes, those of refused bodies, and every finish reason."""
    answers = OPENAPI["paths"]["/v1/chat/completions"]["post"]["responses"]
    statuses = {status_of(RequestError(code, "")) for code in ErrorCode} | {408, 413, 415}
    assert {str(status) for status in statuses} == set(answers) - {"200"}
    assert set(FINISH_REASONS) == set(get_args(FinishReason))


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
ODD: list[Any] = [None, True, False, 0, 1, 2, -1, 1.5, "", "x", "x" * 513, [], {}, {"x": 1}]
CALLS = [CHAT | {name: value} for name in ("background", "n", "request_id") for value in ODD] + [
    CHAT | {"stream_options": value} for value in [*ODD, *({"include_usage": it} for it in ODD)]
]


@pytest.mark.parametrize("call", CALLS)
def test_the_document_allows_what_a_call_may_say(call: dict[str, Any]) -> None:
    """The gateway's own fields; those of a request have a test of their own."""
    try:
        prepare(call, tenant="default")
    except RequestError:
        assert problems(OPENAPI, "/components/schemas/ChatCall", call)
    else:
        assert not problems(OPENAPI, "/components/schemas/ChatCall", call)


FRAMES: list[dict[str, Any]] = [
    {"type": "ping"},
    {"type": "cancel", "request_id": "r"},
    {"type": "cancel", "request_id": "r", "session_id": None},
    {"type": "cancel"},
    {"type": "cancel", "request_id": ""},
    {"type": "subscribe"},
    {"type": "subscribe", "session_id": None},
    *(
        {"type": "subscribe", "session_id": "s", name: value}
        for name in ("request_id", "starting_after", "cursor")
        for value in ODD
    ),
    {"type": "subscribe", "request_id": "r", "starting_after": 1, "cursor": "c1.0.1"},
]


@pytest.mark.parametrize("frame", FRAMES)
def test_the_document_allows_what_a_frame_may_say(frame: dict[str, Any]) -> None:
    """Every field with many values, and what a subscription needs."""
    try:
        decode_frame(json.dumps(frame).encode())
    except RequestError:
        assert frame_problems(frame)
    else:
        assert not frame_problems(frame)
