"""No token lost, none twice, none different: one request through any flushes, crashes and losses.

The journal here does what the Lua scripts do, on the bytes that journal_codec writes; the scripts
themselves are held to that in tests/integration/test_journal.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import Event, Timings
from headrace.schemas.reply import ReplyReader, Seen, event_text, is_last
from headrace.schemas.request import DecodedRequest, Record, decode_request
from headrace.streams.generation import Ending, Flush, Generation, JournalEntry, Standing, Start
from headrace.streams.journal_codec import decode_entry, encode_ending, encode_start, pack
from tests.fakes import ByteStream

VOLATILE = ("created", "timings")
BOOM = RequestError(ErrorCode.OUT_OF_MEMORY, "no room", "messages")


def begun(seed: int) -> Start:
    """What is settled at the start; the seed tells two starts apart."""
    return Start([1, 2, 3], seed, 2, 0, 1_796_000_000, "tiny", "fp-1")


def request(*, stream: bool, stop: Sequence[str], return_token_ids: bool) -> DecodedRequest:
    """A decoded record that asks for an answer."""
    body = {
        "request_id": "r1",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": stream,
        "stop": list(stop),
        "return_token_ids": return_token_ids,
        "metadata": {"a": "b"},
    }
    return decode_request(
        Record("requests", 3, 41, 1_796_000_000_000, b"s", orjson.dumps(body), [])
    )


class ByteEngine:
    """Makes the bytes of a script, one token at a time, as the engine would."""

    def __init__(self, script: Sequence[int], stop: Sequence[str], earlier: Sequence[int]) -> None:
        self._script, self._stream = script, ByteStream(stop)
        for token_id in earlier:
            self._stream.push(token_id)
        self.position = len(earlier)

    def step(self, generation: Generation, end: Ending) -> None:
        """One output: a token, and the end with the last one."""
        if self.position >= len(self._script):
            self.end(generation, [], end)
            return
        token_id = self._script[self.position]
        self.position += 1
        text = self._stream.push(token_id)
        if self._stream.stopped:
            generation.extend([token_id], text + self._stream.finish())
            generation.end(Ending(finish_reason="stop", timings=end.timings))
        elif self.position == len(self._script) and end.error is None:
            generation.extend([token_id], text + self._stream.finish())
            generation.end(end)
        else:
            generation.extend([token_id], text)

    def end(self, generation: Generation, token_ids: list[int], ending: Ending) -> None:
        """The last output of a generation that was cancelled or failed."""
        text = "" if ending.error else self._stream.finish()
        generation.extend(token_ids, text)
        generation.end(ending)


class BytesJournal:
    """One journal as bytes; `flush` and `adopt` do what their scripts do."""

    def __init__(self) -> None:
        self.fields: dict[bytes, bytes] | None = None

    def entry(self) -> JournalEntry:
        assert self.fields is not None
        return decode_entry(self.fields)

    def create(self, attempt: int) -> None:
        self.fields = {b"attempt": b"%d" % attempt}

    def take_over(self, token: int) -> None:
        """What a later owner's claim does to the attempt."""
        assert self.fields is not None
        if not self.fields.keys() & {b"start", b"ending"}:
            self.fields[b"attempt"] = b"%d" % token

    def flush(self, flush: Flush) -> None:
        assert self.fields is not None
        for name, kept, new in (
            (b"ids", flush.ids_kept, flush.new_ids),
            (b"bounds", flush.bounds_kept, flush.new_bounds),
        ):
            old = self.fields.get(name, b"")
            assert len(old) >= kept * 4, "what is kept is there"
            self.fields[name] = old[: kept * 4] + pack(new)
        self.fields[b"confirmed"] = b"%d" % flush.confirmed
        self._start_and_ending(flush.start, flush.ending)

    def adopt(self, entry: JournalEntry) -> None:
        self.fields = {
            b"attempt": b"%d" % entry.attempt,
            b"ids": pack(entry.ids),
            b"bounds": pack(entry.bounds),
            b"confirmed": b"%d" % entry.confirmed,
        }
        self._start_and_ending(entry.start, entry.ending)

    def _start_and_ending(self, start: Start | None, ending: Ending | None) -> None:
        assert self.fields is not None
        settled, prompt = encode_start(start)
        if settled:
            self.fields |= {b"start": settled, b"prompt": prompt}
        if ending is not None:
            self.fields[b"ending"] = encode_ending(ending)


