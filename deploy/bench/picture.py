"""A run as a picture: latency over time, throughput, and how latency is distributed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.deploy.bench.report import Measured
from headrace.deploy.plotting import new_figure, save

MAX_POINTS = 20_000
NUM_BINS = 40
MIN_IN_BIN = 5
FIRST, WHOLE, OTHER = "#1f77b4", "#d95f02", "#555555"
_TICKS = (50.0, 90.0, 99.0, 99.9, 99.99)


def draw(run: Measured, path: Path, *, title: str) -> None:
    """Write the picture. Raises: PlotError."""
    figure, (over_time, throughput, distribution) = new_figure(3, share_x=False)
    figure.suptitle(title, fontsize=10)
    recorder = run.recorder
    for samples, name, colour in (
        (recorder.whole, "whole answer", WHOLE),
        (recorder.first, "first token", FIRST),
    ):
        _scatter(over_time, samples.column(0), samples.column(1), name=name, colour=colour)
        _distribute(distribution, samples.column(1), name=name, colour=colour)
    _distribute(distribution, recorder.token.column(), name="between tokens", colour=OTHER)
    _throughput(throughput, run)
    _label(over_time, throughput, distribution)
    over_time.set_xlim(throughput.get_xlim())
    save(figure, path)


def _label(over_time: Any, throughput: Any, distribution: Any) -> None:
    over_time.set(ylabel="seconds", yscale="log", xlabel="when the request was due, seconds")
    throughput.set(ylabel="tokens per second", xlabel="seconds")
    distribution.set(ylabel="seconds", yscale="log", xscale="log", xlabel="percentile")
    distribution.set_xticks([_place(percent) for percent in _TICKS], [f"{p:g}" for p in _TICKS])
    distribution.minorticks_off()
    for axes in (over_time, distribution):
        axes.yaxis.set_major_formatter("{x:g}")
    for axes in (over_time, throughput, distribution):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=7, frameon=False, ncols=4)


def _scatter(axes: Any, due_s: Any, latency_s: Any, *, name: str, colour: str) -> None:
    """A point for each request; p50 and p99 where enough of them are together."""
    if not due_s.size:
        return
    step = -(-due_s.size // MAX_POINTS)
    axes.plot(due_s[::step], latency_s[::step], ".", color=colour, markersize=2.5, alpha=0.35)
    edges = np.linspace(due_s.min(), due_s.max() + 1e-9, NUM_BINS + 1)
    bins = np.digitize(due_s, edges)
    full = [i for i in range(1, NUM_BINS + 1) if (bins == i).sum() >= MIN_IN_BIN]
    centres = [(edges[i - 1] + edges[i]) / 2 for i in full]
    for percent, style in ((50, "-"), (99, "--")):
        line = [np.percentile(latency_s[bins == i], percent) for i in full]
        axes.plot(centres, line, style, color=colour, linewidth=1.2, label=f"{name} p{percent}")


def _throughput(axes: Any, run: Measured) -> None:
    seconds = run.recorder.seconds
    times = list(range(max(seconds, default=0) + 1))
    tokens = [seconds[t].num_tokens if t in seconds else 0 for t in times]
    running = [seconds[t].num_running if t in seconds else 0 for t in times]
    axes.step(times, tokens, where="post", color=FIRST, label="tokens/s")
    axes.set_ylim(bottom=0, top=max(tokens, default=0) * 1.1 or 1)
    axes.axvspan(run.start_s, run.end_s, color="#000000", alpha=0.05, label="measured")
    right = axes.twinx()
    right.step(times, running, where="post", color=WHOLE, linewidth=1)
    right.set_ylabel("running", color=WHOLE)
    right.set_ylim(bottom=0)
    axes.plot([], [], color=WHOLE, label="requests running")


def _distribute(axes: Any, values: Any, *, name: str, colour: str) -> None:
    if not values.size:
        return
    ranks = np.unique(np.geomspace(1, values.size, 400).astype(int))  # few beyond the last 9
    ordered = np.sort(values)[::-1]
    axes.plot(_places(ranks / values.size), ordered[ranks - 1], color=colour, label=name)


def _places(shares_above: Sequence[float] | Any) -> Any:
    return 1 / np.asarray(shares_above)


def _place(percent: float) -> float:
    """On the axis: each nine more is as far again."""
    return 1 / (1 - percent / 100)
