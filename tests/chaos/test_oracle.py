"""The judge of the chaos runs finds what it is there to find, and nothing in a good run."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.book import Asked, AskedKind, Book, FaultRun
from tests.chaos.oracle import Judge, Undisturbed
from tests.chaos.plan import FaultKind
from tests.unit.models.engine_run import Answer

Events = list[dict[str, Any]]

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def undisturbed(tiny_model_dir: Path) -> Undisturbed:
    return Undisturbed(tiny_model_dir)


def body_of(name: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"tell me about {name}"}]
    return {"request_id": name, "messages": messages, "max_tokens": 12} | more


def answer_events(name: str, prompt_ids: list[int], answer: Answer, *, seed: int) -> Events:
    """What a reader is sent: the first half of the tokens, then the rest and the end."""
    assert answer.finish_reason is not None
    half = len(answer.token_ids) // 2
    shared = {"id": name, "attempt": 5, "object": "chat.completion.chunk"}
    texts = "".join(answer.deltas[:half]), "".join(answer.deltas[half:])
    parts = answer.token_ids[:half], answer.token_ids[half:]
    events: Events = [
        shared
        | {
            "sequence_number": n,
            "choices": [
                {
                    "delta": {"content": texts[n]},
                    "token_ids": parts[n],
                    "finish_reason": (None, answer.finish_reason.value)[n],
                }
            ],
        }
        for n in range(2)
    ]
    events[0]["prompt_token_ids"] = prompt_ids
    events[1] |= {"seed": seed, "usage": {"completion_tokens": len(answer.token_ids)}}
    return events


@pytest.fixture
def judged(
    tiny_model_dir: Path, undisturbed: Undisturbed
) -> Callable[[Callable[[Events, Book], None]], list[str]]:
    """Judges a good book of two requests after something was done to the first one's events."""

    def run(change: Callable[[Events, Book], None]) -> list[str]:
        book = Book()
        for name, more in (("greedy", {"temperature": 0}), ("drawn", {"seed": 3})):
            asked = book.add(
                Asked(name, name, AskedKind.ANSWER, book.started_s, body_of(name, **more))
            )
            prompt_ids = judge_prompt(undisturbed, asked)
            (answer,) = undisturbed.answers({name: (prompt_ids, asked.body, 3)}).values()
            events = copy.deepcopy(answer_events(name, prompt_ids, answer, seed=3))
            if name == "greedy":
                change(events, book)
            for event in events:
                asked.reply.watch(event, 1)
            if asked.reply.reader.finished:
                asked.order = len(book.asked)
                asked.finished.set()
        Judge(tiny_model_dir, book).judge()
        return [f"{one.kind}: {one.about}" for one in book.problems]

    return run


def judge_prompt(undisturbed: Undisturbed, asked: Asked) -> list[int]:
    found = undisturbed.tokenizer.apply_chat_template(
        asked.body["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(found)


def leave(events: Events, book: Book) -> None:
    """Nothing is wrong."""


def lose_the_end(events: Events, book: Book) -> None:
    events.pop()


def change_a_token(events: Events, book: Book) -> None:
    events[1]["choices"][0]["token_ids"][0] += 1


def change_the_text(events: Events, book: Book) -> None:
    events[1]["choices"][0]["delta"]["content"] += "!"


def change_the_prompt(events: Events, book: Book) -> None:
    events[0]["prompt_token_ids"] = events[0]["prompt_token_ids"][:-1]


def say_two_things(events: Events, book: Book) -> None:
    other = copy.deepcopy(events[0])
    other["choices"][0]["delta"]["content"] = "other"
    events.insert(1, other)


def end_twice(events: Events, book: Book) -> None:
    events.append(events[1] | {"attempt": 6, "sequence_number": 0})


def begin_again(events: Events, book: Book) -> None:
    events[:] = [events[0], *(event | {"attempt": 6} for event in events)]


def begin_again_after_a_flush(events: Events, book: Book) -> None:
    begin_again(events, book)
    book.faults.append(FaultRun(0, FaultKind.REDIS_FLUSHED, book.started_s, book.started_s))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (leave, set()),
        (lose_the_end, {"lost: greedy"}),
        (change_a_token, {"different: greedy"}),
        (change_the_text, {"different: greedy"}),
        (change_the_prompt, {"different: greedy"}),
        (say_two_things, {"different: greedy"}),
        (end_twice, {"doubled: greedy"}),
        (begin_again, {"restarted: greedy"}),
        (begin_again_after_a_flush, set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_it_finds_what_is_wrong_with_a_reply(
    judged: Callable[[Callable[[Events, Book], None]], list[str]],
    change: Callable[[Events, Book], None],
    expected: set[str],
) -> None:
    """Each kind of damage, done to one of two replies."""
    assert set(judged(change)) == expected
