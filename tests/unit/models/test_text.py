"""Token ids to text: whole characters, stop strings, and nothing lost at the end (cases E)."""

from collections.abc import Sequence

import pytest

from headrace.models.text import Detokenizer, TextStream
from tests.unit.models.pieces import byte_fallback_tokenizer, byte_level_tokenizer


def stream_pieces(
    pieces: Sequence[bytes], stop: Sequence[str] = (), *, with_eos: bool = False
) -> tuple[list[str], str, bool]:
    """The deltas of these pieces as tokens, what `finish` gives, and whether a stop was found."""
    distinct = list(dict.fromkeys(pieces))
    stream = TextStream(Detokenizer(byte_level_tokenizer(distinct)), stop)
    token_ids = [distinct.index(piece) for piece in pieces] + [len(distinct)] * with_eos
    deltas = [stream.push(token_id) for token_id in token_ids]
    return deltas, stream.finish(), stream.stopped


@pytest.mark.parametrize(
    ("pieces", "deltas"),
    [
        ([b"\xf0\x9f", b"\x98\x80"], ["", "😀"]),
        ([b"\xe4", b"\xbd", b"\xa0"], ["", "", "你"]),
        ([b"\xc4", b"\x8f"], ["", "ď"]),
        ([b"a\xf0", b"\x9f", b"\x91", b"\x8bb"], ["a", "", "", "👋b"]),
    ],
)
def test_a_character_comes_whole(pieces: list[bytes], deltas: list[str]) -> None:
    """A character split over tokens comes with its last byte."""
    assert stream_pieces(pieces) == (deltas, "", False)


def test_rows_have_their_own_state() -> None:
    """Two streams of one detokenizer, interleaved, do not mix their half characters."""
    pieces = [bytes([byte]) for byte in b"\xf0\x9f\x91\x8b"]
    detokenizer = Detokenizer(byte_level_tokenizer(pieces))
    first, second = TextStream(detokenizer), TextStream(detokenizer)
    texts = ["", ""]
    for token_id in range(4):
        texts[0] += first.push(token_id)
        texts[1] += second.push(token_id)
    assert texts == ["👋", "👋"]


def test_a_half_character_at_the_end_is_decoded_as_the_tokenizer_does() -> None:
    """What no byte completes any more comes as U+FFFD with `finish`."""
    assert stream_pieces([b"ok", b"\xf0\x9f"]) == (["ok", ""], "\ufffd", False)


def test_bytes_that_are_no_character_do_not_hold_the_text() -> None:
    """A byte that cannot begin a character is replaced at once."""
    assert stream_pieces([b"\xff", b"a"]) == (["\ufffd", "a"], "", False)


def test_special_tokens_and_unknown_ids_are_left_out() -> None:
    """An end token has no text, nor has an id beyond the tokenizer's vocabulary."""
    stream = TextStream(Detokenizer(byte_level_tokenizer([b"a"])))
    assert [stream.push(token_id) for token_id in (0, 1, 999, 0)] == ["a", "", "", "a"]


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        ([b"DEF", b"G", b"HI", b"J"], ["DEFGHIJ"], ""),
        ([b"xENDy"], ["END"], "x"),
        ([b"a", b"\n", b"\nUs", b"er"], ["\n\nUser"], "a"),
        ([b"abc", b"d"], ["abd", "abcd"], ""),
        ([b"abc", b"dX"], ["bcd", "abcdX"], "a"),
        ([b"aab", b"aac"], ["aabaac"], ""),
        ([b"aa", b"ab"], ["aab"], "a"),
        ([b"x\xe4", b"\xbd", b"\xa0y"], ["你"], "x"),
        ([b"1", b"2", b"END3"], ["END", "2END"], "1"),
    ],
)
def test_text_ends_right_before_a_stop_string(
    pieces: list[bytes], stop: list[str], text: str
) -> None:
    """Nothing of a stop string comes out, however it is cut into tokens."""
    deltas, rest, stopped = stream_pieces(pieces, stop)
    assert ("".join(deltas), rest, stopped) == (text, "", True)


def test_nothing_comes_after_a_stop_string() -> None:
    """Tokens pushed after the stop string give no text."""
    assert stream_pieces([b"aEND", b"b", b"c"], ["END"]) == (["a", "", ""], "", True)


def test_what_only_began_like_a_stop_string_comes_out() -> None:
    """E, N are held back, and T shows that it was not END."""
    assert stream_pieces([b"E", b"N", b"T"], ["END"]) == (["", "", "ENT"], "", False)


@pytest.mark.parametrize("with_eos", [True, False])
def test_held_back_text_comes_at_the_end(with_eos: bool) -> None:
    """A prefix of a stop string at the end of the generation is part of the text."""
    deltas, rest, stopped = stream_pieces([b"the E"], ["END"], with_eos=with_eos)
    assert ("".join(deltas), rest, stopped) == ("the ", "E", False)


def test_finish_twice_gives_nothing_more() -> None:
    """`finish` can be called again."""
    stream = TextStream(Detokenizer(byte_level_tokenizer([b"E"])), ["END"])
    stream.push(0)
    assert (stream.finish(), stream.finish()) == ("E", "")


def test_an_empty_stop_string_is_refused() -> None:
    """It would match everywhere."""
    with pytest.raises(ValueError, match="empty"):
        TextStream(Detokenizer(byte_level_tokenizer([b"a"])), ["a", ""])


def test_byte_fallback_runs_are_decoded_as_a_whole() -> None:
    """A run of byte tokens comes when it is over; the space before the first word does not."""
    stream = TextStream(Detokenizer(byte_fallback_tokenizer(["▁hi", "▁there"])))
    token_ids = [256, *"😀".encode(), 257]
    deltas = [stream.push(token_id) for token_id in token_ids]
    assert (deltas, stream.finish()) == (["hi", "", "", "", "", "😀 there"], "")
