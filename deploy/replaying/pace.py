"""When a replayed request is due. Pure: the clock is the caller's."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """As fast as possible, or `factor` times the pace of the original."""

    factor: float | None = None
    _first_ms: int | None = field(default=None, init=False)

    @classmethod
    def parse(cls, text: str) -> "Pace":
        """`max`, `original`, or a factor. Raises: ValueError."""
        if text == "max":
            return cls()
        if text == "original":
            return cls(1.0)
        try:
            factor = float(text)
        except ValueError:
            factor = 0.0
        if not 0.001 <= factor <= 1e6:
            raise ValueError("is no pace: write max, original, or how many times as fast, as 10")
        return cls(factor)

    def due_s(self, timestamp_ms: int) -> float:
        """Seconds after the start at which the request with this original time is due; at once
        where its producer gave none (0 or -1).
        """
        if timestamp_ms <= 0:
            return 0.0
        if self._first_ms is None:
            self._first_ms = timestamp_ms
        if self.factor is None:
            return 0.0
        return max(0, timestamp_ms - self._first_ms) / 1000 / self.factor
