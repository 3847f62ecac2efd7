"""Names of KV blocks: equal names, equal tokens from the start of the sequence on, under the same
weights, memory format and tenant.

A name is a hash over the name of the block before it, so it stands for the whole prefix. Whoever
reuses a block compares its token ids too; the names alone only find it.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from headrace.models.batch import BLOCK_TOKENS

HASH_BYTES = 16


def cache_salt(fingerprint: str, kv_format_name: str, tenant: str) -> bytes:
    """What keeps the blocks of different weights, memory formats and tenants apart."""
    return b"\0".join(part.encode() for part in (fingerprint, kv_format_name, tenant))


def root_hash(salt: bytes) -> bytes:
    """What the first block of a sequence is hashed on top of."""
    return blake2b(salt, digest_size=HASH_BYTES).digest()


def next_hash(previous: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of the block of `token_ids` that follows the block `previous`."""
    ids = array("i", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return blake2b(previous + ids.tobytes(), digest_size=HASH_BYTES).digest()


def block_hashes(
    token_ids: Sequence[int], *, salt: bytes, block_tokens: int = BLOCK_TOKENS
) -> list[bytes]:
    """The names of the full blocks of a sequence, in their order; a part of a block has none."""
    hashes: list[bytes] = []
    previous = root_hash(salt)
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        previous = next_hash(previous, token_ids[start : start + block_tokens])
        hashes.append(previous)
    return hashes
