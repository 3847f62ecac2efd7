"""Pictures of measurements: one look for all of them. matplotlib is an extra, `headrace[plot]`.

Knows nothing of what is measured.
"""

from pathlib import Path
from typing import Any

from headrace.schemas.errors import HeadraceError

WIDTH_INCHES = 9.0
ROW_INCHES = 2.6
DPI = 120


class PlotError(HeadraceError):
    """The picture cannot be drawn or written."""


def new_figure(num_rows: int = 1, *, share_x: bool = True) -> tuple[Any, list[Any]]:
    """A figure with `num_rows` axes, one below the other; nothing is shown on a screen.

    Raises: PlotError where matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise PlotError("a plot needs matplotlib: pip install 'headrace[plot]'") from problem
    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * num_rows), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    rows = list(figure.subplots(num_rows, 1, sharex=share_x, squeeze=False)[:, 0])
    for axes in rows:
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, rows


def save(figure: Any, path: Path) -> None:
    """Write it as the kind of file that the name says (png, svg, pdf).

    Raises: PlotError for another kind or a file that cannot be written.
    """
    try:
        figure.savefig(path)
    except (OSError, ValueError) as problem:
        raise PlotError(f"{path}: {problem}") from problem
