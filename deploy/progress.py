"""How far the fetching of a model is: a bar on a terminal, a few plain lines in a pipe."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.deploy.console import note, stderr_console, stderr_is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_STEP_PERCENT = 25
_TITLES = {"fetch": "fetching", "convert": "converting"}


class ModelProgress:
    """A context manager around `resolve_model`; hand it `show` as `on_progress`."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._stage: str | None = None
        self._percent = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, stage: str, done: int, total: int | None) -> None:
        """Say that `done` of `total` is reached; the amounts are the stage's own."""
        title = f"{_TITLES.get(stage, stage)} {self._model}"
        is_new, self._stage = stage != self._stage, stage
        if stderr_is_terminal():
            self._show_bar(title, done, total, is_new=is_new)
        else:
            self._show_line(title, done, total, is_new=is_new)

    def _show_bar(self, title: str, done: int, total: int | None, *, is_new: bool) -> None:
        from rich.progress import Progress

        if self._bar is None:
            self._bar = Progress(console=stderr_console())
            self._bar.start()
        if is_new or self._task is None:
            self._task = self._bar.add_task(title, total=total)
        self._bar.update(self._task, completed=done, total=total)

    def _show_line(self, title: str, done: int, total: int | None, *, is_new: bool) -> None:
        percent = 100 * done // total if total else 0
        if is_new or percent >= self._percent + _STEP_PERCENT:
            self._percent = percent
            note(f"{title}: {percent} %" if total else title)
        sys.stderr.flush()
