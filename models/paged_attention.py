"""Attention of a step's rows over their KV blocks, in plain torch operations.

Rows with one new token (decoding ones) are gathered in groups of similar length and attended to
together; each row with more (prefill) by itself. What lies in a block behind a row's last token may
be anything, NaN too: it is never gathered, since a masked NaN value still gives NaN.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from headrace.models.attention import AttentionOptions
from headrace.models.batch import BLOCK_TOKENS, RowInput
from headrace.models.kv_cache import BlockMemory

MIN_GROUP_FILL = 0.75
"""A decoding row shorter than this part of its group's longest begins the next group: padding then
costs a quarter at most, and rows of 1 to 4,000 tokens make some 20 groups."""


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor on the device; the copy to an accelerator does not wait for what runs there."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


@dataclass(slots=True)
class PrefillRow:
    """One row with several new tokens: [start, start + num_tokens) of its sequence, from `offset`
    on in the packed one.
    """

    offset: int
    start: int
    num_tokens: int
    slots: torch.Tensor
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Shapes: query (tokens, heads, dim); returns (tokens, heads, value dim)."""
        window = options.window_tokens
        is_causal = self.start == 0 and (window is None or self.num_tokens <= window)
        attended = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys.index_select(0, self.slots).transpose(0, 1)[None],
            values.index_select(0, self.slots).transpose(0, 1)[None],
            attn_mask=None if is_causal else self._mask(window),
            is_causal=is_causal,
            scale=options.scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return attended[0].transpose(0, 1)

    def _mask(self, window_tokens: int | None) -> torch.Tensor:
        """Which token each new one sees. Shapes: (new tokens, all tokens) bool."""
        mask = self.masks.get(window_tokens)
        if mask is None:
            end, device = self.start + self.num_tokens, self.slots.device
            query_positions = torch.arange(self.start, end, device=device)[:, None]
            key_positions = torch.arange(end, device=device)[None, :]
            mask = key_positions <= query_positions
            if window_tokens is not None:
                mask &= key_positions > query_positions - window_tokens
            self.masks[window_tokens] = mask
        return mask


@dataclass(slots=True)
class DecodeGroup:
    """Rows with one new token each, padded to the longest.

    Shapes: `offsets` (rows,) are their places in the packed sequence, `slots` (rows, longest),
    `lengths` (rows, 1).
    """

    offsets: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    is_even: bool
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """The query heads that share a KV head become the "tokens" of it, so no key is repeated.

        Shapes: query (rows, heads, dim); returns (rows, heads, value dim).
        """
        num_rows, num_heads, head_dim = query.shape
        num_kv_heads = keys.shape[1]
        attended = scaled_dot_product_attention(
            query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim),
            self._gather(keys),
            self._gather(values),
            attn_mask=self._mask(options.window_tokens),
            scale=options.scale,
        )
        return attended.reshape(num_rows, num_heads, values.shape[2])

    def _gather(self, pool: torch.Tensor) -> torch.Tensor:
        """Shapes: pool (slots, heads, dim); returns (rows, heads, longest, dim)."""
        gathered = pool.index_select(0, self.slots.flatten())
        return gathered.view(*self.slots.shape, *pool.shape[1:]).transpose(1, 2)

    def _mask(self, window_tokens: int | None) -> torch.Tensor | None:
        """Which token each row's new one sees. Shapes: (rows, 1, 1, longest) bool."""
        if window_tokens not in self.masks:
            longest = self.slots.shape[1]
            positions = torch.arange(longest, device=self.slots.device)[None, :]
            mask = positions < self.lengths
            if window_tokens is not None:
                mask &= positions >= self.lengths - window_tokens
            sees_all = self.is_even and (window_tokens is None or longest <= window_tokens)
            self.masks[window_tokens] = None if sees_all else mask[:, None, None, :]
        return self.masks[window_tokens]


class PagedStep:
    """One step over real rows: writes their new keys and values and attends to all of them."""

    def __init__(self, memory: BlockMemory, rows: Sequence[RowInput], device: torch.device) -> None:
        self._memory = memory
        self._prefills: list[PrefillRow] = []
        decodes: list[tuple[int, RowInput]] = []
        offset = 0
        new_slots: list[int] = []
        for row in rows:
            num_tokens = len(row.token_ids)
            new_slots += _new_slots(row)
            if num_tokens == 1:
                decodes.append((offset, row))
            else:
                slots = upload(row.block_ids, torch.long, device)
                slots = _slots_of(slots)[: row.start + num_tokens]
                self._prefills.append(PrefillRow(offset, row.start, num_tokens, slots))
            offset += num_tokens
        self._new_slots = upload(new_slots, torch.long, device)
        self._groups = [_decode_group(group, device) for group in _by_length(decodes)]

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
        for row in self._prefills:
            place = slice(row.offset, row.offset + row.num_tokens)
            output[place] = row.attend(queries[place], keys, values, options)
        for group in self._groups:
            attended = group.attend(queries.index_select(0, group.offsets), keys, values, options)
            output.index_copy_(0, group.offsets, attended)
        return output[None]


def _new_slots(row: RowInput) -> Iterator[int]:
    for position in range(row.start, row.start + len(row.token_ids)):
        index, place = divmod(position, BLOCK_TOKENS)
        yield row.block_ids[index] * BLOCK_TOKENS + place


def _slots_of(block_ids: torch.Tensor) -> torch.Tensor:
    """The slots of blocks, in order. Shapes: (..., blocks) to (..., blocks * BLOCK_TOKENS)."""
    places = torch.arange(BLOCK_TOKENS, device=block_ids.device)
    return (block_ids[..., None] * BLOCK_TOKENS + places).flatten(-2)


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


def _decode_group(group: list[tuple[int, RowInput]], device: torch.device) -> DecodeGroup:
    lengths = [row.start + 1 for _, row in group]
    longest = lengths[0]
    num_blocks = -(-longest // BLOCK_TOKENS)
    tables = [
        [*row.block_ids[:num_blocks], *[row.block_ids[0]] * (num_blocks - len(row.block_ids))]
        for _, row in group
    ]
    lengths_there = upload(lengths, torch.long, device)[:, None]
    slots = _slots_of(upload(tables, torch.long, device))[:, :longest]
    own = torch.arange(longest, device=device)[None, :] < lengths_there
    return DecodeGroup(
        offsets=upload([offset for offset, _ in group], torch.long, device),
        slots=torch.where(own, slots, slots[:, :1]),  # padding is the row's own first token
        lengths=lengths_there,
        is_even=lengths[-1] == longest,
    )
