"""Answers of a prescribed form: which tokens may come next so that the answer is JSON, or JSON that
a schema describes.

Owns the use of llguidance: compiled grammars, and the place of each generation in its grammar. It
knows nothing of requests, logits or the wire format. Why this library, what it does not support,
and the bounds: docs/decisions/006-response-format.md.
"""

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer

logger = logging.getLogger(__name__)

MAX_CACHED_GRAMMARS = 64

MAX_REASON_CHARS = 200
"""It may quote the schema."""

_LIMITS = LLParserLimits(
    max_items_in_row=8_000,  # an object of 1,000 optional properties needs 4,000
    max_lexer_states=50_000,  # of 1 to 2 kB each
    verbose_errors=False,  # texts for users
)


_CONTROL_CHARACTER = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
_IN_A_PATTERN = re.compile(
    r"\\(?:[av]|(?i:x|u00|U000000)(?:[01][0-9a-fA-F]|7[fF])"
    r"|[xuU]\{0*(?:1?[0-9a-fA-F]|7[fF])\}|p\{?C)"
)


class GrammarError(Exception):
    """This schema cannot be followed; the text says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"this schema cannot be followed: {self.reason}"


class Constraint:
    """The place of one generation in its grammar; see `Grammar.start`."""

    def __init__(self, matcher: LLMatcher, num_words: int, eos_ids: frozenset[int]) -> None:
        self._matcher, self._num_words, self._eos_ids = matcher, num_words, eos_ids
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """Whether the answer was ended by an end-of-turn token."""
        return self._is_complete

    def bitmask(self) -> torch.Tensor:
        """The ids allowed next. Those that end the turn are among them exactly where the grammar
        may end, and are the only ones where nothing else may follow. None at all if the grammar
        cannot go on.

        Shapes: (vocabulary / 32, rounded up) int32; bit `i % 32` of word `i // 32` is the id i.
        """
        mask = torch.zeros(self._num_words, dtype=torch.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.nbytes)
        if self._matcher.is_error():
            logger.warning("a grammar cannot go on: %s", _reason(self._matcher.get_error()))
            mask.zero_()
        return mask

    def accept(self, token_id: int) -> None:
        """Go on behind `token_id`; one that was not allowed leaves a grammar that cannot go on."""
        if self._matcher.consume_token(token_id):
            self._is_complete = token_id in self._eos_ids


class Grammar:
    """A compiled schema, shared by all generations that follow it. Any thread."""

    def __init__(self, matcher: LLMatcher, num_words: int, eos_ids: frozenset[int]) -> None:
        self._matcher, self._num_words, self._eos_ids = matcher, num_words, eos_ids

    def start(self) -> Constraint:
        """A new constraint at the beginning of the answer; costs some microseconds."""
        return Constraint(self._matcher.deep_copy(), self._num_words, self._eos_ids)


class GrammarCompiler:
    """Compiles schemas for the tokenizer of one model, and keeps those used last.

    `tokenizer` is one of transformers, backed by `tokenizers`. `vocab_size` counts the model's
    logits; ids beyond the tokenizer's own are never allowed.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._ll_tokenizer: LLTokenizer | None = None
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, schema: str) -> Grammar:
        """The grammar of a JSON schema, given as JSON text.

        It may take a second (within the bounds of `schemas/request.py`), and one at a time is
        compiled: not for an event loop. Any thread.

        Raises: GrammarError for a schema that is invalid, too complex, or not supported.
        """
        with self._lock:
            grammar = self._grammars.get(schema)
            if grammar is None:
                grammar = self._compile(schema)
                self._grammars[schema] = grammar
                if len(self._grammars) > MAX_CACHED_GRAMMARS:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(schema)
            return grammar

    def _compile(self, schema: str) -> Grammar:
        if any(_CONTROL_CHARACTER.search(text) for text in _strings(json.loads(schema))):
            raise GrammarError("it names a control character")
        tokenizer = self._wrapped_tokenizer()
        try:
            definition = _definition(schema)
        except ValueError as problem:  # the library's reader of JSON is stricter than Python's
            raise GrammarError(_reason(str(problem))) from problem
        matcher = LLMatcher(tokenizer, definition, log_level=0, limits=_LIMITS)
        matcher.compute_bitmask()  # kept for all copies: 50 ms for an object of 1,000 properties
        if matcher.is_error():
            raise GrammarError(_reason(matcher.get_error()))
        return Grammar(matcher, (self._vocab_size + 31) // 32, self._eos_ids)

    def _wrapped_tokenizer(self) -> LLTokenizer:
        """Made when it is first needed: it takes 0.4 s for 49,152 tokens."""
        if self._ll_tokenizer is None:
            try:
                self._ll_tokenizer = from_tokenizer(
                    self._tokenizer, n_vocab=self._vocab_size, eos_token=sorted(self._eos_ids)
                )
            except ValueError as problem:
                raise GrammarError(f"not with this model's tokenizer: {problem}") from problem
        return self._ll_tokenizer


def _definition(schema: str) -> str:
    """The grammar in llguidance's terms; a schema's own `x-guidance` options have no effect."""
    return LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            # NOTE: bounded, or a small model may write line breaks for ever; one space, or a line
            # break with an indentation
            "whitespace_pattern": r"\x20|\x0A[\x20\x09]{0,64}",
            "whitespace_flexible": True,
            # NOTE: no \u0061: as an additional property's name it would get past the property "a".
            # Without it control characters cannot be written, and where a schema names one, the
            # library would leave it out: `_compile` refuses it.
            "json_allowed_escapes": 'nrbtf\\"',
            "lenient": False,
            "coerce_one_of": False,
        },
    )


def _strings(schema: Any) -> Iterator[str]:
    r"""All strings in a schema. Those of patterns come with a control character where they name one
    (`\x01`).
    """
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += [*part, *part.values()]
            patterns = part.get("patternProperties")
            named = [part.get("pattern"), *(patterns if isinstance(patterns, dict) else ())]
            waiting += [_IN_A_PATTERN.sub("\x00", text) for text in named if isinstance(text, str)]


def _reason(error: str) -> str:
    """The part of llguidance's error that is for people."""
    if error.startswith("panic"):
        return "it is too complex"
    if error.startswith("regex parse error"):
        error = error.rpartition("error: ")[2]
    return error.strip().partition("\n")[0][:MAX_REASON_CHARS]
