"""Dead letters read from their headers, the retry made of one, the id that a header gives."""

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.schemas.dead_letter import DeadLetter, DlqPlace, NotRetriableError
from headrace.schemas.headers import Headers
from headrace.schemas.request import MAX_ID_CHARS, Record, decode_request

TOPIC = "headrace.requests"
ABOUT = {
    "reason": "internal_error",
    "error": "it broke",
    "topic": TOPIC,
    "partition": "3",
    "offset": "14",
    "timestamp": "1700000000000",
    "attempts": "1",
}


def letter(
    value: bytes | None = b'{"request_id":"r1","prompt":"x"}',
    *,
    key: bytes | None = b"s1",
    own: Headers = (),
    at: int = 9,
    **about: str | None,
) -> DeadLetter:
    """A dead letter at 2-`at`; a header whose text is None is left out."""
    said = {name: text for name, text in (ABOUT | about).items() if text is not None}
    headers = [*own, *((f"headrace-dlq-{name}", text.encode()) for name, text in said.items())]
    return DeadLetter(Record("headrace.dlq", 2, at, 1_800_000_000_000, key, value, headers))


def died_again(first: DeadLetter, *, at: int) -> DeadLetter:
    """The letter that a worker writes of the retry of `first`, as streams/publisher.py does."""
    retry = first.retry(TOPIC)
    kept = tuple(item for item in retry.headers if not item[0].startswith("headrace-dlq-"))
    return letter(retry.value, key=retry.key, own=kept, at=at)


def decode(body: Any, headers: Headers) -> Any:
    value = json.dumps(body).encode()
    return decode_request(Record(TOPIC, 3, 14, 0, b"s1", value, headers))


def test_a_retry_is_the_original_under_an_id_made_of_the_letters_place() -> None:
    """Bytes, key and headers as they came, null values among them; no dlq header is left."""
    own = (("traceparent", b"00-1"), ("odd", None), ("odd", b"\xff"))
    found = letter(own=own).retry(TOPIC)
    assert (found.old_id, found.request_id) == ("r1", "r1.retry-2-9")
    assert (found.key, found.value) == (b"s1", b'{"request_id":"r1","prompt":"x"}')
    assert found.headers == [*own, ("headrace-request-id", b"r1.retry-2-9")]


def test_the_worker_answers_a_retry_under_the_new_id() -> None:
    """What the headers say is what `decode_request` reads; the session stays."""
    found = letter().retry(TOPIC)
    decoded = decode_request(Record(TOPIC, 3, 99, 0, found.key, found.value, found.headers))
    assert (decoded.request_id, decoded.session_id) == ("r1.retry-2-9", "s1")
    assert not decoded.default_id


def test_three_rounds_do_not_grow_the_headers() -> None:
    """Each round's id names the last place only, and stands there once."""
    own = (("traceparent", b"00-1"),)
    second = died_again(letter(own=own), at=10)
    third = died_again(second, at=11)
    assert [x.request_id for x in (second, third)] == ["r1.retry-2-9", "r1.retry-2-10"]
    assert third.own_headers == (*own, ("headrace-request-id", b"r1.retry-2-10"))
    found = third.retry(TOPIC)
    assert found.headers == [*own, ("headrace-request-id", b"r1.retry-2-11")]
    assert (third.attempts, third.reason) == (1, "internal_error")


def test_a_clients_own_id_that_looks_like_a_retrys_is_kept_whole() -> None:
    """Only a mark that we made is replaced: else two requests could get one id."""
    found = letter(b'{"request_id":"a.retry-0-1","prompt":"x"}').retry(TOPIC)
    assert found.request_id == "a.retry-0-1.retry-2-9"


def test_a_long_id_is_cut_not_its_mark() -> None:
    """The limit of ids holds, and the mark tells letters apart whose ids begin alike."""
    body = json.dumps({"request_id": "é" * MAX_ID_CHARS, "prompt": "x"}).encode()
    found = letter(body).retry(TOPIC)
    assert len(found.request_id) == MAX_ID_CHARS
    assert found.request_id.endswith("é.retry-2-9")
    assert decode({"prompt": "x"}, found.headers).request_id == found.request_id


