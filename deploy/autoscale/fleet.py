"""The worker processes of an autoscaler: added and drained while others run.

Owns which there are and what each is doing; how one is kept running is `supervisor`'s, and how many
there should be is decided elsewhere.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.deploy.autoscale.decision import Workers
from headrace.deploy.supervisor import Program, Supervised

FIRST_START_S = 15.0
"""What a start takes, before one was seen."""


@dataclass(eq=False, slots=True)
class Member:
    """One worker under supervision."""

    number: int
    supervised: Supervised
    added_s: float
    is_draining: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_ready(self) -> bool:
        """Whether it works, or did a moment ago, and shall go on."""
        return not self.is_draining and self.supervised.starting_since_s is None


class Fleet:
    """Workers 1, 2, 3 … whose lives are tasks of one group.

    `make_program`: the command line of a worker by its number. Numbers of workers that ended are
    given again, and with them their log files.
    """

    def __init__(
        self,
        make_program: Callable[[int], Program],
        *,
        stop_timeout_s: float,
        on_note: Callable[[str], None],
    ) -> None:
        self._start_s = FIRST_START_S
        self._make_program = make_program
        self._stop_timeout_s, self._on_note = stop_timeout_s, on_note
        self._members: list[Member] = []

    @property
    def members(self) -> tuple[Member, ...]:
        """All, those that drain included."""
        return tuple(self._members)

    @property
    def workers(self) -> Workers:
        """How many do what."""
        staying = [one.supervised.starting_since_s for one in self._members if not one.is_draining]
        starting = tuple(since_s for since_s in staying if since_s is not None)
        draining = len(self._members) - len(staying)
        return Workers(len(staying) - len(starting), starting, draining)

    def expected_start_s(self) -> float:
        """What the newest of the starts that succeeded took."""
        for member in self._members:
            self._start_s = member.supervised.start_took_s or self._start_s
        return self._start_s

    def add(self, tasks: asyncio.TaskGroup, *, must_start: bool = False) -> Member:
        """Start one more worker in `tasks`; the group fails if it must start and does not."""
        taken = {one.number for one in self._members}
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        supervised = Supervised(
            self._make_program(number),
            stop_timeout_s=self._stop_timeout_s,
            on_restart=self._on_note,
            must_start=must_start,
        )
        member = Member(number, supervised, time.monotonic())
        self._members.append(member)
        member.task = tasks.create_task(supervised.run(), name=f"fleet.worker-{number}")
        member.task.add_done_callback(lambda _: self._members.remove(member))
        return member

    def drain(self, member: Member) -> None:
        """Ask it to hand over and end; it is a member until it is gone."""
        if member.is_draining or member.task is None:
            return
        member.is_draining = True
        member.task.cancel()

    def kill(self) -> None:
        """End all at once."""
        for member in self._members:
            member.supervised.kill()