@dataclass
class World:
    """One request, its journal, the response log, and the workers that come and go."""

    decoded: DecodedRequest
    scripts: list[list[int]]
    end: Ending
    journal: BytesJournal = field(default_factory=BytesJournal)
    log: list[dict[str, Any]] = field(default_factory=list)
    in_flight: list[dict[str, Any]] = field(default_factory=list)
    token: int = 100
    num_fresh: int = 0

    def __post_init__(self) -> None:
        self.stop = tuple(self.decoded.request.stop) if self.decoded.request else ()
        self.claim()

    def claim(self, num_arrived: int = 0) -> None:
        """A worker takes over: from the journal, or from nothing.

        `num_arrived`: of what the one before it had in flight, this many events reach the broker.
        """
        self.token += 10
        self.log += self.in_flight[:num_arrived]
        self.in_flight = []
        self.text_stream = ByteStream(self.stop)
        if self.journal.fields is None:
            self.fresh()
            self.journal.create(self.token)
            return
        self.journal.take_over(self.token)
        entry = self.journal.entry()
        self.generation = Generation(self.decoded, token=self.token, attempt=entry.attempt)
        self.generation.restore(entry, self.text_stream)
        self.engine = ByteEngine(self.script, self.stop, self.generation.ids)

    def fresh(self) -> None:
        """Nothing is known of it: another seed, so another text."""
        self.script = self.scripts[self.num_fresh % len(self.scripts)]
        self.num_fresh += 1
        self.generation = Generation(self.decoded, token=self.token, attempt=self.token)
        self.engine = ByteEngine(self.script, self.stop, [])

    def fresh_unjournaled(self, *, claimed: bool) -> None:
        """Redis is away and nobody can have started it.

        `claimed`: before, a claim was carried out whose answer was lost.
        """
        if not claimed:
            self.journal.fields = None
        self.token += 10
        self.in_flight = []
        self.text_stream = ByteStream(self.stop)
        self.fresh()
        self.generation.standing = Standing.UNJOURNALED

    def step(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            if self.generation.ending is None:
                self.generation.start = self.generation.start or begun(self.token)
                self.engine.step(self.generation, self._end())

    def _end(self) -> Ending:
        """How the engine ends it; no two workers fail with the same words."""
        if self.end.error is None:
            return self.end
        return Ending(error=RequestError(ErrorCode.OUT_OF_MEMORY, f"no room at {self.token}"))

    def cancel(self) -> None:
        """Where the engine has it, the engine ends it; else the text stream's rest is shown."""
        generation = self.generation
        if generation.ending is not None:
            return
        if generation.start is not None and self.engine.position:
            self.engine.end(generation, [], Ending(finish_reason="cancelled"))
        else:
            generation.extend([], self.text_stream.finish())
            generation.end(Ending(finish_reason="cancelled"))

    def flush(self, *, answered: bool, carried_out: bool, meanwhile: int = 0) -> None:
        """flush as the flusher does it; an answer may be lost, with or without the write.

        `meanwhile`: tokens that the engine makes before there is an answer.
        """
        generation = self.generation
        if generation.standing is Standing.ADOPTING:
            return  # Redis is away again: held back
        if generation.standing is Standing.UNJOURNALED:
            flush = generation.next_flush()
            if flush is not None:
                generation.flushed(flush)
            return
        if generation.standing is Standing.LOST:
            self._adopt(generation.restart(generation.token), answered, carried_out, meanwhile)
            return
        flush = generation.next_flush()
        if flush is None:
            return
        if self.journal.fields is None:
            self.token += 10
            self._adopt(generation.restart(self.token), answered, carried_out, meanwhile)
            return
        if answered or carried_out:
            self.journal.flush(flush)
        self.step(meanwhile)
        if answered:
            generation.flushed(flush)

    def redis_back(self, *, answered: bool, carried_out: bool) -> None:
        """An unjournaled generation is written down."""
        if self.generation.standing in (Standing.UNJOURNALED, Standing.ADOPTING):
            self._adopt(self.generation.adopt(), answered, carried_out)

    def confirm_finds_nothing(self) -> None:
        """Everything is delivered, and the journal is gone: a larger attempt."""
        if self.generation.is_delivered and self.generation.standing is Standing.JOURNALED:
            self.journal.fields = None
            self.token += 10
            self._adopt(self.generation.restart(self.token), True, True)

    def _adopt(
        self, entry: JournalEntry, answered: bool, carried_out: bool, meanwhile: int = 0
    ) -> None:
        if answered or carried_out:
            self.journal.adopt(entry)
        self.step(meanwhile)
        if answered:
            self.generation.adopted(entry)

    def publish(self, num_acknowledged: int) -> None:
        """Hand over what may be published; the broker acknowledges some of it before a crash."""
        generation = self.generation
        if generation.standing in (Standing.LOST, Standing.ADOPTING):
            return
        self.in_flight += [parsed(event) for event in generation.take_publishable()]
        generation.acknowledged = min(
            generation.published, max(generation.acknowledged, num_acknowledged)
        )
        while self.in_flight:
            event = self.in_flight[0]
            current = event["attempt"] == generation.attempt
            if current and event["sequence_number"] >= generation.acknowledged:
                break
            self.log.append(self.in_flight.pop(0))

    def stream(self, num_tokens: int) -> None:
        """What happens most of the time: make, journal, publish, and get it acknowledged."""
        self.step(num_tokens)
        self.flush(answered=True, carried_out=True, meanwhile=1)
        self.publish(num_acknowledged=10_000)

    def run_to_its_end(self, crashes: Sequence[int | None] = ()) -> None:
        """It is delivered, if need be by one worker after another.

        `crashes`: a worker ends after journaling (None), or after publishing, when so many of its
        unacknowledged events reach the broker.
        """
        left = list(crashes)
        for _ in range(200):
            self.redis_back(answered=True, carried_out=True)
            self.step(3)
            self.flush(answered=True, carried_out=True)
            if left:
                num_arrived = left.pop()
                if num_arrived is not None:
                    self.publish(num_acknowledged=0)
                self.claim(num_arrived or 0)
                continue
            self.publish(num_acknowledged=10_000)
            if self.generation.is_delivered and self.generation.standing is Standing.JOURNALED:
                return
        raise AssertionError("it is never delivered")

    def expected_text(self) -> str:
        """What the answer must be, from the ids alone."""
        generation, stream = self.generation, ByteStream(self.stop)
        text = "".join(map(stream.push, generation.ids))
        assert generation.ending is not None
        if generation.ending.error is not None:
            return text if generation.streams else ""
        return text + stream.finish()


def parsed(event: Event) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(event.value)
    assert event.sequence_number == body["sequence_number"]
    assert event.is_last == is_last(body)
    return body


def content(event: dict[str, Any]) -> bytes:
    """What must be the same whenever an event is published again (contract §3)."""
    kept = {name: value for name, value in event.items() if name not in VOLATILE}
    if "usage" in kept:
        kept["usage"] = {k: v for k, v in kept["usage"].items() if k != "prompt_tokens_details"}
    return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)


