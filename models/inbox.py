"""The way into the engine thread: commands of other threads, taken at step boundaries in the order
they came.
"""

import threading
import time
from dataclasses import dataclass
from enum import Enum, auto

from headrace.models.generation import Generation


class Action(Enum):
    """What a command does with its generation."""

    ADD = auto()
    CANCEL = auto()
    ABORT = auto()


@dataclass(frozen=True, slots=True)
class Command:
    """One call from another thread."""

    action: Action
    generation: Generation


class Inbox:
    """An unbounded, closable queue; whoever admits requests bounds it (see `Engine.num_waiting`).

    Units: the first request after an idle time is held for up to `window_s`, or until there are
        `full_batch` requests, so that the first step is a batch.
    """

    def __init__(self, *, window_s: float, full_batch: int) -> None:
        self._window_s, self._full_batch = window_s, full_batch
        self._changed = threading.Condition()
        self._commands: list[Command] = []
        self._num_adds = 0
        self._closed = False

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

    def take(self, *, idle: bool) -> list[Command] | None:
        """All commands so far; an idle taker waits for one. None when the inbox was closed."""
        with self._changed:
            if idle:
                self._changed.wait_for(lambda: self._commands or self._closed)
                self._wait_for_batch()
            if self._closed:
                return None
            commands, self._commands, self._num_adds = self._commands, [], 0
            return commands

    def close(self) -> None:
        """Refuse further commands, drop those not taken, and wake the taker."""
        with self._changed:
            self._closed = True
            self._commands, self._num_adds = [], 0
            self._changed.notify()

    def _wait_for_batch(self) -> None:
        deadline_s = time.monotonic() + self._window_s
        while not self._closed and 0 < self._num_adds < self._full_batch:
            if not self._changed.wait(deadline_s - time.monotonic()):
                return
