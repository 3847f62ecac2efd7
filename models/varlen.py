"""Whether this device has a kernel that attends to rows of any length in one call, and is right.

torch has one for CUDA (FlashAttention, 16-bit types). It is believed only after it was compared
with the plain operations on small rows of the model's own shapes.
"""

import logging

import torch

from headrace.models.attention import AttentionOptions
from headrace.models.attention_parts import PackedPrefill, PrefillRow, VarlenAttention
from headrace.models.kv_cache import KVLayout, LayerShape

logger = logging.getLogger(__name__)

MIN_CAPABILITY = (8, 0)
"""Of the CUDA device: FlashAttention needs Ampere."""

_TRIED_ROWS = ((0, 40), (37, 5), (70, 2))
"""(start, new tokens): a whole prompt, and parts of longer ones."""

_TRIED_WINDOWS = (None, 16)


def find_varlen_attention(layout: KVLayout) -> VarlenAttention | None:
    """The kernel for a model's layers, or None where plain operations have to do."""
    device = layout.device
    if device.type != "cuda" or layout.dtype not in (torch.float16, torch.bfloat16):
        return None
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        logger.info("this torch has no attention for rows of any length")
        return None
    attention: VarlenAttention = varlen_attn  # type: ignore[assignment]  # a tuple only if asked
    return attention if is_right(attention, layout) else None


def is_right(attention: VarlenAttention, layout: KVLayout) -> bool:
    """Whether it does for all the model's layers what plain operations do; warns if not.

    Raises: torch.AcceleratorError, after which the device cannot be used any more.
    """
    try:
        differing = [
            shape for shape in set(layout.layers.values()) if not _agrees(attention, shape, layout)
        ]
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, torch.AcceleratorError):
            raise
        logger.warning("prompts are attended to row by row: %s", error)
        return False
    if differing:
        logger.warning("prompts are attended to row by row: other results for %s", differing[0])
    return not differing


@torch.inference_mode()
def _agrees(attention: VarlenAttention, shape: LayerShape, layout: KVLayout) -> bool:
    generator = torch.Generator().manual_seed(0)

    def random(num_tokens: int, num_heads: int, dim: int) -> torch.Tensor:
        values = torch.randn((num_tokens, num_heads, dim), generator=generator)
        return values.to(layout.device, layout.dtype)

    num_queries = [count for _, count in _TRIED_ROWS]
    num_keys = [start + count for start, count in _TRIED_ROWS]
    query = random(sum(num_queries), 2 * shape.num_kv_heads, shape.key_dim)
    keys = random(sum(num_keys), shape.num_kv_heads, shape.key_dim)
    values = random(sum(num_keys), shape.num_kv_heads, shape.value_dim)
    slots = torch.arange(sum(num_keys), device=layout.device)
    packed = PackedPrefill(
        attention,
        slots,
        _ends(num_queries, layout.device),
        _ends(num_keys, layout.device),
        max(num_queries),
        max(num_keys),
    )
    rows = [
        PrefillRow(start, count, own)
        for (start, count), own in zip(_TRIED_ROWS, torch.split(slots, num_keys), strict=True)
    ]
    for window in _TRIED_WINDOWS:
        options = AttentionOptions(None, window)
        expected = torch.cat(
            [
                row.attend(part, keys, values, options)
                for row, part in zip(rows, torch.split(query, num_queries), strict=True)
            ]
        )
        found = packed.attend(query, keys, values, options)
        if not torch.allclose(found, expected, rtol=0, atol=8 * torch.finfo(layout.dtype).eps):
            return False
    return True


def _ends(counts: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *counts], device=device).cumsum(0).int()
