"""Which blocks Redis held a moment ago. Plain state, bounded."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

MAX_KNOWN = 50_000
"""1.6 million tokens; about 10 MB of memory."""

BELIEVED_S = 300.0
"""After this Redis is asked again, which also renews the time to live. Redis may have evicted a
block or lost all of them meanwhile: then it is written again.
"""


class KnownBlocks:
    """Hashes with the time at which Redis was seen to hold them; the oldest go first."""

    def __init__(self) -> None:
        self._seen_s: OrderedDict[bytes, float] = OrderedDict()

    def add(self, hashes: Iterable[bytes], now_s: float) -> None:
        for one in hashes:
            self._seen_s[one] = now_s
            self._seen_s.move_to_end(one)
        while len(self._seen_s) > MAX_KNOWN:
            self._seen_s.popitem(last=False)

    def discard(self, hashes: Iterable[bytes]) -> None:
        for one in hashes:
            self._seen_s.pop(one, None)

    def unknown(self, hashes: Sequence[bytes], now_s: float) -> list[bytes]:
        """Those that Redis may not hold, in their order."""
        return [one for one in hashes if now_s - self._seen_s.get(one, float("-inf")) > BELIEVED_S]

    def __len__(self) -> int:
        return len(self._seen_s)
