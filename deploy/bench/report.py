"""What a run comes to: figures by name, the JSON object, and the table for people.

Sans I/O. Units: seconds, tokens, and requests or tokens per second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.deploy.bench.exchange import Outcome
from headrace.deploy.bench.recorder import MAX_TURNS_APART, Recorder, Second
from headrace.deploy.bench.samples import MAX_SAMPLES, PERCENTS, STATISTICS, summary
from headrace.deploy.bench.thresholds import Threshold

LATENCIES = {
    "ttft": "time to first token",
    "inter_token": "between tokens",
    "pause": "longest pause of an answer",
    "e2e": "whole answer",
    "session": "whole session",
    "generator_lag": "the generator's own lag",
}
"""Name of each latency, and what it is called in the table."""

COUNTS = (
    *("requests", "finished", "failed", "cancelled", "not_sent", "unfinished", "wrong"),
    *("errors", "error_rate", "requests_s", "finished_s", "prompt_tok_s", "output_tok_s"),
)
FIGURES = frozenset(
    (*COUNTS, *(f"{name}_{statistic}" for name in LATENCIES for statistic in STATISTICS))
)
"""What `--fail-if` may name."""

LATE_S = 0.1
"""A p99 lag of the generator that is worth a warning: a tenth of the pauses that people notice."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A recorder, and the part of the run that throughput is counted over."""

    recorder: Recorder
    start_s: float
    """The warm-up's end."""
    end_s: float
    """The end of sending, or of the last answer where it was sent for less than a second."""
    sessions: dict[str, int]

    @property
    def window_s(self) -> float:
        """Length of that part."""
        return max(0.0, self.end_s - self.start_s)


def figures_of(run: Measured) -> dict[str, float | None]:
    """Each of FIGURES; None where nothing was measured."""
    latencies = _latencies(run.recorder)
    found: dict[str, float | None] = dict(_counts(run))
    for name in LATENCIES:
        for statistic in STATISTICS:
            found[f"{name}_{statistic}"] = latencies[name].get(statistic)
    return found


def report_of(
    run: Measured, options: dict[str, Any], thresholds: Sequence[Threshold]
) -> dict[str, Any]:
    """The JSON object of a run."""
    recorder, figures = run.recorder, figures_of(run)
    counts = _counts(run)
    return {
        "options": options,
        "window_s": run.window_s,
        "requests": {name: counts[name] for name in COUNTS[:7]},
        "errors": dict(sorted(recorder.errors.items())),
        "wrong": recorder.wrong,
        "num_wrong": recorder.num_wrong,
        "warm_up_requests": recorder.num_warm_up,
        "repeated_events": recorder.num_repeats,
        "restarted_answers": recorder.num_restarts,
        "per_second": {name: counts[name] for name in COUNTS[9:]},
        "error_rate": counts["error_rate"],
        "tokens": {
            "prompt": recorder.tokens.prompt,
            "cached_prompt": recorder.tokens.cached,
            "output": recorder.tokens.output,
        },
        "sessions": run.sessions,
        "latency_s": _latencies(recorder),
        "by_turn": {
            name: {"ttft": summary(first), "e2e": summary(whole)}
            for name, first, whole in _by_turn(recorder)
        },
        "samples_are_exact": _are_exact(recorder),
        "kept_up": kept_up(figures),
        "thresholds": [
            {
                "text": str(one),
                "value": figures[one.figure],
                "failed": one.is_met(figures[one.figure]),
            }
            for one in thresholds
        ],
    }


def kept_up(figures: dict[str, float | None]) -> bool:
    """Whether the generator sent when it meant to."""
    return (figures["generator_lag_p99"] or 0.0) <= LATE_S


def reasons_to_fail(
    run: Measured, thresholds: Sequence[Threshold], *, interrupted: bool
) -> list[str]:
    """Why the run's exit code is 1; one line each."""
    recorder, figures = run.recorder, figures_of(run)
    num_unfinished = recorder.outcomes[Outcome.UNFINISHED]
    found = [f"wrong answer: {text}" for text in recorder.wrong[:5]]
    if recorder.num_wrong > len(found):
        found.append(f"{recorder.num_wrong} wrong answers in all")
    if num_unfinished:
        found.append(f"{num_unfinished} unfinished after the wait for answers (--drain-timeout)")
    if not recorder.outcomes[Outcome.FINISHED] and not interrupted:
        found.append("no measured request was answered")
    for one in thresholds:
        value = figures[one.figure]
        if one.is_met(value):
            found.append(f"{one}: {'nothing was measured' if value is None else f'{value:g}'}")
    if interrupted:
        found.append("interrupted")
    return found


