"""A circuit breaker: after a failure the store is left alone for a while. No I/O, no clock."""

FIRST_PAUSE_S = 2.0
MAX_PAUSE_S = 30.0
"""A store that fails again and again is tried this often."""


class Breaker:
    """Closed at first. A failure opens it for FIRST_PAUSE_S, each further one for twice as long up
    to MAX_PAUSE_S; behind a pause one caller may try, and the others wait for what it finds.
    """

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._opened_s: float | None = None
        self._retry_s = 0.0

    def try_enter(self, now_s: float) -> bool:
        """Whether the store may be called now; who was let in reports how it went."""
        if self._opened_s is None:
            return True
        if now_s < self._retry_s:
            return False
        self._retry_s = now_s + self._pause_s  # one tries; another if it never reports
        return True

    def succeeded(self) -> None:
        """The store answered."""
        self._pause_s, self._opened_s = 0.0, None

    def failed(self, now_s: float, *, entered_s: float) -> None:
        """The call that was let in at `entered_s` failed. Those that were under way when the first
        one failed do not make the pause longer.
        """
        if self._opened_s is not None and entered_s < self._opened_s:
            return
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2) or FIRST_PAUSE_S
        self._opened_s, self._retry_s = now_s, now_s + self._pause_s
