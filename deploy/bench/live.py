"""How a run goes, while it goes: figures each second on a terminal, a line each 10 s in a pipe.

All of it goes to stderr.
"""

import asyncio
from typing import Any

import numpy as np

from headrace.deploy.bench.run import LoadRun
from headrace.deploy.console import note, stderr_console, stderr_is_terminal

ON_TERMINAL_S, IN_PIPE_S = 1.0, 10.0


class LiveFigures:
    """Tells of a run until `watch` is cancelled."""

    def __init__(self, run: LoadRun) -> None:
        self._run = run
        self._num_told = 0

    async def watch(self) -> None:
        """Cancel: the only way to end it; the terminal is left as it was."""
        if stderr_is_terminal():
            await self._on_terminal()
        while True:
            await asyncio.sleep(IN_PIPE_S)
            note(self.line())

    async def _on_terminal(self) -> None:
        from rich.live import Live
        from rich.text import Text

        with Live(console=stderr_console(), auto_refresh=False, transient=True) as live:
            while True:
                live.update(Text(self.line(), style="cyan", no_wrap=True), refresh=True)
                await asyncio.sleep(ON_TERMINAL_S)

    def line(self) -> str:
        """`12 s: 120 sent, 8 running, …`."""
        run = self._run
        recorder, now_s = run.recorder, run.now_s
        second = recorder.seconds.get(int(now_s) - 1)
        parts = [
            f"{recorder.num_sent} sent",
            f"{recorder.num_running} running",
            f"{recorder.num_ended} ended",
            f"{second.num_tokens if second else 0} tok/s",
            f"first token p50 {_at(recorder.recent_first_token_s(now_s), 50)}",
            f"p99 {_at(recorder.recent_first_token_s(now_s), 99)}",
            f"{recorder.num_errors} errors",
        ]
        if run.sending_s is not None:
            parts.append("waiting for the last answers")
        return f"{now_s:.0f} s: " + ", ".join(parts)


def _at(values: list[float], percent: float) -> Any:
    return f"{np.percentile(values, percent):.3f} s" if values else "-"
