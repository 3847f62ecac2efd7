"""A report as a picture: outcomes, where answers part, and what they took."""

from pathlib import Path
from typing import Any

from headrace.deploy.plotting import new_figure, save
from headrace.deploy.replaying.comparison import Outcome
from headrace.deploy.replaying.report import Report

MAX_BINS = 30

_COLOURS = {
    Outcome.EXACT: "tab:green",
    Outcome.DRIFT: "tab:orange",
    Outcome.DIFFERENT: "tab:red",
    Outcome.NOT_COMPARABLE: "tab:gray",
}


def plot_report(report: Report, path: Path) -> None:
    """Draw it into `path`. Raises: PlotError."""
    save(draw_report(report), path)


def draw_report(report: Report) -> Any:
    """The figure. Raises: PlotError."""
    figure, (outcomes, partings, times) = new_figure(3, share_x=False)
    recorded, now = report.models()
    figure.suptitle(f"{len(report.rows)} requests: recorded {recorded}, now {now}")
    _draw_outcomes(outcomes, report)
    _draw_partings(partings, report)
    _draw_times(times, report)
    return figure


def _draw_outcomes(axes: Any, report: Report) -> None:
    names = list(_COLOURS)
    counts = [report.counts[name] for name in names]
    bars = axes.barh([str(name) for name in names], counts, color=[_COLOURS[n] for n in names])
    axes.bar_label(bars, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("requests")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_partings(axes: Any, report: Report) -> None:
    found = {
        outcome: [
            row.verdict.parting.token
            for row in report.differing
            if row.verdict.outcome is outcome and row.verdict.parting
        ]
        for outcome in (Outcome.DRIFT, Outcome.DIFFERENT)
    }
    found = {outcome: tokens for outcome, tokens in found.items() if tokens}
    if not found:
        axes.text(0.5, 0.5, "none differs", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    axes.set_xlabel("first token that differs")
    axes.set_ylabel("requests")
    axes.hist(
        list(found.values()),
        bins=bin_edges(max(map(max, found.values()))),
        stacked=True,
        color=[_COLOURS[outcome] for outcome in found],
        label=[str(outcome) for outcome in found],
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper right")  # "best" takes seconds on a loaded machine, and warns


def bin_edges(highest: int) -> list[float]:
    """Of at most `MAX_BINS` bins for 0 to `highest`, each with a whole number in its middle."""
    width = highest // MAX_BINS + 1
    width += 1 - width % 2  # an even number has no middle
    return [-0.5 + width * number for number in range(highest // width + 2)]


def _draw_times(axes: Any, report: Report) -> None:
    """Cumulative shares, so that two recordings of any size can be laid over each other."""
    sides = (
        ("recorded", "tab:blue", [row.recorded for row in report.rows]),
        ("now", "tab:purple", [row.answered for row in report.rows]),
    )
    for name, colour, answers in sides:
        times = sorted(
            answer.work_ms / 1000 for answer in answers if answer and answer.work_ms is not None
        )
        shares = [(number + 1) / len(times) for number in range(len(times))]
        axes.step(times, shares, where="post", color=colour, label=name)
    axes.set_xlabel("from start of prefill to last token, s")
    axes.set_ylabel("share of answers")
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right")
