"""Step 4: claim a request's journal, or find out that there is nothing to do here."""

import asyncio
import time
from contextlib import suppress
from enum import Enum

from headrace.schemas.errors import UnavailableError
from headrace.schemas.request import DecodedRequest
from headrace.streams.generation import Generation, Standing
from headrace.streams.journal import Claim, ClaimKind, Journal
from headrace.streams.ownership import Lease, Ownership
from headrace.streams.redis_scripts import Scripts

POLL_INTERVAL_S = 0.02
"""How soon a returning lease, journal or token is seen."""


class Outcome(Enum):
    """How an attempt to deliver ended."""

    DELIVERED = "delivered"
    """The broker has the last event, and the journal was still ours then."""
    DONE_BEFORE = "done before"
    """An earlier owner delivered it."""
    DUPLICATE = "duplicate"
    """Another record has this request id: the first one counts."""
    FENCED = "fenced"
    """A larger token stands in the journal."""
    NOT_OURS = "not ours"
    """The partition is another worker's now: it may not be committed here."""


class Claimant:
    """Claims the journal of one record, under the token of the partition's assignment."""

    def __init__(
        self,
        decoded: DecodedRequest,
        journal: Journal,
        scripts: Scripts,
        ownership: Ownership,
        lease: Lease,
    ) -> None:
        self._decoded, self._partition = decoded, decoded.record.partition
        self._journal, self._scripts = journal, scripts
        self._ownership, self._lease = ownership, lease
        self._answer: tuple[Claim, int] | None = None

    async def ask(self) -> None:
        """claim, once. Asked in the order of reading: of two records with one id the first counts.

        While Redis is known to be away it is not asked: `settle` does what can be done.
        """
        assignment = self._ownership.get(self._partition)
        if assignment is None or not self._scripts.available.is_set():
            return
        leased = self._lease.held(time.monotonic())
        with suppress(UnavailableError):  # settle() asks again, or goes on without a journal
            claim = await self._journal.claim(
                self._decoded, token=assignment.token, may_create=leased
            )
            self._answer = (claim, assignment.token)

    async def settle(self) -> tuple[Claim, int] | Generation | Outcome:
        """The claim and its token, once there is an answer that may be acted on.

        Returns a generation without a journal where Redis is away and nobody can have started it.
        Cancel: safe.
        """
        while self._ownership.owns(self._partition):
            answer, self._answer = self._answer, None
            if answer is None or answer[0].kind is ClaimKind.ABSENT:
                if self._may_go_unjournaled():
                    return self._unjournaled()
                await asyncio.sleep(POLL_INTERVAL_S)
                if self._scripts.available.is_set() and self._lease.held(time.monotonic()):
                    await self.ask()
            elif answer[0].kind is ClaimKind.DUPLICATE:
                return Outcome.DUPLICATE
            elif answer[0].kind is ClaimKind.FENCED:
                return Outcome.FENCED
            else:
                return answer
        return Outcome.NOT_OURS

    async def ask_with_new_token(self) -> None:
        """own, then claim: an owner that was refused asks for a larger token; anybody else stops.

        Under the lease only: a process that wakes up and does not know yet that the partition is
        another's would fence that one off.
        """
        while self._ownership.owns(self._partition):
            if not self._lease.held(time.monotonic()):
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            least = self._ownership.next_token(self._partition, int(time.time() * 1000))
            try:
                (token,) = await self._journal.own([self._partition], least)
            except UnavailableError:
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            self._ownership.renew(self._partition, token)
            await self.ask()
            return

    def _may_go_unjournaled(self) -> bool:
        return (
            not self._scripts.available.is_set()
            and self._ownership.came_since(self._decoded.record)
            and self._lease.held(time.monotonic())
        )

    def _unjournaled(self) -> Generation:
        token = self._ownership.next_token(self._partition, int(time.time() * 1000))
        # what is claimed from now on has a larger one: no two attempts share a number
        self._ownership.renew(self._partition, token + 1)
        generation = Generation(self._decoded, token=token, attempt=token)
        generation.standing = Standing.UNJOURNALED
        return generation
