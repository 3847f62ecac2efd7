"""Tokenizers whose tokens are given byte strings, to script how a text is cut into tokens."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

EOS = "<|im_end|>"


def byte_level_tokenizer(pieces: Sequence[bytes]) -> PreTrainedTokenizerFast:
    """Token i is `pieces[i]`, the one after them is the special end token."""
    alphabet = bytes_to_unicode()
    vocab = {"".join(alphabet[byte] for byte in piece): i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS)


def byte_fallback_tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """As Llama 2: token i is the byte i; token 256 + i is `pieces[i]`, with ▁ for a space."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {name: i for i, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
