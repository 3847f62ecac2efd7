"""From a dump back into topics: the same bytes, partitions and times.

Owns the checks before the first record is written. Offsets are the topic's own.
"""

from pathlib import Path

from headrace.consumers.kafka_reader import find_partitions, reading
from headrace.consumers.range_reader import readable_spans
from headrace.deploy.counted import Counted
from headrace.deploy.replaying.dump_file import DumpContents, check_dump, read_dump
from headrace.producers.outgoing import OutgoingRecord
from headrace.producers.record_writer import RecordWriter, writing
from headrace.schemas.dump import Kind
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings
from headrace.schemas.topics import Topics

FETCH_BYTES = 2**20


class TooFewPartitionsError(HeadraceError):
    """A topic cannot take what a dump holds."""

    def __init__(self, topic: str, found: int, needed: int) -> None:
        super().__init__(topic, found, needed)
        self.topic, self.found, self.needed = topic, found, needed

    def __str__(self) -> str:
        return f"topic {self.topic} has {self.found} partitions, the dump needs {self.needed}"


class NotEmptyError(HeadraceError):
    """A topic holds records already, and those of a dump would stand behind them."""

    def __init__(self, topic: str, num_records: int) -> None:
        super().__init__(topic, num_records)
        self.topic, self.num_records = topic, num_records

    def __str__(self) -> str:
        count = f"{self.num_records} record{'' if self.num_records == 1 else 's'}"
        return (
            f"topic {self.topic} holds {count} already, and nothing was written: give another "
            "--topic-prefix, or --append to add the dump's all the same"
        )


async def restore(settings: Settings, path: Path, *, append: bool = False) -> DumpContents:
    """Write all records of a dump into the topics of `settings`, which must be there, and empty
    unless `append`.

    The dump is read as a whole before anything is written.
    Raises: DumpError, OSError, TopicMissingError, TooFewPartitionsError, NotEmptyError,
    UnavailableError, ProduceError. Delivery: once each; a second call with `append` writes them a
    second time.
    """
    contents = check_dump(path)
    async with writing(settings) as writer:
        await _check_topics(writer, settings.topics, contents)
        if not append:
            await _check_empty(settings, contents)
        with Counted("restoring", contents.counts.total()) as progress:
            for record in read_dump(path):
                topic = topic_of(settings.topics, record.kind)
                outgoing = OutgoingRecord(
                    topic, record.key, record.value, record.headers, record.partition
                )
                time_ms = record.timestamp_ms if record.timestamp_ms >= 0 else None
                await writer.write(outgoing, timestamp_ms=time_ms)
                progress.advance()
        await writer.flush()
    return contents


async def _check_topics(writer: RecordWriter, topics: Topics, contents: DumpContents) -> None:
    for kind, needed in contents.partitions.items():
        topic = topic_of(topics, kind)
        found = await writer.num_partitions(topic)
        if found < needed:
            raise TooFewPartitionsError(topic, found, needed)


async def _check_empty(settings: Settings, contents: DumpContents) -> None:
    async with reading(settings, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
        for kind in contents.partitions:
            topic = topic_of(settings.topics, kind)
            spans = await readable_spans(consumer, await find_partitions(consumer, topic))
            if num_records := sum(span.num_offsets for span in spans.values()):
                raise NotEmptyError(topic, num_records)


def topic_of(topics: Topics, kind: Kind) -> str:
    """The topic for records of this kind."""
    return {
        "request": topics.requests,
        "response": topics.responses,
        "control": topics.control,
    }[kind]
