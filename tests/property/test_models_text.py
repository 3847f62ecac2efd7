"""For any tokens and stop strings: the joined deltas are the tokenizer's decoding, up to a stop."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.models.stop_strings import StopMatcher
from headrace.models.text import Detokenizer, TextStream
from tests.unit.models.pieces import byte_fallback_tokenizer, byte_level_tokenizer

BYTE_LEVEL = byte_level_tokenizer(
    [
        *(bytes([byte]) for byte in range(256)),
        b"\xf0\x9f",
        b"\x98\x80",
        b"ab",
        b" the",
        "é".encode(),
    ]
)
BYTE_FALLBACK = byte_fallback_tokenizer(["▁", "▁the", "a", "ab", "é", "\ufffd"])
TOKENIZERS = {
    "byte level": (BYTE_LEVEL, Detokenizer(BYTE_LEVEL)),
    "byte fallback": (BYTE_FALLBACK, Detokenizer(BYTE_FALLBACK)),
}

emoji_bytes = st.sampled_from(list("😀é你".encode()))
token_ids = st.lists(
    st.one_of(emoji_bytes, st.integers(0, 255), st.integers(256, 261)), max_size=40
)
ab_text = st.text(alphabet="ab", max_size=30)
ab_stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def deltas_of(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


@given(name=st.sampled_from(sorted(TOKENIZERS)), ids=token_ids)
def test_joined_deltas_equal_the_decoding(name: str, ids: list[int]) -> None:
    """Any bytes in any order, valid UTF-8 or not."""
    tokenizer, detokenizer = TOKENIZERS[name]
    expected = tokenizer.decode(ids, skip_special_tokens=True)
    assert expected == "".join(deltas_of(TextStream(detokenizer), ids))


@given(name=st.sampled_from(sorted(TOKENIZERS)), text=st.text(max_size=12))
def test_valid_text_never_shows_half_a_character(name: str, text: str) -> None:
    """Byte by byte, no delta of a valid text has a replacement character that is not its own."""
    _, detokenizer = TOKENIZERS[name]
    deltas = deltas_of(TextStream(detokenizer), list(text.encode()))
    assert "".join(deltas).count("\ufffd") == text.count("\ufffd")


@given(ids=token_ids, split=st.integers(0, 40), stop=ab_stops)
def test_a_resumed_stream_goes_on_where_it_was(ids: list[int], split: int, stop: list[str]) -> None:
    """Feeding the first ids through a new stream leads to the same later deltas."""
    detokenizer = TOKENIZERS["byte level"][1]
    whole, resumed = TextStream(detokenizer, stop), TextStream(detokenizer, stop)
    for token_id in ids[:split]:
        whole.push(token_id)
        resumed.push(token_id)
    assert deltas_of(whole, ids[split:]) == deltas_of(resumed, ids[split:])


@given(text=ab_text, stop=ab_stops, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_stop_strings_do_not_depend_on_the_cuts(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    """The text ends before the stop string that is complete first (of two, before the longer)."""
    matcher = StopMatcher(stop)
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown = "".join(matcher.push(text[start:end]) for start, end in pairwise(borders))
    ends = [(end, -len(one)) for one in stop for end in _ends(text, one)]
    if not ends:
        assert (shown + matcher.finish(), matcher.stopped) == (text, False)
    else:
        end, negative_length = min(ends)
        assert (shown, matcher.stopped) == (text[: end + negative_length], True)


@given(text=ab_text, stop=ab_stops)
def test_only_what_could_begin_a_stop_string_is_held_back(text: str, stop: list[str]) -> None:
    """As long as nothing matched, exactly the longest such suffix is held back."""
    matcher = StopMatcher(stop)
    shown = matcher.push(text)
    if not matcher.stopped:
        suffixes = [text[i:] for i in range(len(text))]
        held = next((s for s in suffixes if any(one.startswith(s) for one in stop)), "")
        assert shown + held == text


def _ends(text: str, stop: str) -> list[int]:
    return [i + len(stop) for i in range(len(text)) if text.startswith(stop, i)]
