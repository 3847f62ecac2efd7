"""One partition for a key, whoever produces it (cases B1)."""

import pytest
from aiokafka.partitioner import DefaultPartitioner

from headrace.schemas.topics import partition_of

# From Apache Kafka's own UtilsTest.testMurmur2: key → hash, as a signed 32-bit number.
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
KEYS = [*JAVA_HASHES, b"", b"s", b"s1", "Sitzung-ä-日本-🙂".encode(), b"\x00\xff", b"x" * 512]


@pytest.mark.parametrize(("key", "java_hash"), JAVA_HASHES.items())
@pytest.mark.parametrize("num_partitions", [1, 7, 12, 48])
def test_partition_equals_the_java_clients(key: bytes, java_hash: int, num_partitions: int) -> None:
    """Producers in other languages put a session where we do."""
    assert partition_of(key, num_partitions) == (java_hash & 0x7FFFFFFF) % num_partitions


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("num_partitions", [1, 7, 12, 48])
def test_partition_equals_our_producers(key: bytes, num_partitions: int) -> None:
    """aiokafka's default partitioner, which our producers use, agrees with `partition_of`."""
    partitions = list(range(num_partitions))
    assert partition_of(key, num_partitions) == DefaultPartitioner()(key, partitions, partitions)
