"""The errors that only the client raises; what a gateway refuses is a RequestError.

HeadraceError
├── RequestError
│   └── AnswerFailedError    the answer ended with `failed`
└── OutOfTouchError          nothing came for too long; holds the place to resume from
"""

from dataclasses import dataclass

from headrace.schemas.errors import HeadraceError, RequestError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader is: what `Client.resume` or `Client.subscribe` need to go on.

    Without a cursor no event has been read yet.
    """

    request_id: str | None
    session_id: str
    cursor: str | None


class AnswerFailedError(RequestError):
    """A worker could not answer; `code` says why."""

    def __init__(self, error: RequestError, request_id: str, session_id: str) -> None:
        super().__init__(error.code, error.message, error.param)
        self.args = (error, request_id, session_id)  # what pickle and copy call this class with
        self.request_id, self.session_id = request_id, session_id
        self.retry_after_s = error.retry_after_s


class OutOfTouchError(HeadraceError):
    """No event came for `waited_s`, through any gateway; the generation may still be running."""

    retriable = True

    def __init__(self, place: Place, waited_s: float, reason: str | None = None) -> None:
        super().__init__(place, waited_s, reason)
        self.place, self.waited_s, self.reason = place, waited_s, reason

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        name = self.place.request_id or self.place.session_id
        where = f"after {self.place.cursor}" if self.place.cursor else "from its start"
        return f"nothing came of {name} for {self.waited_s:g} s{why}; resume {where}"
