"""Token ids to text, one token at a time, never half a character and never past a stop string.

A pure function of the ids and the stop strings: a resumed generation that feeds its earlier ids
through a new stream goes on exactly where the old one was.
"""

import codecs
import re
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import decoders, models

from headrace.models.stop_strings import StopMatcher

_BYTE_FALLBACK_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class _Decoder(Protocol):
    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class Detokenizer:
    """What has to be known of a tokenizer to decode a stream; built once, shared by all streams of
    a model.

    `tokenizer` is one of transformers; those with a `ByteLevel` decoder (GPT-2, Llama 3, Qwen,
    SmolLM2, ...) are decoded from the exact bytes of each token, all others by decoding a window of
    ids again.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(
            token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
        )
        self._token_bytes = _byte_level_tokens(tokenizer)
        self._byte_fallback_ids = frozenset(
            token_id
            for token, token_id in tokenizer.get_vocab().items()
            if _BYTE_FALLBACK_TOKEN.fullmatch(token)
        )

    def start(self) -> _Decoder:
        """A decoder for one stream of ids."""
        if self._token_bytes is not None:
            return _ByteDecoder(self._token_bytes, self._special_ids)
        return _WindowDecoder(self)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is no part of the text."""
        return token_id in self._special_ids

    def is_byte(self, token_id: int) -> bool:
        """Whether the token stands for one byte, so that the text of it depends on its
        neighbours.
        """
        return token_id in self._byte_fallback_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The tokenizer's own decoding of the whole sequence, without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text


class TextStream:
    """The text of one generation, token by token, up to the first stop string.

    Raises: ValueError for an empty stop string.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        self._decoder = detokenizer.start()
        self._matcher = StopMatcher(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the text was cut right before it and nothing follows."""
        return self._matcher.stopped

    def push(self, token_id: int) -> str:
        """Take the next token and return the new text that is safe to show."""
        if self.stopped:
            return ""
        return self._matcher.push(self._decoder.push(token_id))

    def finish(self) -> str:
        """The generation ends here: return what was held back (half characters as the tokenizer
        decodes them).
        """
        if self.stopped:
            return ""
        text = self._matcher.push(self._decoder.finish())
        return text + self._matcher.finish()


class _ByteDecoder:
    """Byte-level BPE: the bytes of each token through one incremental UTF-8 decoder."""

    def __init__(self, token_bytes: Sequence[bytes], special_ids: frozenset[int]) -> None:
        self._token_bytes, self._special_ids = token_bytes, special_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._special_ids or token_id >= len(self._token_bytes):
            return ""  # a model's vocabulary may be padded beyond its tokenizer's
        return self._utf8.decode(self._token_bytes[token_id])

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Any other tokenizer: decode a window of ids with and without the new ones, and emit the
    difference.

    The window starts one settled piece before the new ids, since the text of a token depends on
    whether others stand before it (spaces). It is settled when its text cannot change any more: not
    inside a run of byte tokens (which decodes as a whole, see tokenizers' ByteFallback) and not at
    an incomplete character.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._ids: list[int] = []
        self._window_start = 0
        self._num_settled = 0
        self._emitted: list[str] = []

    def push(self, token_id: int) -> str:
        if self._detokenizer.is_special(token_id):
            return ""
        self._ids.append(token_id)
        if self._detokenizer.is_byte(token_id):
            return ""
        settled = self._detokenizer.decode(self._ids[self._window_start : self._num_settled])
        text = self._detokenizer.decode(self._ids[self._window_start :])
        if len(text) <= len(settled) or text.endswith("\ufffd"):
            return ""
        self._window_start, self._num_settled = self._num_settled, len(self._ids)
        self._emitted.append(text[len(settled) :])
        return self._emitted[-1]

    def finish(self) -> str:
        emitted, whole = "".join(self._emitted), self._detokenizer.decode(self._ids)
        self._emitted = [whole]
        return whole[len(emitted) :]


def _byte_level_tokens(tokenizer: Any) -> list[bytes] | None:
    """The bytes of each token id, or None if the tokenizer's decoder is not exactly `ByteLevel`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.decoder, decoders.ByteLevel):
        return None
    if (
        not isinstance(backend.model, models.BPE)
        or tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    ):
        return None  # transformers may then edit the decoded text
    char_bytes = {char: bytes([byte]) for byte, char in _byte_level_alphabet().items()}
    tokens = [backend.id_to_token(token_id) or "" for token_id in range(_num_ids(tokenizer))]
    return [_token_bytes(token, char_bytes) for token in tokens]


def _num_ids(tokenizer: Any) -> int:
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def _token_bytes(token: str, char_bytes: dict[str, bytes]) -> bytes:
    """As tokenizers' ByteLevel decoder: a token with a character outside the alphabet stands for
    itself.
    """
    try:
        return b"".join(char_bytes[char] for char in token)
    except KeyError:
        return token.encode()


def _byte_level_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself where it is printable, else from U+0100
    on.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(0x100 + index) for index, byte in enumerate(others)},
    }
