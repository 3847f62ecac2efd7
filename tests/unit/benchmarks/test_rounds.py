"""Engines that take turns."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.lib.child import Run
from benchmarks.lib.process import Repetition
from benchmarks.lib.rounds import cold_and_again, take_turns


@dataclass
class ScriptedEngine:
    """Is disturbed in the runs whose numbers are given, the warm-up being number 0."""

    name: str
    calls: list[tuple[str, list[list[int]], int]]
    disturbed: set[int] = field(default_factory=set)
    num_runs: int = 0

    def run(self, prompts: list[list[int]], new_tokens: int) -> Repetition:
        self.calls.append((self.name, prompts, new_tokens))
        others_s = 9.0 if self.num_runs in self.disturbed else 0.0
        self.num_runs += 1
        return Repetition(Run(1.0, len(prompts) * new_tokens), 1.0, others_s)


def turns(*engines: Any, repetitions: int) -> dict[str, list[Repetition]]:
    return take_turns(
        engines,
        lambda number: [[number]],
        16,
        repetitions=repetitions,
        on_step=lambda text: None,
    )


def test_engines_take_turns_on_the_same_prompts() -> None:
    """A B A B, a short warm-up first, each round with its own prompts for all."""
    calls: list[tuple[str, list[list[int]], int]] = []
    turns(ScriptedEngine("a", calls), ScriptedEngine("b", calls), repetitions=2)
    assert calls == [
        ("a", [[0]], 8),
        ("b", [[0]], 8),
        ("a", [[1]], 16),
        ("b", [[1]], 16),
        ("a", [[2]], 16),
        ("b", [[2]], 16),
    ]


def test_a_disturbed_repetition_is_repeated() -> None:
    """Only the engine that was disturbed runs again."""
    done = turns(ScriptedEngine("a", [], {1}), ScriptedEngine("b", []), repetitions=2)
    assert [one.is_disturbed for one in done["a"]] == [True, False, False]
    assert [one.is_disturbed for one in done["b"]] == [False, False]


def test_repeating_has_an_end() -> None:
    """An engine that is always disturbed runs twice as often as asked for, not for ever."""
    done = turns(ScriptedEngine("a", [], set(range(100))), repetitions=3)
    assert len(done["a"]) == 6


def test_a_prompt_seen_before_is_one_that_was_run() -> None:
    """Every prompt is run cold and at once again, also where a disturbed pair is repeated."""
    calls: list[tuple[str, list[list[int]], int]] = []
    engine: Any = ScriptedEngine("a", calls, {2})
    done = cold_and_again(
        [engine], lambda number: [number], repetitions=1, on_step=lambda text: None
    )
    assert [prompts for _, prompts, _ in calls] == [[[0]], [[1]], [[1]], [[2]], [[2]]]
    assert [len(runs) for runs in done["a"]] == [2, 2]
