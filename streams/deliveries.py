"""The deliveries that are under way in this worker, found by record, request or generation."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from headrace.models.request import EngineOutput
from headrace.schemas.request import DecodedRequest
from headrace.streams.delivery import Delivery
from headrace.streams.generation import Generation
from headrace.streams.ledger import Place

MAX_REMEMBERED = 10_000
"""Ids, some 200 bytes each."""


class Deliveries:
    """Owns no task: it knows which task to cancel when a partition is lost."""

    def __init__(self) -> None:
        self._by_record: dict[str, tuple[Delivery, asyncio.Task[None]]] = {}
        self._delivered: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def add(self, delivery: Delivery, task: "asyncio.Task[None]") -> None:
        self._by_record[_record_key(delivery)] = (delivery, task)

    def remove(self, delivery: Delivery) -> None:
        found = self._by_record.get(_record_key(delivery))
        if found is not None and found[0] is delivery:  # else: the record was taken again meanwhile
            del self._by_record[_record_key(delivery)]

    def drop(self, place: Place, offset: int) -> None:
        """The partition is another worker's: stop here, at the next step."""
        found = self._by_record.get(f"{place.topic}-{place.partition}-{offset}")
        if found is not None:
            found[1].cancel()

    def drop_waiting(self) -> None:
        """Drain: what the engine has not begun is left to the next owner."""
        for delivery, task in list(self._by_record.values()):
            if not delivery.is_under_way:
                task.cancel()

    @property
    def tasks(self) -> "list[asyncio.Task[None]]":
        return [task for _, task in self._by_record.values()]

    def remember(self, decoded: DecodedRequest) -> None:
        """It was delivered here. Its journal says so, too, unless Redis loses that: a second record
        with its id would be answered under the same attempt.
        """
        record = decoded.record
        self._delivered[decoded.tenant, decoded.request_id] = (record.partition, record.offset)
        if len(self._delivered) > MAX_REMEMBERED:
            self._delivered.popitem(last=False)

    def has_other(self, decoded: DecodedRequest) -> bool:
        """Whether another record with this request id is under way here, or was delivered."""
        wanted, record = (decoded.tenant, decoded.request_id), decoded.record
        place = (record.partition, record.offset)
        if self._delivered.get(wanted, place) != place and not decoded.default_id:
            return True
        return any(
            (one.decoded.tenant, one.decoded.request_id) == wanted
            and (one.decoded.record.partition, one.decoded.record.offset)
            != (record.partition, record.offset)
            for one in self
        )

    def __iter__(self) -> Iterator[Delivery]:
        return iter([delivery for delivery, _ in self._by_record.values()])

    def __len__(self) -> int:
        return len(self._by_record)

    def on_outputs(self, outputs: list[EngineOutput]) -> None:
        """One engine step. Outputs of generations that were dropped meanwhile have no reader."""
        for output in outputs:
            delivery = self._find(output.key)
            if delivery is not None:
                delivery.on_output(output)

    def on_acknowledged(self, generation: Generation) -> None:
        delivery = self._find(generation.key)
        if delivery is not None:
            delivery.on_acknowledged()

    def on_fenced(self, generation: Generation) -> None:
        delivery = self._find(generation.key)
        if delivery is not None and delivery.generation is generation:
            delivery.on_fenced()

    def on_cancel(self, generation: Generation) -> None:
        delivery = self._find(generation.key)
        if delivery is not None and delivery.generation is generation:
            delivery.cancel()

    def cancel(self, *, tenant: str, request_id: str, session_id: str) -> None:
        """Cancel a request that is here; another session or tenant has no effect."""
        wanted = (tenant, request_id, session_id)
        for delivery in self:
            decoded = delivery.decoded
            if (decoded.tenant, decoded.request_id, decoded.session_id) == wanted:
                delivery.cancel()

    def _find(self, generation_key: str) -> Delivery | None:
        found = self._by_record.get(generation_key.rpartition("@")[0])
        return found[0] if found else None


def _record_key(delivery: Delivery) -> str:
    record = delivery.decoded.record
    return f"{record.topic}-{record.partition}-{record.offset}"
