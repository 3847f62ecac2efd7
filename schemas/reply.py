"""The reader's rule of contract §3, as a plain class: what a reader of the log keeps and drops."""

from enum import Enum
from typing import Any


class Seen(Enum):
    """What `ReplyReader.see` makes of an event."""

    NEW = "new"
    """The next event of the attempt that is followed."""
    RESTART = "restart"
    """The first event of a larger attempt: forget the text so far, then take this one."""
    OLD = "old"
    """Seen before, of a smaller attempt, or after the last event: drop it."""
    GAP = "gap"
    """Events before this one are missing: read them from the log, then show it again."""


class ReplyReader:
    """Follows the events of one request, in log order, and yields each exactly once."""

    def __init__(self, *, starting_after: int | None = None, attempt: int | None = None) -> None:
        """`starting_after`: the reader has sequence numbers up to this one already.

        `attempt`: of this attempt; where it is not known, it is the first one that is seen, so
        begin at the request's first event.
        """
        self.attempt = attempt
        self.next_number = 0 if starting_after is None else starting_after + 1
        self.finished = False

    def see(self, event: dict[str, Any]) -> Seen:
        """Judge `event`; NEW and RESTART also advance this reader."""
        attempt, number = event["attempt"], event["sequence_number"]
        followed = attempt if self.attempt is None else self.attempt
        if self.finished or attempt < followed:
            return Seen.OLD
        expected = self.next_number if attempt == followed else 0
        if number > expected:
            return Seen.GAP
        self.attempt, self.finished = attempt, is_last(event)
        if number < expected:
            return Seen.OLD
        self.next_number = number + 1
        return Seen.NEW if attempt == followed else Seen.RESTART


def is_last(event: dict[str, Any]) -> bool:
    """Whether `event` ends its generation."""
    if event["object"] == "error":
        return True
    return event["choices"][0]["finish_reason"] is not None


def usage_of(event: dict[str, Any], name: str) -> int | None:
    """A figure of `event`'s `usage`; None where it tells none that can be true."""
    usage = event.get("usage")
    figure = usage.get(name) if isinstance(usage, dict) else None
    return figure if type(figure) is int and figure >= 0 else None


def event_text(event: dict[str, Any]) -> str:
    """The text that `event` adds to the answer; empty for a `failed` event."""
    if event["object"] == "error":
        return ""
    choice = event["choices"][0]
    return str(choice.get("delta", choice.get("message", {})).get("content") or "")