def table(report: dict[str, Any]) -> str:
    """For people, as plain text."""
    rows = [("seconds", "mean", *PERCENTS)]
    for name, title in LATENCIES.items():
        rows.append((title, *_cells(report["latency_s"][name])))
    for turn, found in report["by_turn"].items():
        rows.append((f"  first token, turn {turn}", *_cells(found["ttft"])))
    lines = [*_head(report), "", *_aligned(rows)]
    if report["errors"]:
        lines += ["", *(f"{count} of them: {code}" for code, count in report["errors"].items())]
    if not report["samples_are_exact"]:
        lines.append(f"percentiles are of {MAX_SAMPLES:,} values, drawn evenly from all")
    return "\n".join(lines)


def _head(report: dict[str, Any]) -> list[str]:
    requests, rates, tokens = report["requests"], report["per_second"], report["tokens"]
    sessions = report["sessions"]
    others = [f"{n} {name.replace('_', ' ')}" for name, n in list(requests.items())[2:] if n]
    cached = f", {tokens['cached_prompt']:,} of them cached" if tokens["cached_prompt"] else ""
    lines = [
        f"{requests['requests']} requests in {report['window_s']:.1f} s after the warm-up "
        f"({report['warm_up_requests']} in it): "
        + ", ".join([f"{requests['finished']} finished", *others]),
        f"{rates['requests_s']:.2f} requests/s sent, {rates['finished_s']:.2f} finished; "
        f"{rates['output_tok_s']:.1f} tokens/s out, {rates['prompt_tok_s']:.1f} in",
        f"{tokens['output']:,} tokens out, {tokens['prompt']:,} in{cached}",
        f"{sessions['begun']} sessions: {sessions['complete']} complete, "
        f"{sessions['given_up']} given up, {sessions['cut']} cut by the end",
    ]
    if report["repeated_events"] or report["restarted_answers"]:
        lines.append(
            f"{report['repeated_events']} events came twice and were dropped, "
            f"{report['restarted_answers']} answers began again"
        )
    return lines


def _counts(run: Measured) -> dict[str, float]:
    recorder = run.recorder
    outcomes = {outcome.value: recorder.outcomes[outcome] for outcome in Outcome}
    num_requests = sum(outcomes.values())
    first = round(run.start_s)
    num_seconds = max(1, round(run.end_s) - first)
    inside = [recorder.seconds.get(first + i, Second()) for i in range(num_seconds)]

    def rate(name: str) -> float:
        return float(sum(getattr(second, name) for second in inside)) / num_seconds

    return {
        "requests": num_requests,
        **outcomes,
        "errors": recorder.num_errors,
        "error_rate": recorder.num_errors / num_requests if num_requests else 0.0,
        "requests_s": rate("num_sent"),
        "finished_s": rate("num_finished"),
        "prompt_tok_s": rate("num_prompt_tokens"),
        "output_tok_s": rate("num_tokens"),
    }


def _latencies(recorder: Recorder) -> dict[str, dict[str, float]]:
    return {
        "ttft": summary(recorder.first.column(1)),
        "inter_token": summary(recorder.token.column()),
        "pause": summary(recorder.pause.column()),
        "e2e": summary(recorder.whole.column(1)),
        "session": summary(recorder.session.column()),
        "generator_lag": summary(recorder.lag.column()),
    }


def _by_turn(recorder: Recorder) -> list[tuple[str, Any, Any]]:
    """Rows of first and later turns, where there are later ones."""
    first, whole = recorder.first, recorder.whole
    first_turns, whole_turns = first.column(2), whole.column(2)
    if not (first_turns > 1).any():
        return []
    found = []
    for number in range(1, MAX_TURNS_APART + 1):
        is_rest = number == MAX_TURNS_APART
        name = f"{number}+" if is_rest else str(number)
        mine = first_turns >= number if is_rest else first_turns == number
        theirs = whole_turns >= number if is_rest else whole_turns == number
        found.append((name, first.column(1)[mine], whole.column(1)[theirs]))
    return found


def _are_exact(recorder: Recorder) -> bool:
    every = (
        *(recorder.first, recorder.whole, recorder.token),
        *(recorder.pause, recorder.session, recorder.lag),
    )
    return all(samples.is_exact for samples in every)


def _cells(found: dict[str, float]) -> list[str]:
    return [_seconds(found[name]) if name in found else "-" for name in STATISTICS]


def _seconds(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
