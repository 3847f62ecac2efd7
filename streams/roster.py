"""Which workers live: a key for each, which says until when its last sign of life counts.

That of a worker that left in order counts as long as journals are kept, so that nobody takes what
it handed over for what it died of.
"""

import asyncio
from contextlib import suppress

from headrace.schemas.errors import UnavailableError
from headrace.schemas.keys import Keys
from headrace.streams import lua
from headrace.streams.redis_scripts import Call, Scripts


class Roster:
    """This worker's entry, and a look at those of others.

    `signs_for_s`: how long a sign of life counts. It must be over when the group gives the
    partitions of a worker that died to another, so it is less than the session timeout.
    """

    def __init__(
        self, scripts: Scripts, keys: Keys, worker_id: str, *, signs_for_s: float, keep_s: float
    ) -> None:
        self._scripts, self._keys, self._worker_id = scripts, keys, worker_id
        self._signs_for_s, self._keep_s = signs_for_s, keep_s

    async def sign_on(self) -> None:
        """Raises: UnavailableError."""
        await self._sign(self._signs_for_s)

    async def stay(self) -> None:
        """Sign on for ever. Cancel: the entry runs out."""
        while True:
            await asyncio.sleep(self._signs_for_s / 3)
            with suppress(UnavailableError):  # while Redis is away nobody reads it either
                await self.sign_on()

    async def leave(self) -> None:
        """What this worker has is handed over in order. Raises: UnavailableError."""
        await self._sign(self._keep_s)

    async def sign_off(self) -> None:
        """This worker has failed. Raises: UnavailableError."""
        await self._scripts.run_one(Call(lua.SIGN_OFF, [self._key(self._worker_id)], []))

    async def is_gone(self, worker_id: str) -> bool:
        """Whether another worker has died. False for this one.

        Raises: UnavailableError.
        """
        if worker_id == self._worker_id:
            return False
        answer = await self._scripts.run_one(Call(lua.IS_SIGNED_ON, [self._key(worker_id)], []))
        return int(answer) == 0

    async def _sign(self, for_s: float) -> None:
        args = [int(for_s * 1000), int(self._keep_s * 1000)]
        call = Call(lua.SIGN_ON, [self._key(self._worker_id)], args)
        await self._scripts.run_one(call)

    def _key(self, worker_id: str) -> str:
        return self._keys.worker(worker_id)
