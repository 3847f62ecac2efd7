"""What must hold at every moment of a schedule, whatever happens (docs/delivery.md).

Fed with each record, event and commit as it comes; the first thing that is broken ends a schedule.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import orjson

from headrace.schemas.reply import ReplyReader, Seen, event_text, is_last
from headrace.schemas.request import DecodedRequest, Record, decode_request, session_of_key
from headrace.streams.ledger import Place, Watermark
from tests.explorer.broker import TOPICS

if TYPE_CHECKING:
    from tests.explorer.world import World

VOLATILE = ("created", "timings")
"""Of an event that is published again, these may differ (contract §3)."""


class ViolationError(Exception):
    """The promise is broken. `kind` stays the same while a schedule is made smaller."""

    def __init__(self, kind: str, details: str) -> None:
        super().__init__(kind, details)
        self.kind, self.details = kind, details

    def __str__(self) -> str:
        return f"{self.kind}: {self.details}"


class Following:
    """A reader of one request: what it has, by the rule of `ReplyReader`."""

    def __init__(self) -> None:
        self.reader = ReplyReader()
        self.text = ""
        self.last: dict[str, Any] | None = None
        self.first: dict[str, Any] | None = None
        """The first event of the attempt that is followed."""

    def see(self, event: dict[str, Any]) -> Seen:
        seen = self.reader.see(event)
        if seen is Seen.RESTART or (seen is Seen.NEW and event["sequence_number"] == 0):
            self.text, self.first = "", event
        if seen in (Seen.NEW, Seen.RESTART):
            self.text += event_text(event)
            if is_last(event):
                self.last = event
        return seen


class Checks:
    """Of one world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.turns: dict[bytes, list[DecodedRequest | None]] = defaultdict(list)
        """By session, in the order of the log; None: a tombstone. Only first records of an id."""
        self.requests: dict[str, DecodedRequest] = {}
        self._by_place: dict[tuple[int, int], str | None] = {}
        """(partition, offset) to the id that it must have answered; None: it asks for nothing."""
        self.cancelled: set[str] = set()
        self.following: defaultdict[str, Following] = defaultdict(Following)
        self._contents: dict[tuple[str, int, int], bytes] = {}
        self._last_of_attempt: dict[tuple[str, int], int] = {}
        self._tokens: dict[Place, int] = {}

    def broken(self, details: str, kind: str = "broken") -> None:
        """Raises: ViolationError."""
        raise ViolationError(kind, details)

    # what clients send

    def on_request(self, record: Record) -> None:
        place = (record.partition, record.offset)
        session = (record.key or b"").decode()
        if record.value is None:
            self.turns[session.encode()].append(None)
            self._by_place[place] = None
            return
        decoded = decode_request(record)
        is_first = decoded.request_id not in self.requests
        self._by_place[place] = decoded.request_id if is_first else None
        if is_first:
            self.requests[decoded.request_id] = decoded
            self.turns[decoded.session_id.encode()].append(decoded)

    def on_cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)

    def session_of(self, request_id: str) -> bytes | None:
        decoded = self.requests.get(request_id)
        key = decoded.record.key if decoded is not None else None
        return key if session_of_key(key) else None

    # what workers do

    def on_event(self, partition: int, event: dict[str, Any]) -> None:
        """An event arrives in the log."""
        request_id, attempt, number = event["id"], event["attempt"], event["sequence_number"]
        decoded = self.requests.get(request_id)
        if decoded is None:
            raise ViolationError("unknown request", f"{event}")
        if partition != decoded.record.partition:
            raise ViolationError("wrong partition", f"{event} in {partition}")
        key = (request_id, attempt, number)
        content = _content(event)
        if self._contents.setdefault(key, content) != content:
            details = f"{key}:\n  {self._contents[key].decode()}\n  {content.decode()}"
            raise ViolationError("two contents", details)
        self._check_ends(event)
        if not self._is_early_end(event):
            self._check_order(decoded)
        if self.following[request_id].see(event) is Seen.GAP:
            expected = self.following[request_id].reader
            details = f"{request_id}: got {attempt}:{number} after {expected.__dict__}"
            raise ViolationError("gap", details)

    def _check_ends(self, event: dict[str, Any]) -> None:
        key, number = (event["id"], event["attempt"]), event["sequence_number"]
        end = self._last_of_attempt.get(key)
        if is_last(event):
            end = self._last_of_attempt.setdefault(key, number)
            if end != number:
                raise ViolationError("two last events", f"{key}: {end} and {number}")
        if end is not None and number > end:
            raise ViolationError("text after the last event", f"{key}: {number} after {end}")

    def _is_early_end(self, event: dict[str, Any]) -> bool:
        """A cancel or a refusal need not wait for the turns before it, as it shows no text."""
        return is_last(event) and event["sequence_number"] == 0 and not event_text(event)

    def _check_order(self, decoded: DecodedRequest) -> None:
        for turn in self.turns[decoded.session_id.encode()]:
            if turn is decoded:
                return
            if turn is not None and not self.is_answered(turn.request_id):
                details = f"{decoded.request_id} before the end of {turn.request_id}"
                raise ViolationError("session order", details)

    def is_answered(self, request_id: str) -> bool:
        """Whether a last event of it is in the log."""
        return any(key[0] == request_id for key in self._last_of_attempt)

    def on_commit(self, place: Place, watermark: Watermark) -> None:
        """The group accepts a commit (I-3)."""
        offset, before = watermark.offset, self._world.broker.committed(place)
        if offset < before:
            raise ViolationError("commit goes back", f"{place}: {offset} after {before}")
        newest = max(self._tokens.get(place, 0), watermark.token)
        if watermark.token < newest and not self._world.doubts.clock_stepped:
            raise ViolationError("token goes back", f"{place}: {watermark.token} after {newest}")
        self._tokens[place] = newest
        if offset > self._world.broker.end(place):
            raise ViolationError("commit behind the end", f"{place}: {offset}")
        if place.topic != TOPICS.requests:
            return
        for one in range(before, offset):
            request_id = self._by_place.get((place.partition, one))
            if request_id is not None and not self.is_answered(request_id):
                details = f"{offset} of {place} passes {request_id} at {one}"
                raise ViolationError("committed before its last event", details)

    @property
    def num_attempts(self) -> dict[str, int]:
        """By request, how many attempts are in the log."""
        attempts: defaultdict[str, set[int]] = defaultdict(set)
        for request_id, attempt, _ in self._contents:
            attempts[request_id].add(attempt)
        return {request_id: len(found) for request_id, found in attempts.items()}

    def attempts_of(self, request_id: str) -> set[int]:
        return {attempt for one, attempt, _ in self._contents if one == request_id}


def _content(event: dict[str, Any]) -> bytes:
    """What must be the same whenever an event is published again."""
    kept = {name: value for name, value in event.items() if name not in VOLATILE}
    if "usage" in kept:
        kept["usage"] = {k: v for k, v in kept["usage"].items() if k != "prompt_tokens_details"}
    return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
