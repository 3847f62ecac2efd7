"""Topic names and the partition of a key (contract §1)."""

from dataclasses import dataclass

from aiokafka.partitioner import murmur2


@dataclass(frozen=True, slots=True)
class Topics:
    """The four topics under one prefix; those that workers write may have one of their own."""

    prefix: str = "headrace"
    answer_prefix: str | None = None

    @property
    def requests(self) -> str:
        return f"{self.prefix}.requests"

    @property
    def responses(self) -> str:
        return f"{self.answer_prefix or self.prefix}.responses"

    @property
    def control(self) -> str:
        return f"{self.prefix}.control"

    @property
    def dlq(self) -> str:
        return f"{self.answer_prefix or self.prefix}.dlq"

    @property
    def co_partitioned(self) -> tuple[str, str, str]:
        """Topics with the same partition count: a session has one number in all of them."""
        return (self.requests, self.responses, self.control)


def partition_of(key: bytes, num_partitions: int) -> int:
    """The partition that Kafka's default partitioner gives `key` (murmur2, as the Java client)."""
    return (int(murmur2(key)) & 0x7FFFFFFF) % num_partitions
