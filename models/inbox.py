"""The way into the engine thread: what other threads ask for, taken at step boundaries in the order
it came.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.models.generation import Generation
from headrace.models.request import KVBlock


class Action(Enum):
    """What a command does with its generation; SHARE: it runs alone no longer."""

    ADD = auto()
    CANCEL = auto()
    ABORT = auto()
    SHARE = auto()


@dataclass(frozen=True, slots=True)
class Command:
    """One call from another thread."""

    action: Action
    generation: Generation


@dataclass(frozen=True, slots=True)
class Export:
    """A wish for copies of blocks, by their names; None where one is not there."""

    hashes: Sequence[bytes]
    done: "Future[list[KVBlock | None]]" = field(default_factory=Future)


class Inbox:
    """An unbounded, closable queue; whoever admits requests bounds it (see `Engine.num_waiting`).

    Exports have a queue of their own, which stays open until the taker has ended: `take_exports`.

    Units: the first request after an idle time is held for up to `window_s` while others are
        expected, or until there are `full_batch` requests, so that the first step is a batch.
    """

    def __init__(self, *, window_s: float, full_batch: int) -> None:
        self._window_s, self._full_batch = window_s, full_batch
        self._changed = threading.Condition()
        self._commands: list[Command] = []
        self._exports: list[Export] = []
        self._num_adds = self._num_expected = 0
        self._closed = False
        self._takes_exports = True

    @property
    def num_adds(self) -> int:
        """Requests that were put and not taken yet."""
        return self._num_adds

    def put(self, command: Command) -> bool:
        """Queue a command; False if the inbox is closed."""
        with self._changed:
            if self._closed:
                return False
            self._commands.append(command)
            self._num_adds += command.action is Action.ADD
            self._changed.notify()
            return True

    def expect(self, change: int) -> None:
        """So many more requests (or fewer) are about to be put."""
        with self._changed:
            self._num_expected += change
            self._changed.notify()

    def put_export(self, export: Export) -> bool:
        """Queue an export; False once the taker has ended."""
        with self._changed:
            if self._takes_exports:
                self._exports.append(export)
                self._changed.notify()
            return self._takes_exports

    def take(self, *, idle: bool) -> list[Command] | None:
        """All commands so far; an idle taker waits for one, or for an export. None when the inbox
        was closed.
        """
        with self._changed:
            if idle:
                self._changed.wait_for(lambda: self._commands or self._exports or self._closed)
                self._wait_for_batch()
            if self._closed:
                return None
            commands, self._commands, self._num_adds = self._commands, [], 0
            return commands

    def take_exports(self, *, last: bool = False) -> list[Export]:
        """All exports so far; after the `last` time no more are taken."""
        with self._changed:
            self._takes_exports = self._takes_exports and not last
            exports, self._exports = self._exports, []
            return exports

    def close(self) -> None:
        """Refuse further commands, drop those not taken, and wake the taker."""
        with self._changed:
            self._closed = True
            self._commands, self._num_adds = [], 0
            self._changed.notify()

    def _wait_for_batch(self) -> None:
        deadline_s = time.monotonic() + self._window_s
        while not self._closed and 0 < self._num_adds < self._full_batch and self._num_expected > 0:
            if self._exports or not self._changed.wait(deadline_s - time.monotonic()):
                return
