"""Topic names, and the partition that every Kafka client gives a key."""

import random

import pytest
from aiokafka.partitioner import DefaultPartitioner, murmur2

from headrace.schemas.topics import Topics, partition_of

VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "expected"), VECTORS)
def test_murmur2_as_the_java_client_has_it(key: bytes, expected: int) -> None:
    """Source: UtilsTest of Apache Kafka."""
    assert expected & 0xFFFFFFFF == murmur2(key) & 0xFFFFFFFF
    for partitions in (1, 7, 12):
        assert (expected & 0x7FFFFFFF) % partitions == partition_of(key, partitions)


def test_the_partition_is_what_the_default_partitioner_gives() -> None:
    """Random keys of every length, the empty one, UTF-8."""
    rng = random.Random(0)
    keys = [rng.randbytes(length) for length in range(40) for _ in range(5)]
    for key in [*keys, b"", b"s", "é😀".encode()]:
        for count in (1, 3, 12, 100):
            expected = DefaultPartitioner()(key, list(range(count)), list(range(count)))
            assert expected == partition_of(key, count)


def test_topic_names() -> None:
    """`<prefix>.<name>`, and the three that are partitioned alike."""
    topics = Topics("p")
    assert topics.co_partitioned == ("p.requests", "p.responses", "p.control")
    assert (Topics().requests, topics.dlq) == ("headrace.requests", "p.dlq")
