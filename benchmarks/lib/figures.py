"""From repetitions to figures: best and median of those that count, percentiles, ratios. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.lib.process import Repetition


@dataclass(frozen=True)
class Figures:
    """What the repetitions of one engine and batch say.

    `disturbed` is True where no repetition was left alone, so that the figures are from disturbed
    ones. Units: tok_s are generated tokens per second of the whole run, prefill included; a first
    token's time counts from the moment that all requests were given.
    """

    tok_s_best: float
    tok_s_median: float
    first_token_ms: float | None
    between_tokens_ms_p50: float | None
    between_tokens_ms_p99: float | None
    repetitions: int
    repetitions_dropped: int
    disturbed: bool
    others_s: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed.

    Raises: ValueError if there is none.
    """
    if not values:
        raise ValueError("no values")
    rank = max(-(-len(values) * percent // 100), 1)
    return sorted(values)[int(rank) - 1]


def figures(repetitions: Sequence[Repetition]) -> Figures:
    """The figures of the undisturbed repetitions, or of all if none was left alone."""
    kept = [one for one in repetitions if not one.is_disturbed]
    disturbed, kept = not kept, kept or list(repetitions)
    speeds = [one.run.num_tokens / one.run.wall_s for one in kept]
    firsts = [row[0] for one in kept for row in one.run.token_times_s if row]
    gaps = [
        after - before
        for one in kept
        for row in one.run.token_times_s
        for before, after in pairwise(row)
    ]
    return Figures(
        tok_s_best=max(speeds),
        tok_s_median=statistics.median(speeds),
        first_token_ms=statistics.median(firsts) * 1e3 if firsts else None,
        between_tokens_ms_p50=percentile(gaps, 50) * 1e3 if gaps else None,
        between_tokens_ms_p99=percentile(gaps, 99) * 1e3 if gaps else None,
        repetitions=len(kept),
        repetitions_dropped=len(repetitions) - len(kept),
        disturbed=disturbed,
        others_s=sum(one.others_s for one in kept),
    )


def best_of_phases(repetitions: Sequence[Repetition], num_tokens: int) -> dict[str, float]:
    """The limit in tokens per second for each kind of weights alone, from its best phases."""
    details = [one.run.detail for one in repetitions if not one.is_disturbed]
    details = details or [one.run.detail for one in repetitions]
    best_s = {name: min(detail[name] for detail in details) for name in details[0]}
    return {
        kind: num_tokens / (best_s[f"{kind}_prefill_s"] + best_s[f"{kind}_decode_s"])
        for kind in ("plain", "packed")
    }
