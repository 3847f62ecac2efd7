"""Engines that take turns: each runs once per round, and again until it was left alone often
enough.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.lib.process import ChildEngine, Repetition
from headrace.deploy.console import stderr_console, stderr_is_terminal

WARM_UP_TOKENS = 8
TRIES_PER_REPETITION = 2

Prompts = list[list[int]]
OnStep = Callable[[str], None]


def take_turns(
    engines: Sequence[ChildEngine],
    make_prompts: Callable[[int], Prompts],
    new_tokens: int,
    *,
    repetitions: int,
    on_step: OnStep,
) -> dict[str, list[Repetition]]:
    """Runs of all engines, A B C A B C …, each round with prompts of its own.

    A disturbed repetition is repeated, as long as an engine has not had twice the repetitions.
    """
    for engine in engines:
        on_step(f"{engine.name}: warm-up")
        engine.run(make_prompts(0), min(WARM_UP_TOKENS, new_tokens))
    done: dict[str, list[Repetition]] = {engine.name: [] for engine in engines}
    for number in range(1, TRIES_PER_REPETITION * repetitions + 1):
        for engine in engines:
            if num_undisturbed(done[engine.name]) < repetitions:
                on_step(f"{engine.name}: repetition {number}")
                done[engine.name].append(engine.run(make_prompts(number), new_tokens))
    return done


def cold_and_again(
    engines: Sequence[ChildEngine],
    make_prompt: Callable[[int], list[int]],
    *,
    repetitions: int,
    on_step: OnStep,
) -> dict[str, tuple[list[Repetition], list[Repetition]]]:
    """One prompt to its first token, and at once the same prompt again; engines take turns."""
    for engine in engines:
        on_step(f"{engine.name}: warm-up")
        engine.run([make_prompt(0)], 1)
    done: dict[str, tuple[list[Repetition], list[Repetition]]] = {e.name: ([], []) for e in engines}
    for number in range(1, TRIES_PER_REPETITION * repetitions + 1):
        for engine in engines:
            cold, again = done[engine.name]
            if min(num_undisturbed(cold), num_undisturbed(again)) < repetitions:
                on_step(f"{engine.name}: repetition {number}")
                prompt = make_prompt(number)
                cold.append(engine.run([prompt], 1))
                again.append(engine.run([prompt], 1))
    return done


def num_undisturbed(repetitions: Sequence[Repetition]) -> int:
    """How many of the repetitions count."""
    return sum(not one.is_disturbed for one in repetitions)


@contextmanager
def progress(title: str) -> Iterator[OnStep]:
    """A line on stderr that says what runs now; nothing where nobody watches."""
    if not stderr_is_terminal():
        yield lambda text: None
        return
    with stderr_console().status(title) as status:
        yield lambda text: status.update(f"{title} · {text}")