def check(world: World) -> None:
    """The promises of contract §3, from the log alone."""
    contents: dict[tuple[int, int], bytes] = {}
    for event in world.log:
        number = (event["attempt"], event["sequence_number"])
        assert contents.setdefault(number, content(event)) == content(event)
    for attempt in {number[0] for number in contents}:
        numbers = sorted(n for a, n in contents if a == attempt)
        assert numbers == list(range(len(numbers)))
        lasts = [e["sequence_number"] for e in world.log if e["attempt"] == attempt and is_last(e)]
        assert len(set(lasts)) <= 1
        assert not lasts or lasts[0] == numbers[-1]
    reader, text, seen_last = ReplyReader(), "", 0
    for event in world.log:
        seen = reader.see(event)
        assert seen is not Seen.GAP
        if seen is Seen.RESTART:
            text = ""
        if seen in (Seen.NEW, Seen.RESTART):
            text += event_text(event)
            seen_last += is_last(event)
    assert reader.finished
    assert seen_last == 1
    if (
        world.generation.attempt == reader.attempt
    ):  # else: it had followed an earlier one to its end
        assert world.expected_text() == text
    for attempt in {number[0] for number in contents}:
        check_token_ids(world, [e for e in world.log if e["attempt"] == attempt])


def check_token_ids(world: World, events: list[dict[str, Any]]) -> None:
    """With return_token_ids the chunks' ids are all ids that were generated, each once."""
    request_ = world.decoded.request
    if request_ is None or not request_.return_token_ids or events[-1]["object"] == "error":
        return
    by_number = {e["sequence_number"]: e for e in events}
    last = max(by_number)
    if not is_last(by_number[last]):
        return
    ids = [i for n in range(last + 1) for i in by_number[n]["choices"][0]["token_ids"]]
    assert by_number[last]["usage"]["completion_tokens"] == len(ids)
    prompted = [n for n, e in by_number.items() if "prompt_token_ids" in e]
    assert prompted == ([0] if by_number[last]["seed"] else []), "in the first event, if it started"


