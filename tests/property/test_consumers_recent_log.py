"""The log in memory and the queue for the past, held against plain models."""

from collections import deque
from dataclasses import dataclass, field

import orjson
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.log_event import LogEvent, Wanted, decode_event
from headrace.consumers.past_queue import PastQueue
from headrace.consumers.recent_log import OVERHEAD_BYTES, RecentLog
from headrace.consumers.waiting_requests import PartitionIds
from tests.unit.consumers.records import LogRecord, event_record

NAMES = st.sampled_from(["a", "b", "c"])
PARTITIONS = st.integers(0, 1)
WANTED = st.builds(Wanted, NAMES, session_id=NAMES, request_id=st.none() | NAMES) | st.builds(
    Wanted, NAMES, session_id=st.none(), request_id=NAMES
)


@st.composite
def logs(draw: st.DrawFn) -> list[LogRecord]:
    """Records of two partitions in the order in which they are read, with gaps for markers."""
    offsets = {0: draw(st.integers(0, 5)), 1: draw(st.integers(0, 5))}
    records = []
    for _ in range(draw(st.integers(0, 40))):
        partition = draw(PARTITIONS)
        offsets[partition] += draw(st.integers(1, 3))
        records.append(
            event_record(
                draw(NAMES),
                draw(NAMES),
                draw(st.integers(0, 3)),
                tenant=draw(NAMES),
                partition=partition,
                offset=offsets[partition],
                text="x" * draw(st.integers(0, 300)),
            )
        )
    return records


def event_of(record: LogRecord) -> LogEvent:
    event = decode_event(record)
    assert event is not None
    return event


@given(logs(), WANTED, st.integers(1, 8), st.integers(1, 12), st.data())
def test_the_recent_log_gives_exactly_what_the_log_has(
    records: list[LogRecord], wanted: Wanted, num_kept: int, limit: int, data: st.DataObject
) -> None:
    """From any covered offset on: the wanted events, in order, each once, however little is held
    and however few are taken at once; never more than the bytes that it may have.
    """
    max_bytes = 2 * num_kept * (OVERHEAD_BYTES + 400)
    recent = RecentLog(max_bytes)
    for partition in (0, 1):
        recent.begin(partition, 0, now_ms=0)
    ends = {0: 0, 1: 0}
    for now_ms, record in enumerate(records):
        recent.add(record, event_of(record), now_ms=now_ms)
        ends[record.partition] = record.offset + 1
        assert recent.num_bytes <= max_bytes
    for partition, end in ends.items():
        start = data.draw(st.integers(0, end))
        if not recent.covers(partition, start):
            assert start < recent.start(partition)
            continue
        found: list[int] = []
        place = start
        while place < end:
            kept, after = recent.take(wanted, partition, place, end, limit=limit)
            assert len(kept) <= limit
            assert after > place
            found += [one.offset for one in kept]
            place = after
        expected = [
            record.offset
            for record in records
            if record.partition == partition
            and record.offset >= start
            and wanted.accepts(event_of(record))
        ]
        assert found == expected


@given(logs(), st.integers(1, 6), st.data())
def test_a_request_is_whole_only_if_nothing_of_it_was_dropped(
    records: list[LogRecord], num_kept: int, data: st.DataObject
) -> None:
    """Where the recent log says that a request is whole, it has every event of it that was read,
    from a first one on.
    """
    recent = RecentLog(2 * num_kept * (OVERHEAD_BYTES + 400))
    for partition in (0, 1):
        recent.begin(partition, 0, now_ms=0)
    for record in records:
        recent.add(record, event_of(record), now_ms=0)
    wanted = Wanted(data.draw(NAMES), request_id=data.draw(NAMES))
    ours = [it for it in records if wanted.accepts(event_of(it))]
    if recent.has_whole(wanted, {0, 1}):
        for partition in (0, 1):
            here = [it for it in ours if it.partition == partition]
            kept, _ = recent.take(
                wanted, partition, recent.start(partition), 10**9, limit=len(records)
            )
            finished_before = [it for it in here if it.offset < recent.start(partition)]
            assert [it.offset for it in kept] == [
                it.offset for it in here if it not in finished_before
            ]
            assert not kept or kept[0].number == 0
            if finished_before and kept:
                assert event_of(finished_before[-1]).event["choices"][0]["finish_reason"]


