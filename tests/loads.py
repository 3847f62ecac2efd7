"""Made-up loads and answers for tests of the load generator."""

from dataclasses import dataclass
from typing import Any

from headrace.deploy.bench.exchange import Exchange, Outcome
from headrace.deploy.bench.recorder import Recorder
from headrace.producers.load_schedule import Turn


@dataclass(frozen=True, slots=True)
class PlainSession:
    """Asks the same each time, `pause_s` after the answer before."""

    session_id: str
    num_turns: int = 1
    pause_s: float = 0.0

    def body(self, turn: int) -> dict[str, Any]:
        return {"prompt": f"turn {turn}"}

    def think_s(self, turn: int) -> float:
        return self.pause_s


def turn(due_s: float = 0.0, *, name: str = "s", number: int = 1, measured: bool = True) -> Turn:
    """A session's last turn."""
    return Turn(due_s, number, PlainSession(name, number), due_s, measured)


def chunk(number: int, text: str, *, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """An event that is not the last; one token a character, unless `ids` says otherwise."""
    choice = {
        "index": 0,
        "delta": {"content": text},
        "finish_reason": None,
        "token_ids": [ord(letter) for letter in text] if ids is None else ids,
    }
    event = {"id": "r", "session_id": "s", "object": "chat.completion.chunk", "attempt": 1}
    return {**event, "sequence_number": number, "created": 0, "choices": [choice], **more}


def last(number: int, text: str, num_tokens: int, *, reason: str = "stop") -> dict[str, Any]:
    """A last event."""
    event = chunk(number, text)
    event["choices"][0]["finish_reason"] = reason
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    return event | {"usage": usage}


def failed(number: int, code: str) -> dict[str, Any]:
    """A `failed` event."""
    event = {"id": "r", "session_id": "s", "object": "error", "attempt": 1}
    return {**event, "sequence_number": number, "error": {"code": code, "message": "no"}}


def finished(
    due_s: float, first_s: float, whole_s: float, *, number: int = 1, measured: bool = True
) -> Exchange:
    """Two tokens, the first `first_s` and the second `whole_s` after it was due."""
    exchange = Exchange(turn(due_s, number=number, measured=measured), "r", sent_s=due_s)
    exchange.take(chunk(0, "a"), due_s + first_s)
    exchange.take(last(1, "b", 2), due_s + whole_s)
    return exchange


def recorded(*exchanges: Exchange) -> Recorder:
    """A recorder that has seen these."""
    recorder = Recorder()
    for exchange in exchanges:
        if exchange.outcome is not Outcome.NOT_SENT:
            recorder.sent(exchange, exchange.due_s)
        ended_s = exchange.due_s if exchange.ended_s is None else exchange.ended_s
        recorder.tokens_came(exchange, exchange.num_tokens, ended_s)
        recorder.ended(exchange, ended_s)
    return recorder
