"""Requests that fail, or end their worker: counted in the journal, isolated, given up in the end.

A worker that dies takes all that it had with it, and nobody is left to say which request it was.
So each of them is a suspect (decisions/011-requests-that-kill.md):

    failures 0, 1   it runs with the others
    failures 2      it begins alone, and is marked so before: until its next token no other is
                    computed here, so if the worker dies then, it was this one
    failures 3      dead letter

One that got on by a token since it was claimed is left with 1. A request that fails while its
worker lives is counted as it is, and tried again after a pause.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError
from headrace.streams.generation import Generation, JournalEntry
from headrace.streams.journal import Journal
from headrace.streams.redis_scripts import Scripts
from headrace.streams.roster import Roster

MAX_FAILURES = 3

BACKOFF_S = (0.1, 0.5)
"""Before the second and the third try: memory may be free again by then."""


class Failures:
    """Counts the failures of one request.

    `isolation` is the worker's: whoever holds it begins alone.
    """

    def __init__(
        self, journal: Journal, scripts: Scripts, roster: Roster, isolation: asyncio.Lock
    ) -> None:
        self._journal, self._scripts = journal, scripts
        self._roster, self._isolation = roster, isolation
        self.count = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether it is not tried again."""
        return self.count >= MAX_FAILURES

    @property
    def is_suspect(self) -> bool:
        """Whether it must begin alone."""
        return self.count == MAX_FAILURES - 1

    async def judge(self, generation: Generation, entry: JournalEntry) -> None:
        """Take over the count of an earlier owner, and see whether that one died of it."""
        gone = False
        while entry.runner and entry.ending is None:
            try:
                gone = await self._roster.is_gone(entry.runner)
                break
            except UnavailableError:
                await self._scripts.back()
        self.count = failures_after(entry, runner_is_gone=gone)
        if self.count != entry.failures:
            await self._note(generation, alone=False)

    async def failed(self, generation: Generation) -> None:
        """It failed by itself; returns when it may be tried again."""
        self.count += 1
        if not self.is_hopeless:
            await self._note(generation, alone=False)
            await asyncio.sleep(BACKOFF_S[self.count - 1])

    @asynccontextmanager
    async def alone_if_suspect(self, generation: Generation) -> AsyncIterator[None]:
        """While it is entered, a suspect is the only one that begins alone here.

        The mark is taken back before the next one begins: that it got on may not be journaled yet.
        """
        if not self.is_suspect:
            yield
            return
        async with self._isolation:
            await self._note(generation, alone=True)
            num_ids = len(generation.ids)
            yield
            if len(generation.ids) > num_ids:
                self.count = 1
            await self._note(generation, alone=False)

    async def _note(self, generation: Generation, *, alone: bool) -> None:
        while not generation.has_no_journal:
            try:
                await self._journal.note_failures(generation, self.count, alone=alone)
            except UnavailableError:
                await self._scripts.back()
                continue
            return

    def given_up(self) -> RequestError:
        """What its reader is told when workers died of it."""
        text = f"{self.count} workers ended while they ran this request"
        return RequestError(ErrorCode.INTERNAL_ERROR, text)


def failures_after(entry: JournalEntry, *, runner_is_gone: bool) -> int:
    """The count after an owner that left `entry` behind. `runner_is_gone`: it died."""
    if not runner_is_gone or entry.ending is not None:
        return entry.failures
    if len(entry.ids) > entry.num_ids_claimed:
        return 1
    most = MAX_FAILURES if entry.alone else MAX_FAILURES - 1
    return max(entry.failures, min(entry.failures + 1, most))
