"""Prompts of an exact number of tokens, seeded and distinct from their first words on, so that no
two share a block of KV state.
"""

import random
import string
from typing import Any

from headrace.models.conversation import ConversationEncoder


class PromptMaker:
    """Chat prompts out of ordinary words, for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._encoder = ConversationEncoder(tokenizer)
        letters = set(string.ascii_lowercase)
        self._words = sorted(
            token_id
            for token, token_id in tokenizer.get_vocab().items()
            if len(token) > 3 and token[0] in "Ġ▁" and set(token[1:]) <= letters
        )

    def prompts(self, count: int, num_tokens: int, *, seed: str) -> list[list[int]]:
        """`count` prompts of exactly `num_tokens` ids each.

        Raises: ValueError if the chat template alone is longer.
        """
        rng = random.Random(seed)
        return [self._prompt(rng, num_tokens) for _ in range(count)]

    def words(self, count: int, *, seed: str) -> list[int]:
        """The ids of `count` random words."""
        return random.Random(seed).choices(self._words, k=count)

    def _prompt(self, rng: random.Random, num_tokens: int) -> list[int]:
        system = "".join(rng.choices(string.ascii_letters, k=8))
        head, tail = self._around_content(system)
        num_words = num_tokens - len(head) - len(tail)
        if num_words < 1:
            raise ValueError(f"a chat prompt needs {len(head) + len(tail) + 1} tokens or more")
        return [*head, *rng.choices(self._words, k=num_words), *tail]

    def _around_content(self, system: str) -> tuple[list[int], list[int]]:
        """The ids before and after what the user says."""
        one, other = (
            self._encoder.encode_messages(
                [{"role": "system", "content": system}, {"role": "user", "content": content}]
            )
            for content in ("zebra", "apple")
        )
        start = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        end = next(
            i for i, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b
        )
        return one[:start], one[len(one) - end :]
