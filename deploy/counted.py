"""How many of a known number are done: a bar on a terminal, nothing in a pipe."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.deploy.console import stderr_console, stderr_is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

MANY = 20
"""Fewer are done before anybody could read a bar."""


class Counted:
    """A context manager around a loop over `total` things; call `advance` after each."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = title, total
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._total >= MANY and stderr_is_terminal():
            from rich.progress import MofNCompleteColumn, Progress

            self._bar = Progress(
                *Progress.get_default_columns(),
                MofNCompleteColumn(),
                console=stderr_console(),
                redirect_stdout=sys.stdout.isatty(),  # lines stand above the bar
                transient=True,
            )
            self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """One more is done."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
