"""A report as a picture: outcomes, where answers part, and what they took."""

from pathlib import Path
from typing import Any

from headrace.deploy.plotting import new_figure, save
from headrace.deploy.replaying.comparison import Outcome
from headrace.deploy.replaying.report import Report

_COLOURS = {
    Outcome.EXACT: "tab:green",
    Outcome.DRIFT: "tab:orange",
    Outcome.DIFFERENT: "tab:red",
    Outcome.NOT_COMPARABLE: "tab:gray",
}


def plot_report(report: Report, path: Path, title: str) -> None:
    """Draw it into `path`. Raises: PlotError."""
    figure, (outcomes, partings, times) = new_figure(3, share_x=False)
    figure.suptitle(title)
    _draw_outcomes(outcomes, report)
    _draw_partings(partings, report)
    _draw_times(times, report)
    save(figure, path)


def _draw_outcomes(axes: Any, report: Report) -> None:
    names = list(_COLOURS)
    counts = [report.counts[name] for name in names]
    bars = axes.barh([str(name) for name in names], counts, color=[_COLOURS[n] for n in names])
    axes.bar_label(bars, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("requests")


def _draw_partings(axes: Any, report: Report) -> None:
    found = {
        outcome: [
            row.verdict.parting.token
            for row in report.differing
            if row.verdict.outcome is outcome and row.verdict.parting
        ]
        for outcome in (Outcome.DRIFT, Outcome.DIFFERENT)
    }
    axes.set_xlabel("first token that differs")
    axes.set_ylabel("requests")
    if not any(found.values()):
        axes.text(0.5, 0.5, "none differs", ha="center", va="center", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.hist(
        list(found.values()),
        bins=30,
        stacked=True,
        color=[_COLOURS[outcome] for outcome in found],
        label=[str(outcome) for outcome in found],
    )
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper right")  # "best" takes seconds on a loaded machine, and warns


def _draw_times(axes: Any, report: Report) -> None:
    """Cumulative shares, so that two recordings of any size can be laid over each other."""
    for name, colour in (("recorded", "tab:blue"), ("answered", "tab:purple")):
        answers = [getattr(row, name) for row in report.rows]
        times = sorted(
            answer.work_ms / 1000 for answer in answers if answer and answer.work_ms is not None
        )
        shares = [(number + 1) / len(times) for number in range(len(times))]
        axes.step(times, shares, where="post", color=colour, label=name)
    axes.set_xlabel("from start of prefill to last token, s")
    axes.set_ylabel("share of answers")
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right")