@dataclass(eq=False)
class BoundedReader:
    """Takes up to `room` events, until `drain`."""

    wanted: Wanted
    next_offset: dict[int, int]
    targets: dict[int, int]
    room: int
    held: deque[LogEvent] = field(default_factory=deque)
    taken: list[tuple[int, int]] = field(default_factory=list)
    num_notices: int = 0

    def wants_until(self, partition: int) -> int:
        return self.targets[partition]

    def take(self, event: LogEvent) -> bool:
        self.held.append(event)
        return len(self.held) < self.room

    def notice(self, problem: Exception | None = None) -> None:
        assert problem is None
        self.num_notices += 1

    def drain(self) -> None:
        self.taken += [(event.partition, event.offset) for event in self.held]
        self.held.clear()


@given(logs(), st.lists(WANTED, max_size=6), st.data())
def test_readers_of_the_past_each_get_their_part_of_the_log_once(
    records: list[LogRecord], wants: list[Wanted], data: st.DataObject
) -> None:
    """Whatever is read at once, for whomever, and however little a reader takes: each has the
    wanted events between its start and its target, in order, none twice; and the queue is empty in
    the end.
    """
    ends = {n: max([r.offset + 1 for r in records if r.partition == n], default=0) for n in (0, 1)}
    queue, readers = PastQueue(), []
    for wanted in wants:
        starts = {n: data.draw(st.integers(0, end)) for n, end in ends.items()}
        targets = {n: data.draw(st.integers(starts[n], end)) for n, end in ends.items()}
        readers.append(BoundedReader(wanted, dict(starts), targets, data.draw(st.integers(1, 4))))
    expected = [
        {
            n: [
                (n, r.offset)
                for r in records
                if r.partition == n
                and reader.next_offset[n] <= r.offset < reader.targets[n]
                and reader.wanted.accepts(event_of(r))
            ]
            for n in (0, 1)
        }
        for reader in readers
    ]
    for reader in readers:
        queue.join(reader)
    for _ in range(2_000):
        place = queue.claim()
        if place is None and not any(reader.held for reader in readers):
            break
        if place is not None:
            partition, start = place
            end = min(start + data.draw(st.integers(1, 9)), ends[partition])
            chunk = [
                event_of(r) for r in records if r.partition == partition and start <= r.offset < end
            ]
            queue.hand_out(partition, start, end, chunk)
            queue.release(partition)
        for reader in readers:
            reader.drain()
            queue.join(reader)
    assert queue.claim() is None
    for reader, parts in zip(readers, expected, strict=True):
        for n in (0, 1):
            assert [it for it in reader.taken if it[0] == n] == parts[n]


@given(st.lists(st.tuples(st.sampled_from(["record", "commit"]), st.integers(0, 5), NAMES)))
def test_the_ids_that_wait_are_those_behind_the_committed_offset(
    steps: list[tuple[str, int, str]],
) -> None:
    """Against a plain list, with gaps, several records of one id, and commits."""
    ids, floor, end = PartitionIds(0), 0, 0
    waiting: list[tuple[int, str]] = []
    for kind, count, name in steps:
        if kind == "record":
            ids.add(end + count, ("t", name))
            waiting.append((end + count, name))
            end += count + 1
        else:
            floor = min(floor + count, end)
            ids.move(floor, end)
            waiting = [it for it in waiting if it[0] >= floor]
        assert ids.read_to == end
        assert len(ids) == len(waiting)
        for one in ("a", "b", "c"):
            assert (("t", one) in ids) == (one in [it[1] for it in waiting])


def test_an_event_is_kept_as_it_was_but_for_foreign_headers() -> None:
    """What is decoded from memory equals what came live, with our own headers."""
    record = event_record("s", "r", 0, tenant="acme", partition=0, offset=7, text="héllo")
    headers = [*record.headers, ("ce_id", b"r:1:0"), ("headrace-worker", b"w1")]
    record = LogRecord(0, 7, record.key, record.value, tuple(headers))
    recent = RecentLog(10_000)
    recent.begin(0, 7, now_ms=0)
    recent.add(record, event_of(record), now_ms=1)
    (kept,), _ = recent.take(Wanted("acme", request_id="r"), 0, 7, 8, limit=5)
    found, live = decode_event(kept), event_of(record)
    assert found is not None
    assert found.event == live.event == orjson.loads(record.value)
    assert (found.key, found.offset, found.cursor) == (live.key, 7, live.cursor)
    assert dict(found.headers) == {"headrace-tenant": b"acme", "headrace-worker": b"w1"}
