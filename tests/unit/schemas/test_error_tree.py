"""The errors and their form on the wire."""

import copy
import pickle

import pytest

from headrace.schemas.errors import (
    ErrorCode,
    HeadraceError,
    RateLimitedError,
    RequestError,
    SettingsError,
    UnavailableError,
    UndecodableError,
    told_error,
)

ERRORS = [
    RequestError(ErrorCode.EXPIRED, "late", "ttl_ms"),
    UndecodableError("no JSON", "r"),
    UndecodableError("no JSON"),
    UnavailableError("Redis", 2.5),
    SettingsError("bad"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_survives_pickle_and_copy(error: HeadraceError) -> None:
    """Regression: an UndecodableError could not be unpickled."""
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert (type(error), str(error), vars(error)) == (type(twin), str(twin), vars(twin))


def test_texts() -> None:
    """The field first, then what is wrong."""
    assert str(RequestError(ErrorCode.EXPIRED, "late", "ttl_ms")) == "ttl_ms: late"
    assert str(RequestError(ErrorCode.EXPIRED, "late")) == "late"
    assert str(UnavailableError("Redis", 2.5)) == "Redis gave no answer within 2.5 s"


def test_which_errors_may_be_tried_again() -> None:
    """Only where nobody answered."""
    assert [error.retriable for error in ERRORS] == [False, False, False, True, False]


def test_how_long_to_wait_is_handed_on() -> None:
    """From a gateway's error to the one that its client raises; nonsense is not."""
    limited = RateLimitedError("too much", 7, "tokens")
    assert told_error(limited.body()).retry_after_s == 7
    assert told_error(limited.body() | {"retry_after_s": "soon"}).retry_after_s is None
    assert "retry_after_s" not in RequestError(ErrorCode.EXPIRED, "late").body()


@pytest.mark.parametrize("code", ErrorCode)
def test_the_body_has_the_form_of_openai(code: ErrorCode) -> None:
    """Four fields, the type one of two."""
    body = RequestError(code, "m").body()
    assert (body["code"], body["message"], body["param"]) == (code.value, "m", None)
    assert body["type"] in ("invalid_request_error", "server_error")