@pytest.mark.parametrize("value", [b"{", b"\xff\x00", b"", b"[1]", b'{"prompt":"x"}'])
def test_without_a_readable_id_the_original_place_is_it(value: bytes) -> None:
    """The id under which its `failed` event stands."""
    found = letter(value, key=None)
    assert found.request_id == f"{TOPIC}-3-14"
    assert found.retry(TOPIC).request_id == f"{TOPIC}-3-14.retry-2-9"


@pytest.mark.parametrize(("key", "value"), [(None, b""), (b"", None), (b"s1", None), (None, b"x")])
def test_null_and_empty_stay_what_they_are(key: bytes | None, value: bytes | None) -> None:
    """A null key or value is no empty one, nor the word; without a key its partition is kept."""
    found = letter(value, key=key).retry(TOPIC)
    assert (found.key, found.value) == (key, value)
    assert found.partition == (None if key else 3)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"topic": "headrace.control"}, "from topic 'headrace.control'"),
        ({"topic": "other.requests"}, "from topic 'other.requests'"),
        ({"topic": None}, "do not say which topic"),
        ({"partition": "-1"}, "do not say which topic"),
        ({"offset": "\u0661"}, "do not say which topic"),
    ],
)
def test_what_is_no_request_of_this_pipeline_is_refused(about: dict[str, Any], words: str) -> None:
    """With the place and what is wrong."""
    with pytest.raises(NotRetriableError, match=f"2-9 cannot be retried: .*{words}"):
        letter(**about).retry(TOPIC)


def test_a_record_without_key_and_value_is_refused() -> None:
    """It asks for nothing, and the client library does not write it."""
    with pytest.raises(NotRetriableError, match="neither key nor value"):
        letter(None, key=None).retry(TOPIC)


def test_a_foreign_record_in_the_topic_is_read_as_far_as_it_goes() -> None:
    """No dlq headers, or broken ones: None, never an error."""
    record = replace(letter(b"x").record, headers=(("headrace-dlq-attempts", None),))
    found = DeadLetter(record)
    assert (found.reason, found.attempts, found.original, found.request_id) == (None,) * 4
    named = DeadLetter(replace(record, value=b'{"request_id":"r9","prompt":"x"}'))
    assert named.request_id == "r9"


@pytest.mark.parametrize(
    ("text", "place"),
    [("3-17", DlqPlace(3, 17)), ("0-0", DlqPlace(0, 0))]
    + [(text, None) for text in ("", "3", "3-", "-3-1", "3-1 ", "٣-1", "3-1-1", "9" * 20 + "-1")],
)
def test_places_are_read_strictly(text: str, place: DlqPlace | None) -> None:
    """ASCII digits, bounded."""
    assert DlqPlace.parse(text) == place


HEADER = "headrace-request-id"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(HEADER, b"h")], "h"),
        ([(HEADER, "é".encode())], "é"),
        ([(HEADER, b"x" * MAX_ID_CHARS)], "x" * MAX_ID_CHARS),
        ([(HEADER, None)], "r"),
        ([(HEADER, b"")], "r"),
        ([(HEADER, b"\xff")], "r"),
        ([(HEADER, b"x" * (MAX_ID_CHARS + 1))], "r"),
        ([(HEADER, b"one"), (HEADER, b"two")], "two"),
        ([("Headrace-Request-Id", b"h")], "r"),
    ],
)
def test_a_usable_header_takes_the_place_of_the_bodys_id(headers: Headers, expected: str) -> None:
    """A null or broken value is ignored."""
    assert decode({"request_id": "r", "prompt": "x"}, headers).request_id == expected


@pytest.mark.parametrize("body", [{"prompt": "x"}, {"request_id": 7, "prompt": "x"}, [1]])
def test_the_header_names_requests_that_name_themselves_not_or_badly(body: Any) -> None:
    """So their `failed` event has it too."""
    found = decode(body, [(HEADER, b"h")])
    assert (found.request_id, found.default_id) == ("h", False)


def test_a_keyless_requests_session_is_the_id_that_the_header_gives() -> None:
    """Contract §2: the session is the key, else the request id."""
    record = Record(TOPIC, 3, 14, 0, None, b'{"prompt":"x"}', [(HEADER, b"h")])
    assert decode_request(record).session_id == "h"
