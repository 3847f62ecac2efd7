"""A shadow from start to verdicts: live requests are answered by other workers too, elsewhere.

Owns the order of the steps. Of the live pipeline it only reads; its workers are a group of their
own, and write into the shadow's namespace.
"""

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.consumers.group_start import begin_at_ends
from headrace.consumers.kafka_reader import find_partitions, reading
from headrace.consumers.range_reader import RangeReader, Span, readable_spans
from headrace.deploy.console import note
from headrace.deploy.counted import Counted
from headrace.deploy.programs import with_model
from headrace.deploy.replaying.case_book import CaseBook
from headrace.deploy.replaying.dump_file import check_dump
from headrace.deploy.replaying.interruption import Interruption
from headrace.deploy.replaying.namespace import Namespace
from headrace.deploy.replaying.recording import FETCH_BYTES, record, request_partitions
from headrace.deploy.replaying.selection import OffsetRange, Selection
from headrace.deploy.replaying.trial import (
    Answers,
    NothingToReplayError,
    Trial,
    judge_rows,
    log_folder,
    standing,
)
from headrace.deploy.replaying.worker_processes import running_workers
from headrace.schemas.settings import Settings

WATCH_INTERVAL_S = 0.5
"""How often it is looked whether there are enough requests."""


@dataclass(frozen=True, slots=True)
class ShadowOptions:
    """What a shadow takes beside the settings: it ends after `for_s` or `num_requests`, whichever
    comes first.
    """

    for_s: float | None = None
    num_requests: int | None = None
    id: str | None = None
    num_workers: int = 1
    silence_s: float = 120.0
    checks_drift: bool = True
    keep: bool = False


async def shadow(
    settings: Settings, options: ShadowOptions, interruption: Interruption | None = None
) -> Trial:
    """Answer what is asked from now on a second time, and compare with the live answers. After an
    interruption only what is answered on both sides is compared.

    Raises: HeadraceError. Cancel: the workers end and the namespace is removed first.
    """
    interruption = interruption or Interruption()
    settings = with_model(settings)
    space = Namespace.new(settings, "shadow", options.id)
    topic = settings.topics.requests
    async with reading(settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
        num_partitions = len(await request_partitions(consumer, settings))
        await find_partitions(consumer, settings.topics.control)  # nothing live is to be created
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-shadow-") as folder:
        dump = Path(folder) / "live.jsonl.zst"
        async with (
            standing(space, num_partitions, keep=options.keep),
            log_folder() as log_dir,
        ):
            starts = (await begin_at_ends(space.settings, (topic, settings.topics.control)))[topic]
            async with running_workers(space.settings, options.num_workers, log_dir) as engine:
                if not options.num_workers:
                    note(f"workers are yours: {space.worker_flags}")
                note(f"answering what {topic} is asked, into {space.settings.topics.responses}")
                interruption.can_report = True
                ends = await _Watch(settings, starts, options).until_enough(interruption)
                recording = _Recording(settings, _selection(starts, ends), dump)
                book = await recording.whole(options.silence_s, interruption)
                answers = Answers(space.settings, set(book.requests))
                async with interruption.bounding():
                    await answers.collect(None, "waiting for answers", silence_s=options.silence_s)
        if interruption.asked:
            _leave_out_unanswered(book, answers)
        wall_s = time.monotonic() - started_s
        rows = await asyncio.to_thread(judge_rows, settings, book, answers, options.checks_drift)
    return Trial(
        rows,
        space.prefix,
        settings.model,
        book.num_duplicates,
        wall_s,
        engine,
        interruption.asked,
    )


def _leave_out_unanswered(book: CaseBook, answers: Answers) -> None:
    """What an interruption cut off is no answer that is missing."""
    wanting = [
        name
        for name in book.requests
        if not answers.has_all_of(name)
        or not ((recorded := book.recorded.get(name)) and recorded.finished)
    ]
    for name in wanting:
        del book.requests[name]
    if wanting:
        note(f"{len(wanting)} requests without both answers yet are left out")


def _selection(starts: dict[int, int], ends: dict[int, int]) -> Selection:
    ranges = [
        OffsetRange(number, start, ends[number] - 1)
        for number, start in starts.items()
        if ends[number] > start
    ]
    if not ranges:
        raise NothingToReplayError("nothing was asked meanwhile")
    return Selection(offsets=tuple(ranges))


@dataclass(frozen=True, slots=True)
class _Recording:
    """The live side."""

    settings: Settings
    selection: Selection
    dump: Path

    async def whole(self, silence_s: float, interruption: Interruption) -> CaseBook:
        """The live requests and answers, once all of these have ended, or `silence_s` has passed,
        or an interruption's grace.
        """
        deadline_s = time.monotonic() + silence_s
        while True:
            done = await record(self.settings, self.selection, self.dump, replace=True)
            if not done.num_requests:
                raise NothingToReplayError("nothing was asked meanwhile")
            now_s = time.monotonic()
            if not done.num_unfinished or now_s > min(deadline_s, interruption.give_up_s):
                return CaseBook.read(self.dump, check_dump(self.dump).header)
            await asyncio.sleep(WATCH_INTERVAL_S)


def _title(options: ShadowOptions) -> str:
    return "requests seen" + (f" (until {options.for_s:g} s)" if options.for_s else "")


class _Watch:
    """Counts the requests that come in."""

    def __init__(self, settings: Settings, starts: dict[int, int], options: ShadowOptions) -> None:
        self._settings, self._options = settings, options
        self._positions = dict(starts)
        self._num_seen = 0

    async def until_enough(self, interruption: Interruption) -> dict[int, int]:
        """Returns where the partitions of requests end then, or at an interruption."""
        options = self._options
        deadline_s = time.monotonic() + (options.for_s or float("inf"))
        async with reading(self._settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
            with Counted(_title(options), options.num_requests, are_slow=True) as progress:
                while time.monotonic() < deadline_s and not interruption.asked:
                    before = self._num_seen
                    await self._look(consumer)
                    for _ in range(self._num_seen - before):
                        progress.advance()
                    if options.num_requests is not None and self._num_seen >= options.num_requests:
                        break
                    await interruption.pause(WATCH_INTERVAL_S)
        return self._positions

    async def _look(self, consumer: Any) -> None:
        """Count what has come since the last look."""
        parts = await find_partitions(consumer, self._settings.topics.requests)
        spans = {
            part: Span(self._positions[part.partition], span.end)
            for part, span in (await readable_spans(consumer, parts)).items()
        }
        async for one in RangeReader(consumer, "requests").records(spans):
            self._num_seen += one.value is not None
        for part, span in spans.items():
            self._positions[part.partition] = max(span.start, span.end)
