"""Texts that a load asks about: made-up sentences of ordinary words, the same for the same seed.

Knows no tokenizer: an English word is about 1.3 tokens.
"""

from random import Random

_TEXT = (
    "river stone morning letter window garden number winter summer market train bridge paper "
    "music water light story friend teacher doctor village mountain forest island engine signal "
    "bread kitchen table silver copper yellow green quiet sudden early simple heavy gentle narrow "
    "walks carries follows answers opens closes remembers measures builds repairs paints counts "
    "under over behind between against without toward during because although before after while "
    "slowly often never always perhaps together again almost the a one some every another this "
    "that which where when how and or but with from into about near"
)
_WORDS = _TEXT.split()

SENTENCE_WORDS = 12


def words(count: int, rng: Random) -> str:
    """`count` words in sentences."""
    chosen = rng.choices(_WORDS, k=count)
    sentences = [chosen[i : i + SENTENCE_WORDS] for i in range(0, count, SENTENCE_WORDS)]
    return " ".join(" ".join(sentence).capitalize() + "." for sentence in sentences)
