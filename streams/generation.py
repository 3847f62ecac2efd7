"""One request's generation in this worker: what is made, journaled, published and acknowledged.

Plain state, no I/O. The numbers only grow within an attempt:

    tokens   made  >=  flushed
    chunks   bounds  >=  published  >=  acknowledged

A chunk's end (`bounds`, in tokens) is fixed by the flush that journals it, so that every owner
publishes the same events. The text of a chunk is a function of the token ids, so only ids are
journaled.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import Completion, Event, EventWriter, Timings, Usage
from headrace.schemas.request import DecodedRequest


class TextStream(Protocol):
    """Token ids to text that is safe to show (headrace.models.text)."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Start:
    """What was settled when the generation started; journaled with its first flush."""

    prompt_ids: list[int]
    seed: int
    session_version: int
    dropped_messages: int
    created_s: int
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended: a finish reason, or an error."""

    finish_reason: str | None = None
    error: RequestError | None = None
    cached_tokens: int = 0
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A journal as it was found: everything that an earlier owner got done."""

    attempt: int
    start: Start | None = None
    ids: list[int] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    confirmed: int = 0
    ending: Ending | None = None
    cancelled: bool = False
    done: bool = False
    runner: str = ""
    """The worker that had it; `alone`: it ran there, and no other with it."""
    num_ids_claimed: int = 0
    """How many ids that one found."""
    failures: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Flush:
    """What one `flush` writes: the part of `ids` and `bounds` behind what is kept of each."""

    ids_kept: int
    new_ids: list[int]
    bounds_kept: int
    new_bounds: list[int]
    chunk_text: str | None
    confirmed: int
    start: Start | None
    ending: Ending | None


def too_large(num_bytes: int) -> RequestError:
    """Why an answer ends where an event would not fit into the response topic."""
    text = f"an event of the answer has {num_bytes} bytes, more than the response topic takes"
    return RequestError(ErrorCode.INTERNAL_ERROR, text)


class Standing(Enum):
    """How a generation stands to its journal."""

    JOURNALED = "journaled"
    """Written ahead: only what the journal holds is published."""
    UNJOURNALED = "unjournaled"
    """Redis is away and nobody else can have started it: published without asking,
    under the lease.
    """
    ADOPTING = "adopting"
    """It was unjournaled, and an ADOPT was sent. Until one is answered its journal may stand or
    not: only what an ADOPT held is published, for the next owner would go on from there.
    """
    LOST = "lost"
    """The journal is gone: nothing is published before it stands again under a larger attempt."""


