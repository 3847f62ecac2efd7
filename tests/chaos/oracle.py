"""Judges a run: what every reply must have been, and what must not be.

Three independent looks at the tokens: the plain model's choice at each place (greedy), an engine of
the product that nothing disturbs (all), and the tokenizer's text of all ids. The prompt ids that
were reported must be what the conversation demands. Knows how to compare, not how to run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import torch

from headrace.models.conversation import ConversationEncoder
from headrace.models.loading import LoadedModel, load_model, make_runner
from headrace.models.request import EngineRequest
from headrace.schemas.request import GenerationRequest
from headrace.streams.preparation import sampling_of
from tests.chaos.book import Asked, AskedKind, Book, Problem
from tests.oracle import Oracle
from tests.unit.models.engine_run import Answer, EngineRun

MAX_DEATHS = b"3"
"""So many workers may die of a request."""

POOL_BYTES = 128 * 2**20
REPLACEMENT = "\ufffd"


@contextmanager
def one_thread() -> Iterator[None]:
    """Of torch: on a machine that has other work, several wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(slots=True)
class Conversation:
    """What a session holds, by what its readers saw."""

    messages: list[dict[str, str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


class Undisturbed:
    """The product's engine in this process, without anything around it."""

    def __init__(self, folder: Path) -> None:
        self._loaded: LoadedModel = load_model(folder, dtype="float32")
        self._runner = make_runner(
            self._loaded, kv_pool_bytes=POOL_BYTES, max_batch_size=16, max_batch_tokens=512
        )
        self.tokenizer, self._window = self._loaded.tokenizer, self._loaded.max_model_len

    def answers(self, asked: dict[str, tuple[list[int], dict[str, Any], int]]) -> dict[str, Answer]:
        """Each key's answer to its prompt ids, body and seed; equal ones are run once."""
        run = EngineRun(
            self._loaded, self._runner, started=False, max_batch_size=16, max_batch_tokens=512
        )
        keys: dict[bytes, str] = {}
        same: dict[str, str] = {}
        requests = []
        for key, (prompt_ids, body, seed) in asked.items():
            request = self._request(key, prompt_ids, body, seed)
            what = orjson.dumps([prompt_ids, request.max_tokens, repr(request.sampling)])
            same[key] = keys.setdefault(what, key)
            if same[key] == key:
                requests.append(request)
        run.engine.start()
        try:
            found = run.run(*requests)
        finally:
            run.engine.stop()
        return {key: found[first] for key, first in same.items()}

    def _request(
        self, key: str, prompt_ids: list[int], body: dict[str, Any], seed: int
    ) -> EngineRequest:
        request = GenerationRequest.model_validate(body)
        return EngineRequest(
            key=key,
            prompt_ids=prompt_ids,
            max_tokens=min(request.token_limit, self._window - len(prompt_ids)),
            sampling=sampling_of(request, seed),
        )


class Judge:
    """Looks at a book when all is over, and adds the problems that it finds."""

    def __init__(self, folder: Path, book: Book) -> None:
        self._book = book
        self._model = Oracle(folder)
        self._undisturbed = Undisturbed(folder)
        self._encoder = ConversationEncoder(self._undisturbed.tokenizer)
        self.num_ties = 0
        """Greedy choices between two tokens that the plain model finds equal, nearly."""

    def judge(self) -> None:
        """Blocking: seconds for a thousand requests."""
        for session in self._book.sessions.values():
            self._judge_session(session)
            self._judge_order(session)
        self._judge_tokens()
        self._judge_dead_letters()
        for stray in sorted(self._book.strays):
            self._book.note(Problem("doubled", "an answer that nobody asked for", stray))

    def _problem(self, kind: str, asked: Asked, what: str) -> None:
        begin_s, end_s = asked.life
        self._book.note(Problem(kind, what, asked.request_id, begin_s, end_s))

    # prompts

    def _judge_session(self, session: list[Asked]) -> None:
        conversation = Conversation()
        for asked in session:
            if asked.kind is AskedKind.TOMBSTONE:
                conversation = Conversation()
            elif asked.kind is AskedKind.NEVER:
                if asked.reply.events:
                    self._problem("doubled", asked, "its transaction was aborted, it was answered")
            elif not asked.finished.is_set():
                self._problem("lost", asked, f"no last event, {len(asked.reply.events)} events")
            else:
                self._judge_reply(asked, session[0].asked_s)
                if asked.kind is AskedKind.ANSWER and not asked.failed:
                    self._judge_prompt(asked, conversation)

    def _judge_prompt(self, asked: Asked, conversation: Conversation) -> None:
        new = asked.body["messages"]
        if asked.body.get("context") == "append" and conversation.ids:
            expected = self._encoder.extend(conversation.messages, conversation.ids, new)
            conversation.messages += new
        else:
            expected = self._model.prompt_ids(new)
            conversation.messages = list(new)
        reported = asked.reply.events[0].get("prompt_token_ids")
        if reported != expected and not (asked.cancelled and reported is None):
            self._problem("different", asked, f"prompt of {len(reported or [])} ids, not expected")
        conversation.messages += [{"role": "assistant", "content": asked.reply.text}]
        conversation.ids = expected + asked.reply.token_ids

    # events

    def _judge_reply(self, asked: Asked, session_began_s: float) -> None:
        reply = asked.reply
        for text in reply.contradictions:
            self._problem("lost" if text.startswith("gap") else "different", asked, text)
        ends = sorted(reply.last_events.items(), key=lambda item: item[1][1])
        if len(ends) > 1 and not self._book.journal_lost(asked.asked_s, ends[-1][1][1]):
            self._problem("doubled", asked, f"last events in attempts {[one for one, _ in ends]}")
        if reply.num_restarts and not self._book.journal_lost(*asked.life):
            self._problem("restarted", asked, f"{reply.num_restarts} larger attempts")
        if not asked.failed:
            return
        error = reply.last["error"]
        if error["code"] != self._allowed_code(asked, session_began_s):
            self._problem("different", asked, f"failed: {error['code']} ({error['message']})")

    def _allowed_code(self, asked: Asked, session_began_s: float) -> str | None:
        if asked.kind is AskedKind.POISON:
            return "invalid_json"
        if asked.kind is AskedKind.DEADLY:
            return "internal_error"
        append = asked.body.get("context") == "append"
        lost = self._book.journal_lost(session_began_s, asked.life[1])
        return "session_out_of_sync" if append and lost else None

    def _judge_order(self, session: list[Asked]) -> None:
        """A cancelled one may end before those in front of it."""
        ended = [one for one in session if one.order is not None and not one.cancelled]
        for earlier, later in pairwise(ended):
            assert earlier.order is not None and later.order is not None  # noqa: PT018
            if earlier.order > later.order:
                self._problem("out of order", later, f"ended before {earlier.request_id}")

    def _judge_dead_letters(self) -> None:
        found = [value for value, _ in self._book.dead_letters]
        attempts = {v: headers["headrace-dlq-attempts"] for v, headers in self._book.dead_letters}
        for asked in self._book.answerable:
            wanted = asked.value
            if asked.kind is AskedKind.DEADLY:
                wanted = orjson.dumps(asked.body)
            if not wanted:
                continue
            count = found.count(wanted)
            may_repeat = self._book.worker_lost(*asked.life)  # between dead letter and last event
            if count != 1 and not (count and may_repeat):
                kind = "doubled" if count else "lost"
                self._problem(kind, asked, f"{count} dead letters")
            elif attempts[wanted] != (MAX_DEATHS if asked.kind is AskedKind.DEADLY else b"1"):
                self._problem("different", asked, f"dead letter after {attempts[wanted]!r} tries")

    # tokens

    def _judge_tokens(self) -> None:
        answered = {
            one.request_id: one
            for one in self._book.answerable
            if one.kind is AskedKind.ANSWER and one.finished.is_set() and not one.failed
        }
        expected = self._undisturbed.answers(
            {
                name: (prompt_ids, one.body, one.reply.last["seed"])
                for name, one in answered.items()
                if (prompt_ids := one.reply.events[0].get("prompt_token_ids"))
            }
        )
        for name, answer in expected.items():
            self._judge_answer(answered[name], answer)

    def _judge_answer(self, asked: Asked, expected: Answer) -> None:
        reply, ids = asked.reply, asked.reply.token_ids
        if reply.finish_reason == "cancelled":
            if not asked.cancelled:
                self._problem("different", asked, "cancelled by nobody")
            if ids != expected.token_ids[: len(ids)]:
                self._problem("different", asked, "cancelled, its ids are no prefix")
        elif ids != expected.token_ids:
            self._problem("different", asked, _first_difference(ids, expected.token_ids))
        elif (reply.text, reply.finish_reason) != (expected.text, expected.finish_reason):
            self._problem("different", asked, f"text or {reply.finish_reason}")
        self._judge_text(asked)
        self._judge_usage(asked)
        if asked.body.get("temperature") == 0 and ids:
            self._judge_greedy(asked, ids)

    def _judge_text(self, asked: Asked) -> None:
        whole = self._model.text(asked.reply.token_ids)
        found = [at for stop in asked.body.get("stop", []) if (at := whole.find(stop)) >= 0]
        expected, text = whole[: min(found)] if found else whole, asked.reply.text
        if asked.reply.finish_reason == "cancelled":
            expected, text = expected.rstrip(REPLACEMENT), text.rstrip(REPLACEMENT)
        if text != expected:
            self._problem("different", asked, f"{len(text)} characters, not the ids' text")

    def _judge_usage(self, asked: Asked) -> None:
        usage, ids = asked.reply.last["usage"], asked.reply.token_ids
        if usage["completion_tokens"] != len(ids):
            text = f"{usage['completion_tokens']} tokens of usage, {len(ids)} ids"
            self._problem("different", asked, text)

    def _judge_greedy(self, asked: Asked, ids: list[int]) -> None:
        prompt_ids = asked.reply.events[0]["prompt_token_ids"]
        for place, (chosen, made) in enumerate(
            zip(self._model.choices(prompt_ids, ids), ids, strict=True)
        ):
            if chosen == made:
                continue
            if self._model.lead(prompt_ids + ids[:place], chosen, made) > MAX_TIE:
                text = f"token {place} is {made}, greedy is {chosen}"
                self._problem("different", asked, text)
                return
            self.num_ties += 1


MAX_TIE = 1e-3
"""Logits this near may swap by rounding: the plain model sums in another order than the engine."""


def _first_difference(ids: list[int], expected: list[int]) -> str:
    pairs = enumerate(zip(ids, expected, strict=False))
    place = next((n for n, (one, other) in pairs if one != other), min(len(ids), len(expected)))
    return f"{len(ids)} ids, {len(expected)} expected, the first {place} are the same"
