"""Who gives way to whom after a hand-over: requests that nobody has begun to answer wait, for a
moment, for those in mid-sentence.

A worker that takes partitions over may find more in them than its batch has rows. What somebody
reads already takes longer to prepare, because its KV state is fetched: new requests would take the
rows before it, for a whole answer.
"""

import asyncio
import time
from contextlib import suppress

GIVE_WAY_S = 1.0
"""At the most, for each: longer than a fetch from Redis may take."""


class Resuming:
    """The generations in mid-sentence that the engine does not have yet."""

    def __init__(self) -> None:
        self._until_s: dict[object, float] = {}
        self._over = asyncio.Event()
        self._over.set()

    def begin(self, one: object) -> None:
        """`one` was found in mid-sentence."""
        self._until_s[one] = time.monotonic() + GIVE_WAY_S
        self._over.clear()

    def end(self, one: object) -> None:
        """The engine has it, or it is not gone on with here. Of others, nothing is noted."""
        self._until_s.pop(one, None)
        if not self._until_s:
            self._over.set()

    async def give_way(self) -> None:
        """Wait until the engine has them all, or has been waited for. Cancel: safe."""
        left_s = max(self._until_s.values(), default=0.0) - time.monotonic()
        if left_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._over.wait()
