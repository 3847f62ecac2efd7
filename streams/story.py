"""What one worker did with one request, and when: noted as it goes, told once, when the worker is
done with it. What a trace is made of.
"""

import time
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.schemas.request import DecodedRequest
from headrace.streams.generation import Ending, Generation, Start
from headrace.streams.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Moments:
    """Units: monotonic seconds; None for what did not happen here."""

    taken_s: float
    added_s: float | None = None
    """The engine was given it."""
    scheduled_s: float | None = None
    """Its prefill began."""
    first_s: float | None = None
    last_s: float | None = None
    """Of the tokens that were made here."""
    delivered_s: float | None = None
    """The broker had its last event."""


@dataclass(frozen=True, slots=True)
class Story:
    """A request in one worker, from the intake to its end here."""

    decoded: DecodedRequest
    outcome: str
    """`delivered`, `handed over`, `duplicate`, …"""
    moments: Moments
    ended_s: float
    start: Start | None = None
    ending: Ending | None = None
    num_tokens: int = 0
    """Of the whole answer, up to now."""
    num_resumed: int = 0
    """Of these, the tokens that earlier owners made."""
    num_events: int = 0
    """That the broker acknowledged."""


class Tracer(Protocol):
    """Takes what a worker did (tracing.py)."""

    def tell(self, story: Story) -> None: ...

    async def close(self) -> None: ...


class Account:
    """Notes the moments of one delivery that nobody else keeps. Without a tracer it tells none."""

    def __init__(self, tracer: Tracer | None, decoded: DecodedRequest, watch: Stopwatch) -> None:
        self._tracer, self._decoded, self._watch = tracer, decoded, watch
        self._taken_s = time.monotonic()
        self._added_s: float | None = None
        self._delivered_s: float | None = None
        self.num_resumed = 0

    def added(self) -> None:
        """The engine was given it; it is the first time that counts."""
        self._added_s = self._added_s or time.monotonic()

    def delivered(self) -> None:
        """The broker has its last event."""
        self._delivered_s = time.monotonic()

    def tell(self, outcome: str, generation: Generation | None) -> None:
        """The worker is done with it; `generation` is what it has of the answer."""
        if self._tracer is None:
            return
        watch = self._watch
        moments = Moments(
            self._taken_s,
            self._added_s,
            watch.scheduled_s,
            watch.first_s,
            watch.last_s,
            self._delivered_s,
        )
        story = Story(self._decoded, outcome, moments, time.monotonic())
        if generation is not None:
            story = replace(
                story,
                start=generation.start,
                ending=generation.ending,
                num_tokens=len(generation.ids),
                num_resumed=self.num_resumed,
                num_events=generation.acknowledged,
            )
        self._tracer.tell(story)
