"""The file of `--out`: a JSON line for each request, written as it ends."""

from pathlib import Path
from types import TracebackType
from typing import IO, Self

import orjson

from headrace.deploy.bench.exchange import Exchange


class RowFile:
    """A context manager; opened before the run, so that a bad path is told at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises: OSError."""
        self._file = self._path.open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, exchange: Exchange) -> None:
        """Add a request that has ended."""
        if self._file is not None:
            self._file.write(orjson.dumps(_row(exchange)) + b"\n")


def _row(exchange: Exchange) -> dict[str, object]:
    due_s = exchange.due_s
    return {
        "request_id": exchange.request_id,
        "session_id": exchange.turn.session.session_id,
        "turn": exchange.turn.number,
        "measured": exchange.turn.measured,
        "outcome": exchange.outcome,
        "code": exchange.code,
        "due_s": due_s,
        "generator_lag_s": exchange.lag_s,
        "ttft_s": None if exchange.first_s is None else exchange.first_s - due_s,
        "e2e_s": None if exchange.ended_s is None else exchange.ended_s - due_s,
        "pause_s": exchange.longest_pause_s,
        "num_events": exchange.num_events,
        "num_repeats": exchange.num_repeats,
        "num_restarts": exchange.num_restarts,
        "prompt_tokens": exchange.prompt_tokens,
        "cached_tokens": exchange.cached_tokens,
        "output_tokens": exchange.num_tokens,
    }
