"""One record on its way to Kafka, as bytes."""

from dataclasses import dataclass

from headrace.schemas.headers import Headers


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to be written; a partition of None is chosen by the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None

    @property
    def size_bytes(self) -> int:
        """What its content takes, without framing."""
        texts = (self.key, self.value, *(value for _, value in self.headers))
        names = sum(len(name) for name, _ in self.headers)
        return names + sum(len(text or b"") for text in texts)
