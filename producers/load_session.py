"""The sessions of a load: what each asks in each turn, fixed by the seed before anything is sent.

Sans I/O. Knows nothing of when a turn is due, nor of answers.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Protocol

from headrace.producers.load_shapes import Shape
from headrace.producers.load_spread import draw, draw_count
from headrace.producers.load_text import words


class Session(Protocol):
    """Somebody who asks one or more times, each time after the answer before."""

    @property
    def session_id(self) -> str:
        """The conversation; the key of its records."""

    @property
    def num_turns(self) -> int:
        """How often it asks."""

    def body(self, turn: int) -> dict[str, Any]:
        """The request of this turn, counted from 1."""

    def think_s(self, turn: int) -> float:
        """How long after the answer before this turn is due; of no meaning for the first."""


class ShapedSession:
    """A session made up after a shape; the same shape, seed and index make the same session."""

    def __init__(self, session_id: str, shape: Shape, *, seed: int, index: int) -> None:
        self.session_id = session_id
        self._shape, self._name = shape, f"{seed}/{index}"
        self._seed, self._index = seed, index
        self.num_turns = draw_count(shape.turns, Random(self._name))

    def body(self, turn: int) -> dict[str, Any]:
        """The request of this turn; later ones hold the new message only."""
        shape, rng = self._shape, self._rng(turn)
        messages = [{"role": "user", "content": self._message(turn, rng)}]
        if shape.system is not None and turn == 1:
            messages.insert(0, {"role": "system", "content": shape.system})
        body: dict[str, Any] = {
            "messages": messages,
            "context": "append",
            "max_tokens": draw_count(shape.max_tokens, rng),
            "temperature": shape.temperature,
            "seed": rng.getrandbits(31),
        }
        if shape.stop:
            body["stop"] = shape.stop
        return body | shape.request

    def think_s(self, turn: int) -> float:
        """See `Session`."""
        return draw(self._shape.think_s, Random(f"{self._name}/{turn}/think"))

    def _message(self, turn: int, rng: Random) -> str:
        shape = self._shape
        if shape.prompt_texts is not None:
            return rng.choice(shape.prompt_texts)
        text = words(draw_count(shape.prompt_words, rng), rng)
        # NOTE: the number makes a short message differ from all others of the run; without it a
        # prefix cache would answer for prompts that users do not share.
        text = f"Note {self._seed}-{self._index}-{turn}. {text}"
        if turn > 1 or not shape.shared_prefix_words:
            return text
        shared = words(shape.shared_prefix_words, Random(f"{self._seed}/{shape.name}/shared"))
        return f"{shared} {text}"

    def _rng(self, turn: int) -> Random:
        return Random(f"{self._name}/{turn}")


def shaped_sessions(shapes: Sequence[Shape], *, seed: int, run_id: str) -> Iterator[ShapedSession]:
    """Sessions without end, each of a shape drawn by weight.

    `run_id` is part of their names, so that a run does not go on with another's conversations.
    """
    rng = Random(f"{seed}/shapes")
    weights = [shape.weight for shape in shapes]
    index = 0
    while True:
        (shape,) = rng.choices(shapes, weights)
        yield ShapedSession(f"{run_id}-{index}", shape, seed=seed, index=index)
        index += 1
