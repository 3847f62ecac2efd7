"""What must hold when a schedule is over: everything healed, and nothing left to do.

Every request answered once, with the text of an undisturbed run behind the turns before it; every
record committed; every conversation what its turns left.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from headrace.schemas.errors import RequestError
from headrace.schemas.request import DecodedRequest
from headrace.streams.generation import Start
from headrace.streams.journal_codec import unpack
from headrace.streams.preparation import conversation_after, prepare
from headrace.streams.session_store import SessionRecord
from tests.explorer.checks import Following, ViolationError
from tests.explorer.engine import FAILS_AT, MODEL, answer_ids, prompt_bytes
from tests.fakes import ByteStream

if TYPE_CHECKING:
    from tests.explorer.world import World

FAILURES_TO_GIVE_UP = 3
"""Workers that may end while they have a request before it is given up."""


class Verdict:
    """Of one world, at its end."""

    def __init__(self, world: "World") -> None:
        self._world, self._checks = world, world.checks
        self._is_strict = world.doubts.is_strict

    def check(self) -> None:
        """Raises: ViolationError."""
        for place in self._world.unfinished():
            raise ViolationError("stuck", f"{place} is never committed to its end")
        for request_id in self._checks.requests:
            self._check_reader(request_id)
        for session, turns in self._checks.turns.items():
            self._check_session(session, turns)

    def _check_reader(self, request_id: str) -> None:
        following = self._checks.following[request_id]
        if following.last is None:
            raise ViolationError("no last event", request_id)
        attempts = self._checks.attempts_of(request_id)
        if self._is_strict and len(attempts) != 1:
            raise ViolationError("another attempt", f"{request_id}: {sorted(attempts)}")

    # texts and conversations

    def _check_session(self, session: bytes, turns: Sequence[DecodedRequest | None]) -> None:
        history = SessionRecord()
        for turn in turns:
            if turn is None:
                history = SessionRecord(version=history.version + 1)
            elif turn.error is not None:
                self._check_refused(turn)
            else:
                history = self._check_turn(turn, history)
        if self._is_strict:
            self._check_stored(session, history)

    def _check_refused(self, turn: DecodedRequest) -> None:
        last = self._checks.following[turn.request_id].last
        if last is None or last["object"] != "error":
            raise ViolationError("poison is answered", f"{turn.request_id}: {last}")
        if turn.record.value not in self._world.broker.dead_letters:
            raise ViolationError("poison is no dead letter", turn.request_id)

    def _check_turn(self, turn: DecodedRequest, history: SessionRecord) -> SessionRecord:
        following = self._checks.following[turn.request_id]
        start = self._start_of(turn, history, following)
        if start is None:
            return history
        last, ids = following.last, answer_ids(prompt_bytes(start.prompt_ids), start.seed)
        assert last is not None
        if last["object"] == "error":
            self._check_failed(turn, last)
            return history
        num_tokens = last["usage"]["completion_tokens"]
        text = self._expected_text(turn, start, ids, last)
        if following.text != text:
            details = f"{turn.request_id}: {following.text!r} is not {text!r} ({last})"
            raise ViolationError("another text", details)
        made = list(ids[:num_tokens])
        return conversation_after(turn, history, start, made, following.text)

    def _start_of(
        self, turn: DecodedRequest, history: SessionRecord, following: Following
    ) -> Start | None:
        """What an undisturbed run starts from. Where conversations may have been lost it is what
        the first event says; None: that one does not say.
        """
        try:
            start = prepare(turn, history, MODEL, now_s=0.0)
        except RequestError as problem:
            raise ViolationError("not prepared", f"{turn.request_id}: {problem}") from problem
        if self._is_strict:
            return start
        shown = (following.first or {}).get("prompt_token_ids")
        if shown is None:
            return None
        return Start(shown, start.seed, 0, 0, 0, start.model, start.fingerprint)

    def _check_failed(self, turn: DecodedRequest, last: dict[str, Any]) -> None:
        request = turn.request
        assert request is not None
        is_meant = (request.prompt or "").encode().endswith(FAILS_AT)
        is_given_up = self._world.doubts.num_crashes >= FAILURES_TO_GIVE_UP
        if not (is_meant or is_given_up):
            raise ViolationError("failed", f"{turn.request_id}: {last}")

    def _expected_text(
        self, turn: DecodedRequest, start: Start, ids: tuple[int, ...], last: dict[str, Any]
    ) -> str:
        """Of the tokens that the last event counts; these must be all, if it was not cancelled."""
        request = turn.request
        assert request is not None
        choice, usage = last["choices"][0], last["usage"]
        stream, text, num_tokens = ByteStream(request.stop), "", 0
        for token_id in ids[: request.token_limit]:
            text += stream.push(token_id)
            num_tokens += 1
            if stream.stopped:
                break
        if choice["finish_reason"] == "cancelled":
            if turn.request_id not in self._checks.cancelled:
                raise ViolationError("cancelled by nobody", f"{turn.request_id}")
            stream = ByteStream(request.stop)
            text = "".join(map(stream.push, ids[: usage["completion_tokens"]]))
        elif usage["completion_tokens"] != num_tokens:
            raise ViolationError("another length", f"{turn.request_id}: {num_tokens}, {last}")
        expected = 0 if choice["finish_reason"] == "cancelled" and not usage["prompt_tokens"] else 1
        if self._is_strict and expected and usage["prompt_tokens"] != len(start.prompt_ids):
            raise ViolationError("another prompt", f"{turn.request_id}: {last}, {start}")
        return text + stream.finish()

    def _check_stored(self, session: bytes, history: SessionRecord) -> None:
        key = self._world.keys.session("default", session.decode()).encode()
        found = self._world.redis.values.get(key, {})
        assert isinstance(found, dict)
        messages = orjson.loads(found.get(b"messages", b"[]"))
        ids = unpack(found.get(b"ids", b""))
        if (messages, ids) != (history.messages, history.ids):
            details = f"{session!r}:\n  {messages} {ids}\n  {history.messages} {history.ids}"
            raise ViolationError("another conversation", details)
