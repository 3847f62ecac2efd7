"""From the options of `headrace bench` to a schedule: what is asked, and when."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.deploy.console import note
from headrace.deploy.replaying.dump_file import read_dump
from headrace.producers.load_arrivals import Arrival, arrivals, constant_times, poisson_times
from headrace.producers.load_recorded import RecordingError, read_recording
from headrace.producers.load_schedule import LoadSchedule
from headrace.producers.load_session import shaped_sessions
from headrace.producers.load_shapes import Shape


@dataclass(frozen=True, slots=True)
class Load:
    """What to ask, and how often. One of `duration_s` and `max_requests` may end it; a recording
    also ends by itself.
    """

    rate_per_s: float
    spacing: Literal["poisson", "constant"]
    shapes: list[Shape]
    recording: Path | None
    speed: float
    duration_s: float | None
    max_requests: int | None
    warm_up_s: float
    seed: int

    def schedule(self, run_id: str) -> LoadSchedule:
        """The load of one run; `run_id` is part of its sessions' names.

        Raises: DumpError, RecordingError, OSError for the recording's file.
        """
        end_s = None if self.duration_s is None else self.warm_up_s + self.duration_s
        return LoadSchedule(
            self._arrivals(run_id),
            warm_up_s=self.warm_up_s,
            end_s=end_s,
            max_requests=self.max_requests,
        )

    def _arrivals(self, run_id: str) -> Iterator[Arrival]:
        if self.recording is not None:
            return _recorded(self.recording, self.speed, run_id)
        is_poisson = self.spacing == "poisson"
        times = (
            poisson_times(self.rate_per_s, seed=self.seed)
            if is_poisson
            else constant_times(self.rate_per_s)
        )
        return arrivals(times, shaped_sessions(self.shapes, seed=self.seed, run_id=run_id))


def _recorded(path: Path, speed: float, run_id: str) -> Iterator[Arrival]:
    try:
        recording = read_recording(read_dump(path))
    except RecordingError as problem:
        raise RecordingError(f"{path}: {problem}") from problem
    if recording.num_skipped:
        note(f"{recording.num_skipped} records of {path} hold no valid request and are left out")
    return itertools.chain(recording.arrivals(speed=speed, run_id=run_id))