TEXTS = st.text(alphabet="abEND é😀", min_size=4, max_size=14)
actions = st.one_of(
    st.tuples(st.just("stream"), st.integers(1, 3)),
    st.tuples(st.just("stream"), st.integers(1, 3)),
    st.tuples(st.just("stream"), st.integers(1, 3)),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("flush"), st.sampled_from(["ok", "ok", "no answer", "not carried out"])),
    st.tuples(st.just("publish"), st.integers(0, 5)),
    st.tuples(st.just("crash"), st.integers(0, 2)),
    st.tuples(st.just("lose journal"), st.just(0)),
    st.tuples(st.just("crash, journal lost"), st.integers(0, 2)),
    st.tuples(st.just("cancel"), st.just(0)),
    st.tuples(st.just("redis back"), st.sampled_from(["ok", "no answer", "not carried out"])),
    st.tuples(st.just("confirm finds nothing"), st.just(0)),
)
endings = st.sampled_from(
    [
        Ending(finish_reason="length", timings=Timings(ttft_ms=1.5), cached_tokens=3),
        Ending(error=BOOM),
    ]
)


def apply(world: World, name: str, argument: Any) -> None:
    """One of `actions`."""
    outcome = {"answered": argument == "ok", "carried_out": argument != "not carried out"}
    if name.endswith("journal lost") or name == "lose journal":
        world.journal.fields = None
    if name.startswith("crash"):
        world.claim(argument)
    match name:
        case "stream":
            world.stream(argument)
        case "step":
            world.step(argument)
        case "flush":
            world.flush(**outcome, meanwhile=1)
        case "publish":
            world.publish(argument)
        case "cancel":
            world.cancel()
        case "redis back":
            world.redis_back(**outcome)
        case "confirm finds nothing":
            world.confirm_finds_nothing()


LENGTH = Ending(finish_reason="length")


def known(script: list[tuple[str, Any]], **more: Any) -> dict[str, Any]:
    """A case that was wrong once: an answer without a journal, and a crash."""
    return {
        "texts": ["abcdefgh"],
        "cut": 60,
        "special": False,
        "stream": True,
        "stop": (),
        "return_token_ids": False,
        "end": LENGTH,
        "unjournaled": "not claimed",
        "script": script,
        "crashes": [],
    } | more


