"""One request of bench_pipeline and its answer, and the raw figures of many. Only the standard
library, since the load client uses it.
"""

import asyncio
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(slots=True)
class Exchange:
    """When a request was sent and its events were read, on `time.perf_counter()`."""

    sent_s: float
    finished: "asyncio.Future[None]"
    arrived_s: list[float] = field(default_factory=list)
    num_tokens: int = 0


def figures_of(done: Sequence[Exchange], wall_s: float, used_s: float) -> dict[str, Any]:
    """What one measurement says; `used_s` is the CPU time of the process that measured it.

    `token_ms`: of each answer, from its first event to its last by the tokens between them.
    """
    return {
        "wall_s": wall_s,
        "cpu_s": used_s,
        "num_requests": len(done),
        "num_tokens": sum(one.num_tokens for one in done),
        "num_chunks": sum(len(one.arrived_s) for one in done),
        "first_token_ms": [1000 * (one.arrived_s[0] - one.sent_s) for one in done],
        "chunk_gap_ms": [
            1000 * (after - before) for one in done for before, after in pairwise(one.arrived_s)
        ],
        "token_ms": [
            1000 * (one.arrived_s[-1] - one.arrived_s[0]) / max(1, one.num_tokens - 1)
            for one in done
        ],
    }


def cpu_s() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
