"""Encoding a rendered chat template so that control tokens come from the template and never from a
message.

A message may hold the text of a control token (`<|im_end|>`): it is then encoded as text. How it is
done:
1. `mask` hides such texts in the messages, between unguessable marks, before the template is
   rendered;
2. in the rendered text all control tokens that are left are the template's own; they are renamed to
   unguessable aliases;
3. the hidden texts are put back, and a copy of the tokenizer that knows the control tokens by their
   aliases only encodes the whole.
So normalisation, prefix spaces and merges are those of the tokenizer
   itself.
"""

import json
import re
import secrets
from typing import Any

from tokenizers import Tokenizer


class ControlTokenError(Exception):
    """The tokenizer turns the text of a control token into that token even when it is to be plain
    text.
    """

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.token = token

    def __str__(self) -> str:
        return f"the text {self.token!r} cannot be told from the control token with this tokenizer"


class ControlTokens:
    """The control tokens of one tokenizer (one of transformers, backed by `tokenizers`)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        template = str(tokenizer.chat_template or "")
        added = tokenizer.added_tokens_decoder
        self._texts = {
            token_id: token.content
            for token_id, token in added.items()
            if _is_control(token, template)
        }
        self._nonce, self._mark = secrets.token_hex(8), f"x{secrets.token_hex(8)}x"
        self._pattern = _any_of(list(self._texts.values()))
        self._aliased: _AliasedTokenizer | None = None

    @property
    def ids(self) -> frozenset[int]:
        """The ids of the control tokens."""
        return frozenset(self._texts)

    def mask(self, value: Any) -> Any:
        """Copy a message (or a list of them, or a string) with the control tokens in its texts
        broken by the mark.
        """
        if isinstance(value, str):
            return self._mask_text(value) if self._holds_control(value) else value
        if isinstance(value, dict):
            return {key: self.mask(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.mask(item) for item in value]
        return value

    def encode(self, rendered: str) -> list[int]:
        """Encode a text rendered from masked messages, without adding BOS or EOS.

        Raises: ControlTokenError if this tokenizer cannot keep the two apart.
        """
        if self._mark not in rendered:
            return self._encode_plainly(rendered)
        if self._aliased is None:
            backend = self._tokenizer.backend_tokenizer
            self._aliased = _AliasedTokenizer(backend, self._texts, self._nonce)
        with_aliases = self._pattern.sub(lambda match: _alias(self._nonce, match.group()), rendered)
        return self._aliased.encode(self._reveal(with_aliases))

    def _holds_control(self, text: str) -> bool:
        return not self._texts.keys().isdisjoint(self._encode_plainly(text))

    def _encode_plainly(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _mask_text(self, text: str) -> str:
        masked, num_masked = self._pattern.subn(lambda match: self._hide(match.group()), text)
        return masked if num_masked else self._hide(text)  # only its normalised text is a token

    def _hide(self, text: str) -> str:
        return f"{self._mark}{text.encode().hex()}{self._mark}"

    def _reveal(self, rendered: str) -> str:
        hidden = re.compile(f"{self._mark}([0-9a-f]*){self._mark}")
        return hidden.sub(lambda match: bytes.fromhex(match.group(1)).decode(), rendered)


class _AliasedTokenizer:
    """A copy of a tokenizer that knows its control tokens under other names."""

    def __init__(self, backend: Tokenizer, control_texts: dict[int, str], nonce: str) -> None:
        definition = json.loads(backend.to_str())
        for token in definition["added_tokens"]:
            if token["id"] in control_texts:
                token["content"] = _alias(nonce, token["content"])
        self._backend = Tokenizer.from_str(json.dumps(definition))
        self._backend.no_truncation()
        self._backend.no_padding()
        self._control_texts = control_texts
        # NOTE: a renamed token that also stands in the model's vocabulary gets a new id, and
        # those after it may move
        self._original_ids = {
            self._backend.token_to_id(token["content"]): token["id"]
            for token in definition["added_tokens"]
        }

    def encode(self, text: str) -> list[int]:
        ids = self._backend.encode(text, add_special_tokens=False).ids
        for token_id in ids:
            if token_id not in self._original_ids and token_id in self._control_texts:
                raise ControlTokenError(self._control_texts[token_id])
        return [self._original_ids.get(token_id, token_id) for token_id in ids]


def _is_control(token: Any, template: str) -> bool:
    """Whether an added token steers the model, unlike those that are only frequent text (runs of
    spaces, HTML tags).
    """
    text = token.content
    if not text.strip():
        return False
    return (
        bool(token.special) or text in template or (text.startswith("<|") and text.endswith("|>"))
    )


def _any_of(texts: list[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _alias(nonce: str, text: str) -> str:
    return f"<{nonce}-{text.encode().hex()}>"