@settings(max_examples=400, deadline=None)
# adopted before its start, and the answer lost: the next owner drew another seed
@example(**known([("redis back", "no answer"), ("stream", 9), ("crash", 0)], stream=False))
# adopted in part, and the answer lost: the next owner cut the rest into other chunks
@example(**known([("stream", 1), ("redis back", "no answer"), ("stream", 1), ("crash", 0)]))
# claimed, and the answer lost: the next owner went on under a smaller attempt
@example(**known([("stream", 1), ("crash", 0), ("stream", 1)], unjournaled="claimed"))
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=3),
    cut=st.integers(0, 60),
    special=st.booleans(),
    stream=st.booleans(),
    stop=st.sampled_from([(), ("END",), ("Eb", "END")]),
    return_token_ids=st.booleans(),
    end=endings,
    unjournaled=st.sampled_from([None, "claimed", "not claimed"]),
    script=st.lists(actions, min_size=3, max_size=15),
    crashes=st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=6),
)
def test_a_reader_gets_the_whole_text_once_whatever_happens(
    texts: list[str],
    cut: int,
    special: bool,
    stream: bool,
    stop: tuple[str, ...],
    return_token_ids: bool,
    end: Ending,
    unjournaled: str | None,
    script: list[tuple[str, Any]],
    crashes: list[int | None],
) -> None:
    """Crashes, lost answers, lost journals, cancels and republishing, in any order."""
    scripts = [[*text.encode()[:cut], *([256] if special else [])] or [97] for text in texts]
    decoded = request(stream=stream, stop=stop, return_token_ids=return_token_ids)
    world = World(decoded, scripts, end)
    if unjournaled is not None:
        world.fresh_unjournaled(claimed=unjournaled == "claimed")
    for name, argument in script:
        apply(world, name, argument)
    world.run_to_its_end(crashes)
    check(world)


@settings(max_examples=100, deadline=None)
@given(script=st.lists(actions, max_size=15), stream=st.booleans(), poison=st.booleans())
def test_a_refusal_is_one_last_event_whatever_happens(
    script: list[tuple[str, Any]], stream: bool, poison: bool
) -> None:
    """A request that is refused before it starts, on every worker that reads it."""
    decoded = request(stream=stream, stop=(), return_token_ids=False)
    if poison:
        decoded = decode_request(Record("requests", 3, 41, 5, b"s", b"{", []))
    world = World(decoded, [[97]], Ending(error=BOOM))
    world.generation.end(Ending(error=BOOM))
    for name, argument in script:
        if name not in ("step", "stream"):
            apply(world, name, argument)
        world.generation.end(Ending(error=BOOM))
    world.run_to_its_end()
    check(world)
    assert {is_last(event) for event in world.log} == {True}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_tokens", range(8))
def test_a_cancel_shows_what_a_stop_string_held_back(num_tokens: int, stream: bool) -> None:
    """Cases E8: `the E` is shown although END might have come."""
    decoded = request(stream=stream, stop=["END"], return_token_ids=True)
    world = World(decoded, [list(b"the ENx")], Ending(finish_reason="length"))
    world.step(num_tokens)
    world.cancel()
    world.run_to_its_end()
    check(world)
    text = "".join(event_text(event) for event in world.log)
    assert "the ENx"[:num_tokens] == text


@pytest.mark.parametrize("num_flushed", range(6))
def test_a_cancel_after_a_crash_shows_what_a_stop_string_held_back(num_flushed: int) -> None:
    """The next owner finds the cancel in the journal before the engine has the request again."""
    decoded = request(stream=True, stop=["END"], return_token_ids=False)
    world = World(decoded, [list(b"the ENx")], Ending(finish_reason="length"))
    world.step(num_flushed)
    world.flush(answered=True, carried_out=True)
    world.claim()
    world.generation.extend([], world.text_stream.finish())
    world.generation.end(Ending(finish_reason="cancelled"))
    world.run_to_its_end()
    world.claim()
    world.generation.published = 0
    world.publish(0)
    check(world)
    reader = ReplyReader()
    text = "".join(event_text(e) for e in world.log if reader.see(e) is Seen.NEW)
    assert "the ENx"[:num_flushed] == text
