"""How many are done: a bar on a terminal, a line each 10 s in a pipe."""

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.deploy.console import note, stderr_console, stderr_is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

MANY = 20
"""Fewer are done before anybody could read a bar, unless each is slow."""

IN_PIPE_S = 10.0
JOIN_TIMEOUT_S = 5.0


class Counted:
    """A context manager around a loop over `total` things; call `advance` after each.

    `total`: None where nobody knows it. `are_slow`: each may take seconds.
    """

    def __init__(
        self, title: str, total: int | None, *, are_slow: bool = False, pipe_s: float = IN_PIPE_S
    ) -> None:
        self._title, self._total, self._are_slow, self._pipe_s = title, total, are_slow, pipe_s
        self._num_done = 0
        self._started_s = time.monotonic()
        self._bar: Progress | None = None
        self._over = threading.Event()
        self._telling = threading.Thread(target=self._tell, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._started_s = time.monotonic()
        if not stderr_is_terminal():
            self._telling.start()  # a thread, because the loop may block, or wait for one thing
        elif self._are_slow or self._total is None or self._total >= MANY:
            self._bar = self._started_bar()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._telling.is_alive():
            self._telling.join(JOIN_TIMEOUT_S)
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """One more is done."""
        self._num_done += 1
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def line(self) -> str:
        """`20 s: replaying: 120 of 500`."""
        of_total = "" if self._total is None else f" of {self._total}"
        elapsed_s = time.monotonic() - self._started_s
        return f"{elapsed_s:.0f} s: {self._title}: {self._num_done}{of_total}"

    def _tell(self) -> None:
        while not self._over.wait(self._pipe_s):
            note(self.line())

    def _started_bar(self) -> "Progress":
        from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

        columns = Progress.get_default_columns() if self._total is not None else ()
        bar = Progress(
            *(columns or ("{task.description}", TimeElapsedColumn())),
            MofNCompleteColumn(),
            console=stderr_console(),
            redirect_stdout=sys.stdout.isatty(),  # lines stand above the bar
            transient=True,
        )
        bar.add_task(self._title, total=self._total)
        bar.start()
        return bar
