"""The picture of lag and workers over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.scaling_run import Part
from headrace.deploy.plotting import new_figure, save

_STATES = (("ready", "tab:green"), ("starting", "tab:orange"), ("draining", "tab:gray"))


def plot(parts: Sequence[Part], path: Path) -> None:
    """Two rows for each part: unfinished requests, and the workers by what they do."""
    figure, rows = new_figure(2 * len(parts), share_x=False)
    for index, part in enumerate(parts):
        lag, workers = rows[2 * index], rows[2 * index + 1]
        _draw_lag(lag, part)
        _draw_workers(workers, part)
        lag.sharex(workers)
        lag.tick_params(labelbottom=False)
    figure.align_ylabels(rows)
    save(figure, path)


def _draw_lag(axes: Any, part: Part) -> None:
    known = [one for one in part.samples if one.records is not None]
    times, records = [one.at_s for one in known], [one.records for one in known]
    axes.fill_between(times, records, step="post", alpha=0.2)
    axes.step(times, records, where="post")
    axes.set_title(part.title, loc="left")
    axes.set_ylabel("unfinished\nrequests")
    axes.set_ylim(bottom=0)


def _draw_workers(axes: Any, part: Part) -> None:
    times = [one.at_s for one in part.samples]
    states = [[getattr(one, name) for one in part.samples] for name, _ in _STATES]
    axes.stackplot(
        times,
        states,
        step="post",
        labels=[name for name, _ in _STATES],
        colors=[colour for _, colour in _STATES],
        alpha=0.7,
    )
    for at_s, _ in part.events:
        axes.axvline(at_s, color="black", linewidth=0.6, linestyle=":")
    axes.set_ylabel("workers")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper right", ncols=len(_STATES), frameon=False)
