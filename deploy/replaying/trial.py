"""A replay from start to verdicts: make the namespace, run workers, ask, collect, compare, remove.

Owns the order of these steps. Writes nothing outside the namespace.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.consumers.answer_follower import AnswerFollower
from headrace.consumers.log_event import LogEvent
from headrace.deploy.console import note
from headrace.deploy.counted import Counted
from headrace.deploy.programs import with_model
from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.asking import Asking
from headrace.deploy.replaying.case_book import CaseBook, Name, originals
from headrace.deploy.replaying.dump_file import DumpContents
from headrace.deploy.replaying.engine_info import EngineInfo
from headrace.deploy.replaying.judging import Judge, Row
from headrace.deploy.replaying.lazy_model import LazyModel
from headrace.deploy.replaying.namespace import Namespace, NamespaceTakenError
from headrace.deploy.replaying.pace import Pace
from headrace.deploy.replaying.worker_processes import running_workers
from headrace.producers.record_writer import writing
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.schemas.tasks import finish_despite_cancel


class NothingToReplayError(HeadraceError):
    """There is no request in what was chosen."""


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What a replay takes beside the settings."""

    id: str | None = None
    """Part of the namespace's name; None for one that nobody has used."""
    num_workers: int = 1
    pace: Pace = field(default_factory=Pace)
    max_in_flight: int = 256
    silence_s: float = 120.0
    checks_drift: bool = True
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it."""

    rows: list[Row]
    prefix: str
    model: str
    num_duplicates: int
    wall_s: float
    engine: EngineInfo | None = None
    """What answered now; None where the workers are somebody else's."""
    interrupted: bool = False


class Answers:
    """The answers of a namespace, as they come in."""

    def __init__(self, settings: Settings, wanted: set[Name]) -> None:
        self._settings, self._wanted = settings, wanted
        self._answers: dict[Name, Answer] = {}

    def of(self, name: Name) -> Answer | None:
        """What there is of one request's answer."""
        return self._answers.get(name)

    def has_all_of(self, name: Name) -> bool:
        """Whether the end of one request's answer has come."""
        found = self._answers.get(name)
        return found is not None and found.finished

    async def collect(self, asking: Asking | None, title: str, *, silence_s: float) -> None:
        """Read until all wanted requests are answered, or nothing has come for `silence_s`."""
        with Counted(title, len(self._wanted), are_slow=True) as progress:

            def on_finished() -> None:
                progress.advance()
                if asking is not None:
                    asking.answered()

            follower = AnswerFollower(
                self._settings,
                self._wanted,
                on_event=self._take,
                on_finished=on_finished,
                is_due=lambda: asking is None or asking.is_due,
            )
            if not await follower.follow(silence_s=silence_s):
                note(f"{len(follower.missing)} requests got no answer: nothing came any more")

    def _take(self, found: LogEvent) -> None:
        name = (found.tenant, found.request_id)
        self._answers.setdefault(name, Answer()).see(found.event)


async def replay(
    settings: Settings, path: Path, contents: DumpContents, options: TrialOptions
) -> Trial:
    """Answer the requests of a dump again, and compare.

    Raises: HeadraceError. Cancel: the workers end and the namespace is removed first.
    """
    book = CaseBook.read(path, contents.header)
    if not book.requests:
        raise NothingToReplayError("there are no requests in this range")
    settings = with_model(settings)
    space = Namespace.new(settings, "replay", options.id)
    if not options.num_workers:
        note(f"workers are yours: {space.worker_flags}")
    answers = Answers(space.settings, set(book.requests))
    started_s = time.monotonic()
    num_partitions = contents.header.num_partitions
    async with (
        standing(space, num_partitions, keep=options.keep),
        log_folder() as log_dir,
        running_workers(space.settings, options.num_workers, log_dir) as engine,
    ):
        await _ask_and_collect(space, path, contents, answers, options)
    wall_s = time.monotonic() - started_s
    rows = await asyncio.to_thread(judge_rows, settings, book, answers, options.checks_drift)
    return Trial(rows, space.prefix, settings.model, book.num_duplicates, wall_s, engine)


@asynccontextmanager
async def standing(space: Namespace, num_partitions: int, *, keep: bool) -> AsyncIterator[None]:
    """The namespace around a block; it is removed on every way out, unless it is kept, or somebody
    else's.
    """
    is_ours = True
    try:
        await space.create(num_partitions)
        yield
    except NamespaceTakenError:
        is_ours = False
        raise
    finally:
        if keep and is_ours:
            note(f"kept: topics, group and keys {space.prefix}")
        elif is_ours:
            await finish_despite_cancel(_removed(space))


async def _removed(space: Namespace) -> None:
    """Remove it; what was found out is not lost where Kafka or Redis will not do so now."""
    try:
        await space.remove()
        note(f"removed: topics, group and keys {space.prefix}")
    except HeadraceError as problem:
        note(f"not all topics, group and keys {space.prefix} could be removed: {problem}")


@asynccontextmanager
async def log_folder() -> AsyncIterator[Path]:
    """Where the workers' logs go, for as long as they run."""
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as folder:
        yield Path(folder)


async def _ask_and_collect(
    space: Namespace,
    path: Path,
    contents: DumpContents,
    answers: Answers,
    options: TrialOptions,
) -> None:
    topic = space.settings.topics.requests
    async with writing(space.settings) as writer, asyncio.TaskGroup() as tasks:
        asking = Asking(writer, topic, space.id, max_in_flight=options.max_in_flight)
        records = originals(path, contents.header)
        producing = tasks.create_task(asking.ask_all(records, options.pace), name="replay.ask")
        await answers.collect(asking, "replaying", silence_s=options.silence_s)
        producing.cancel()  # over by now, unless the workers have stopped answering


def judge_rows(
    settings: Settings, book: CaseBook, answers: Answers, checks_drift: bool
) -> list[Row]:
    """The verdicts, in the order of the requests. Blocking: it may load the model."""
    model = LazyModel(settings)
    judge = Judge(model.texts_of, model.drift_of if checks_drift else lambda row: None)
    rows = []
    with Counted("comparing", len(book.requests), are_slow=True) as progress:
        for name, asked in book.requests.items():
            rows.append(judge.judge(asked, book.recorded.get(name), answers.of(name)))
            progress.advance()
    return rows
