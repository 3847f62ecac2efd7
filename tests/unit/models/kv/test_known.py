"""What Redis is believed to hold: for a while, and no more than fits."""

import pytest

from headrace.models.kv import known
from headrace.models.kv.known import BELIEVED_S, KnownBlocks


def test_a_block_is_believed_for_a_while() -> None:
    """Then Redis is asked again: it may have lost all."""
    blocks = KnownBlocks()
    blocks.add([b"a", b"b"], 0.0)
    assert blocks.unknown([b"a", b"c", b"b"], BELIEVED_S) == [b"c"]
    assert blocks.unknown([b"a", b"b"], BELIEVED_S + 1) == [b"a", b"b"]


def test_a_missing_block_is_not_believed_in() -> None:
    """A fetch found that it is gone."""
    blocks = KnownBlocks()
    blocks.add([b"a", b"b"], 0.0)
    blocks.discard([b"a", b"unheard of"])
    assert blocks.unknown([b"a", b"b"], 1.0) == [b"a"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first."""
    monkeypatch.setattr(known, "MAX_KNOWN", 3)
    blocks = KnownBlocks()
    blocks.add([b"a", b"b", b"c"], 0.0)
    blocks.add([b"a"], 1.0)
    blocks.add([b"d"], 1.0)
    assert len(blocks) == 3
    assert blocks.unknown([b"a", b"b", b"c", b"d"], 2.0) == [b"b"]
