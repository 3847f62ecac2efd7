"""What the recent log holds on to."""

import gc

from headrace.consumers.log_event import Wanted, decode_event
from headrace.consumers.recent_log import KeptRecord, RecentLog
from tests.unit.consumers.records import event_record

NUM_SESSIONS, NUM_ROUNDS = 40, 60


def num_alive() -> int:
    """Kept records that were not freed, of any recent log."""
    gc.collect()
    return sum(type(found) is KeptRecord for found in gc.get_objects())


def test_what_is_dropped_is_freed() -> None:
    """Many sessions of which each drops a few: each held up to 63 dropped records, beyond what may
    be held, so that a gateway with 4,800 sessions grew by 1 MB/s for minutes.
    """
    before, end = num_alive(), NUM_SESSIONS * NUM_ROUNDS
    log = RecentLog(100_000)
    log.begin(0, 0, now_ms=0)
    for offset in range(end):
        name = f"s{offset % NUM_SESSIONS}"
        record = event_record(name, f"r-{name}", offset // NUM_SESSIONS, partition=0, offset=offset)
        event = decode_event(record)
        assert event is not None
        log.add(record, event, now_ms=0)
    num_here = sum(
        len(log.take(Wanted("default", f"s{one}"), 0, log.start(0), end, limit=end)[0])
        for one in range(NUM_SESSIONS)
    )
    assert 50 < num_here <= num_alive() - before <= num_here * 1.2 + NUM_SESSIONS
