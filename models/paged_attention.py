"""The attention step of a batch: where its rows' tokens lie in the KV memory, and which rows are
attended to together.

Rows with one new token (decoding ones) form groups of similar length; rows with more (prefill) each
stand alone, or all in one call where the device has a kernel for that.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from headrace.models.attention import AttentionOptions, AttentionStep
from headrace.models.attention_parts import (
    DecodeGroup,
    PackedPrefill,
    Part,
    PrefillRow,
    VarlenAttention,
    slots_at,
)
from headrace.models.batch import BLOCK_TOKENS, RowInput
from headrace.models.kv_cache import BlockMemory
from headrace.models.staging import Staging

MIN_GROUP_FILL = 0.75
"""A decoding row shorter than this part of its group's longest begins the next group: padding then
costs a quarter at most, and rows of 1 to 4,000 tokens make some 20 groups."""


class PagedStep(AttentionStep):
    """One step: writes the new keys and values, and attends to all of each row's.

    Shapes: `new_slots` (tokens,). `parts` come with their places in the packed sequence.
    """

    def __init__(
        self,
        memory: BlockMemory,
        new_slots: torch.Tensor,
        parts: Sequence[tuple[slice | torch.Tensor, Part]],
    ) -> None:
        self._memory, self._new_slots, self._parts = memory, new_slots, parts

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `AttentionStep`."""
        keys, values = self._memory.layers[layer_index]
        keys.index_copy_(0, self._new_slots, key[0].transpose(0, 1))
        values.index_copy_(0, self._new_slots, value[0].transpose(0, 1))
        queries = query[0].transpose(0, 1)
        output = query.new_empty((queries.shape[0], queries.shape[1], value.shape[3]))
        for places, part in self._parts:
            if isinstance(places, slice):
                output[places] = part.attend(queries[places], keys, values, options)
            else:
                attended = part.attend(queries.index_select(0, places), keys, values, options)
                output.index_copy_(0, places, attended)
        return output[None]


def paged_step(
    memory: BlockMemory,
    rows: Sequence[RowInput],
    staging: Staging,
    varlen: VarlenAttention | None = None,
) -> PagedStep:
    """The step of any rows; `varlen` attends to those with several new tokens, if it is there."""
    offsets = list(accumulate((len(row.token_ids) for row in rows), initial=0))
    placed = list(zip(offsets, rows, strict=False))
    prefills = [(offset, row) for offset, row in placed if len(row.token_ids) > 1]
    decodes = [(offset, row) for offset, row in placed if len(row.token_ids) == 1]
    parts: list[tuple[slice | torch.Tensor, Part]] = []
    if prefills and varlen is not None:
        parts.append(_packed_prefill(prefills, staging, varlen))
    elif prefills:
        for (offset, row), slots in zip(prefills, _known_slots(prefills, staging), strict=True):
            num_tokens = len(row.token_ids)
            part = PrefillRow(row.start, num_tokens, slots)
            parts.append((slice(offset, offset + num_tokens), part))
    parts += [_decode_group(group, staging) for group in _by_length(decodes)]
    (new_slots,) = staging.send([slot for row in rows for slot in _new_slots(row)])
    return PagedStep(memory, new_slots, parts)


def padded_decode_step(
    memory: BlockMemory, tables: torch.Tensor, positions: torch.Tensor
) -> PagedStep:
    """The step of rows with one new token each, of which only the device knows how long they are.

    Shapes: tables (rows, blocks) have room for each row's tokens, positions (rows,).
    """
    group = DecodeGroup(tables, positions, shortest=0, longest=tables.shape[1] * BLOCK_TOKENS)
    new_slots = slots_at(tables, positions[:, None])[:, 0]
    return PagedStep(memory, new_slots, [(slice(0, tables.shape[0]), group)])


def _new_slots(row: RowInput) -> Iterator[int]:
    for position in range(row.start, row.start + len(row.token_ids)):
        index, place = divmod(position, BLOCK_TOKENS)
        yield row.block_ids[index] * BLOCK_TOKENS + place


def _known_slots(placed: list[tuple[int, RowInput]], staging: Staging) -> Iterator[torch.Tensor]:
    """The slots of each row's tokens, the new ones included."""
    tables = staging.send(*(row.block_ids for _, row in placed))
    places = torch.arange(BLOCK_TOKENS, device=staging.device)
    for table, (_, row) in zip(tables, placed, strict=True):
        slots = (table[:, None] * BLOCK_TOKENS + places).flatten()
        yield slots[: row.start + len(row.token_ids)]


def _packed_prefill(
    prefills: list[tuple[int, RowInput]], staging: Staging, varlen: VarlenAttention
) -> tuple[torch.Tensor, PackedPrefill]:
    num_queries = [len(row.token_ids) for _, row in prefills]
    num_keys = [row.start + len(row.token_ids) for _, row in prefills]
    slots = torch.cat(list(_known_slots(prefills, staging)))
    places, query_ends, key_ends = staging.send(
        [offset + i for offset, row in prefills for i in range(len(row.token_ids))],
        list(accumulate(num_queries, initial=0)),
        list(accumulate(num_keys, initial=0)),
    )
    part = PackedPrefill(
        varlen, slots, query_ends.int(), key_ends.int(), max(num_queries), max(num_keys)
    )
    return places, part


def _by_length(decodes: list[tuple[int, RowInput]]) -> Iterator[list[tuple[int, RowInput]]]:
    """Groups of rows of similar length, longest first."""
    group: list[tuple[int, RowInput]] = []
    for decode in sorted(decodes, key=lambda decode: -decode[1].start):
        longest = group[0][1].start + 1 if group else 0
        length = decode[1].start + 1
        if group and length < min(MIN_GROUP_FILL * longest, longest - BLOCK_TOKENS):
            yield group
            group = []
        group.append(decode)
    if group:
        yield group


def _decode_group(
    group: list[tuple[int, RowInput]], staging: Staging
) -> tuple[torch.Tensor, DecodeGroup]:
    """Rows, the longest first."""
    longest = group[0][1].start + 1
    num_blocks = -(-longest // BLOCK_TOKENS)
    places, positions, tables = staging.send(
        [offset for offset, _ in group],
        [row.start for _, row in group],
        [block_id for _, row in group for block_id in padded_table(row, num_blocks, 0)],
    )
    shortest = group[-1][1].start + 1
    return places, DecodeGroup(tables.view(-1, num_blocks), positions, shortest, longest)


def padded_table(row: RowInput, num_blocks: int, padding: int) -> list[int]:
    """The first `num_blocks` block ids of a row, padded; the padding is never looked at."""
    table = list(row.block_ids[:num_blocks])
    return table + [padding] * (num_blocks - len(table))