class Generation:
    """State of one request between its claim and its commit."""

    def __init__(self, decoded: DecodedRequest, *, token: int, attempt: int) -> None:
        record = decoded.record
        self.key = f"{record.topic}-{record.partition}-{record.offset}@{token}"
        """Unique in this process, also when the same record is claimed again."""
        self.decoded = decoded
        self.token, self.attempt = token, attempt
        self.standing = Standing.JOURNALED
        self.start: Start | None = None
        self.ids: list[int] = []
        self.bounds: list[int] = []
        self.ending: Ending | None = None
        self.published = 0
        self.acknowledged = 0
        self._chunk_texts: list[str] = []
        self._pending_text = ""
        self._flushed_ids = 0
        self._start_flushed = False
        self._ending_flushed = False
        self._cut_off: int | None = None  # number of the event in whose place the failure stands

    @property
    def streams(self) -> bool:
        request = self.decoded.request
        return request is None or request.stream

    @property
    def has_no_journal(self) -> bool:
        """Whether none is known to stand, because Redis was away when it began."""
        return self.standing in (Standing.UNJOURNALED, Standing.ADOPTING)

    @property
    def num_tokens(self) -> int:
        """Prompt and answer so far."""
        return len(self.ids) + (len(self.start.prompt_ids) if self.start else 0)

    @property
    def text(self) -> str:
        """All text that is shown or about to be."""
        return "".join(self._chunk_texts) + self._pending_text

    def restore(self, entry: JournalEntry, stream: TextStream) -> None:
        """Take over what `entry` holds; `stream` must be new and is left where the ids end."""
        self.start, self.ids, self.bounds = entry.start, list(entry.ids), list(entry.bounds)
        self.ending = entry.ending
        self.published = self.acknowledged = entry.confirmed
        done = 0
        for bound in self.bounds:
            self._chunk_texts.append("".join(map(stream.push, self.ids[done:bound])))
            done = bound
        self._pending_text = "".join(map(stream.push, self.ids[done:]))
        if self.ending is not None and self.ending.error is None:
            self._chunk_texts[-1] += stream.finish()
        self._flushed_ids = len(self.ids)
        self._start_flushed = entry.start is not None
        self._ending_flushed = entry.ending is not None

    def begin(self, start: Start) -> None:
        """Settle prompt and seed. Not after its end, which may stand in the journal without them:
        the last event must be the same from every owner.
        """
        if self.ending is None:
            self.start = start

    def extend(self, token_ids: list[int], text: str) -> None:
        """step: the engine made more."""
        self.ids += token_ids
        self._pending_text += text

    def end(self, ending: Ending) -> None:
        """The engine, a cancel or a refusal ended it. The first ending counts."""
        if self.ending is None:
            self.ending = ending

    def next_flush(self) -> Flush | None:
        """flush: what is not journaled yet, or None. Nothing is changed until `flushed`."""
        ending = None if self._ending_flushed else self.ending
        new_ids = self.ids[self._flushed_ids :]
        if not new_ids and ending is None:
            return None
        cuts = self._cuts_chunk(ending)
        return Flush(
            ids_kept=self._flushed_ids,
            new_ids=new_ids,
            bounds_kept=len(self.bounds),
            new_bounds=[len(self.ids)] if cuts else [],
            chunk_text=self._pending_text if cuts else None,
            confirmed=self.acknowledged,
            start=None if self._start_flushed else self.start,
            ending=ending,
        )

    def _cuts_chunk(self, ending: Ending | None) -> bool:
        if ending is not None and ending.error is None:
            return True
        if not self.streams:
            return False
        return bool(self._pending_text)

    def flushed(self, flush: Flush) -> None:
        """The journal accepted `flush`: its chunk may be published from now on."""
        self._flushed_ids = flush.ids_kept + len(flush.new_ids)
        self._start_flushed |= flush.start is not None
        self._ending_flushed |= flush.ending is not None
        if flush.chunk_text is not None:
            self.bounds += flush.new_bounds
            self._chunk_texts.append(flush.chunk_text)
            self._pending_text = self._pending_text[len(flush.chunk_text) :]

    def restart(self, token: int) -> JournalEntry:
        """The journal was lost: a larger attempt, in which all text so far is one chunk.

        Returns what the new journal must hold; nothing is computed again.
        """
        self.standing = Standing.LOST
        self.token = self.attempt = token
        text, self._pending_text = self.text, ""
        self._chunk_texts, self.bounds, self._cut_off = [], [], None
        answered = self.ending is not None and self.ending.error is None
        if answered or (text and self.streams):
            self._chunk_texts, self.bounds = [text], [len(self.ids)]
        else:
            self._pending_text = text
        self.published = self.acknowledged = 0
        return self._whole_entry()

    def adopt(self) -> JournalEntry:
        """Redis is back: what the journal of an unjournaled generation must hold.

        All that was made is in it, its chunks cut; nothing more is published before `adopted`.
        """
        flush = self.next_flush()
        if flush is not None:
            self.flushed(flush)
        self.standing = Standing.ADOPTING
        return self._whole_entry()

    def _whole_entry(self) -> JournalEntry:
        return JournalEntry(
            attempt=self.attempt,
            start=self.start,
            ids=list(self.ids),
            bounds=list(self.bounds),
            confirmed=self.acknowledged,
            ending=self.ending,
        )

    def adopted(self, entry: JournalEntry) -> None:
        """The journal holds `entry` now."""
        self.standing = Standing.JOURNALED
        self._flushed_ids = len(entry.ids)
        self._start_flushed = entry.start is not None
        self._ending_flushed = entry.ending is not None

    @property
    def num_events(self) -> int:
        """Events that may be published now."""
        if self._cut_off is not None:
            return self._cut_off + 1
        failed = self._ending_flushed and self.ending is not None and self.ending.error is not None
        return len(self.bounds) + failed

    @property
    def is_delivered(self) -> bool:
        """Whether the last event is acknowledged by the broker."""
        has_ended = self._ending_flushed or self._cut_off is not None
        return has_ended and self.acknowledged == self.num_events

    def take_publishable(self, max_bytes: int | None = None) -> list[Event]:
        """publish: the next events, in order; they count as handed to the producer.

        In the place of one larger than `max_bytes`, which no owner can publish, the answer fails.
        """
        events: list[Event] = []
        while self.published + len(events) < self.num_events:
            number = self.published + len(events)
            event = self._event(number)
            if max_bytes is not None and len(event.value) > max_bytes and self._cut_off is None:
                self._cut_off, self.ending = number, Ending(error=too_large(len(event.value)))
                event = self._event(number)
            events.append(event)
        self.published = self.num_events
        return events

    def _event(self, number: int) -> Event:
        writer = self._writer()
        if number in (self._cut_off, len(self.bounds)):
            assert self.ending is not None  # noqa: S101 - only an error comes after the chunks
            assert self.ending.error is not None  # noqa: S101 - ditto
            return writer.failed(number, self.ending.error)
        is_last = self._ending_flushed and number == len(self.bounds) - 1
        completion = self._completion() if is_last and self.ending else None
        text = self._chunk_texts[number]
        token_ids = prompt_ids = None
        if self.decoded.wants_token_ids:
            begin = self.bounds[number - 1] if number else 0
            token_ids = self.ids[begin : self.bounds[number]]
            prompt_ids = self.start.prompt_ids if self.start and number == 0 else None
        if self.streams:
            return writer.chunk(
                number,
                text,
                token_ids=token_ids,
                prompt_token_ids=prompt_ids,
                completion=completion,
            )
        assert completion is not None, "an answer that is not streamed is cut at its end"  # noqa: S101
        return writer.whole(text, completion, token_ids=token_ids, prompt_token_ids=prompt_ids)

    def _completion(self) -> Completion | None:
        if self.ending is None or self.ending.finish_reason is None:
            return None
        request = self.decoded.request
        return Completion(
            finish_reason=self.ending.finish_reason,
            usage=Usage(
                prompt_tokens=len(self.start.prompt_ids) if self.start else 0,
                completion_tokens=len(self.ids),
                cached_tokens=self.ending.cached_tokens,
            ),
            timings=self.ending.timings,
            seed=self.start.seed if self.start else 0,
            metadata=request.metadata if request else {},
        )

    def _writer(self) -> EventWriter:
        start = self.start
        return EventWriter(
            request_id=self.decoded.request_id,
            session_id=self.decoded.session_id,
            attempt=self.attempt,
            created_s=start.created_s if start else self.decoded.record.timestamp_ms // 1000,
            model=start.model if start else "",
            system_fingerprint=start.fingerprint if start else "",
        )
