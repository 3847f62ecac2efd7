"""A run against made-up servers, on a clock that its waits move."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import pytest

from headrace.deploy.bench.exchange import Exchange, Outcome
from headrace.deploy.bench.report import FIGURES, Measured, figures_of
from headrace.deploy.bench.run import CANCEL_WAIT_S, LoadRun
from headrace.deploy.bench.way import Observer, WayError
from headrace.producers.load_arrivals import Arrival, arrivals, constant_times
from headrace.producers.load_schedule import LoadSchedule
from headrace.schemas.errors import ErrorCode, RequestError, UnavailableError
from tests.loads import PlainSession, chunk, last
from tests.virtual_time import VirtualLoop, run_virtually

NEVER_S = 1e6


@dataclass
class FakeServer:
    """A way in whose answers come `latency_s(now)` after a request, and which ends what is
    cancelled if `obeys`.
    """

    latency_s: Callable[[float], float]
    obeys: bool = True
    asked: list[tuple[float, Exchange]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _cancels: dict[str, asyncio.Event] = field(default_factory=dict)
    _observer: Observer | None = None

    async def start(self, observer: Observer) -> None:
        self._observer = observer

    async def stop(self) -> None:
        pass

    async def ask(self, exchange: Exchange, body: dict[str, Any]) -> None:
        assert self._observer is not None
        now_s = asyncio.get_running_loop().time()
        self.asked.append((now_s, exchange))
        cancel = self._cancels[exchange.request_id] = asyncio.Event()
        reason = "cancelled"
        try:
            async with asyncio.timeout(self.latency_s(now_s)):
                await cancel.wait()
        except TimeoutError:
            reason = "stop"
        self._observer.saw(exchange, chunk(0, "a"))
        self._observer.saw(exchange, last(1, "b", 2, reason=reason))

    async def cancel(self, exchanges: Sequence[Exchange]) -> bool:
        self.cancelled += [exchange.request_id for exchange in exchanges]
        for exchange in exchanges if self.obeys else ():
            self._cancels[exchange.request_id].set()
        return True


def load(rate: float, *, num_turns: int = 1, **bounds: Any) -> LoadSchedule:
    """Evenly spaced sessions."""
    sessions = (PlainSession(str(number), num_turns, 1.0) for number in count())
    return LoadSchedule(arrivals(constant_times(rate), sessions), **bounds)


async def ran(
    server: FakeServer,
    schedule: LoadSchedule,
    *,
    drain_timeout_s: float = 100.0,
    max_in_flight: int = 10_000,
    meanwhile: Callable[[LoadRun], None] | None = None,
) -> LoadRun:
    run = LoadRun(schedule, server, max_in_flight=max_in_flight, drain_timeout_s=drain_timeout_s)
    await server.start(run)
    if meanwhile is not None:
        meanwhile(run)
    await run.run()
    return run


def figures(run: LoadRun) -> dict[str, float | None]:
    return figures_of(Measured(run.recorder, 0.0, run.sending_s or 0.0, {}))


def latencies(run: LoadRun) -> list[tuple[float, float]]:
    """(due, seconds to the end) of each, by due time."""
    whole = run.recorder.whole
    return sorted(zip(whole.column(0).tolist(), whole.column(1).tolist(), strict=True))


def test_a_stall_of_the_server_shows_in_every_request_that_was_due_meanwhile() -> None:
    """No coordinated omission: a server that stands still for 5 s is asked all the same, and each
    of these requests waited until its end.
    """
    server = FakeServer(lambda now_s: max(0.1, 7.0 - now_s) if now_s >= 2.0 else 0.1)
    run = run_virtually(ran(server, load(10, end_s=10.0)))
    found = latencies(run)
    assert [due_s for due_s, _ in found] == [pytest.approx(i / 10) for i in range(100)]
    for due_s, latency_s in found:
        stalled = 2.0 <= due_s < 6.9
        assert latency_s == pytest.approx(7.0 - due_s if stalled else 0.1, abs=0.01)
    assert [now_s for now_s, _ in server.asked] == [pytest.approx(i / 10) for i in range(100)]
    assert cast(float, figures(run)["ttft_p90"]) > 3.9
    assert figures(run)["generator_lag_max"] == pytest.approx(0, abs=1e-6)


def test_a_stall_of_the_generator_itself_is_in_the_latencies_and_is_told() -> None:
    """Latency counts from when a request was due, not from when it was sent after all."""

    def block(run: LoadRun) -> None:
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        loop.call_at(1.95, loop.block, 3.0)

    run = run_virtually(ran(FakeServer(lambda _: 0.1), load(10, end_s=10.0), meanwhile=block))
    found = dict(latencies(run))
    assert len(found) == 100
    assert found[2.0] == pytest.approx(4.95 - 2.0 + 0.1, abs=0.02)
    assert found[4.0] == pytest.approx(4.95 - 4.0 + 0.1, abs=0.02)
    assert figures(run)["generator_lag_max"] == pytest.approx(2.95, abs=0.02)


def test_a_turn_is_due_after_the_answer_before_it() -> None:
    """Within a session the loop is closed: nobody asks on before the answer is there."""
    server = FakeServer(lambda _: 2.0)
    run = run_virtually(ran(server, load(0.1, num_turns=3, end_s=10.0)))
    assert [now_s for now_s, _ in server.asked] == [pytest.approx(i) for i in (0.0, 3.0, 6.0)]
    assert run.recorder.session.column().tolist() == [pytest.approx(8.0)]
    assert run.schedule.num_complete == 1


def test_what_exceeds_the_bound_is_not_sent_and_counted() -> None:
    """Not sent later either: that would make the load depend on the answers."""
    server = FakeServer(lambda _: 10.0)
    run = run_virtually(ran(server, load(1, end_s=12.0), max_in_flight=3))
    sent_s = [now_s for now_s, _ in server.asked]
    assert sent_s == [pytest.approx(i) for i in (0.0, 1.0, 2.0, 10.0, 11.0)]
    assert run.recorder.outcomes == {Outcome.FINISHED: 5, Outcome.NOT_SENT: 7}
    assert run.recorder.errors == {"not_sent": 7}


def test_what_does_not_come_in_time_is_unfinished_and_cancelled() -> None:
    """So that nothing runs on for nobody."""
    server = FakeServer(lambda now_s: NEVER_S if now_s == 1.0 else 0.1)
    run = run_virtually(ran(server, load(1, max_requests=3), drain_timeout_s=20.0))
    assert run.recorder.outcomes == {Outcome.FINISHED: 2, Outcome.UNFINISHED: 1}
    assert server.cancelled == ["1.1"]
    assert run.recorder.num_running == 0
    assert run.sending_s == pytest.approx(2.0)


def test_an_interrupted_run_cancels_and_waits_for_the_ends() -> None:
    """What has come so far stays."""
    server = FakeServer(lambda now_s: 0.1 if now_s < 3 else NEVER_S)

    async def timed() -> tuple[LoadRun, float]:
        loop = asyncio.get_running_loop()
        schedule = load(1, end_s=1000.0)
        found = await ran(server, schedule, meanwhile=lambda r: _later(5.5, r.interrupt))
        return found, loop.time()

    run, ended_s = run_virtually(timed())
    assert run.recorder.outcomes == {Outcome.FINISHED: 3, Outcome.CANCELLED: 3}
    assert server.cancelled == ["3.3", "4.4", "5.5"]
    assert ended_s == pytest.approx(5.5)
    assert run.interrupted


@pytest.mark.parametrize(("second_s", "ends_s"), [(None, 5.5 + CANCEL_WAIT_S), (7.0, 7.0)])
def test_a_second_interruption_waits_for_nothing(second_s: float | None, ends_s: float) -> None:
    """Nor does the first wait for ever, where workers do not answer a cancel."""
    server = FakeServer(lambda _: NEVER_S, obeys=False)

    def interrupt(run: LoadRun) -> None:
        for at_s in (5.5, *([second_s] if second_s else [])):
            _later(at_s, run.interrupt)

    async def timed() -> float:
        run = await ran(server, load(1, end_s=1000.0), meanwhile=interrupt)
        assert run.recorder.outcomes == {Outcome.CANCELLED: 6}
        return asyncio.get_running_loop().time()

    assert run_virtually(timed()) == pytest.approx(ends_s)


def test_an_interruption_ends_the_wait_for_answers() -> None:
    """Somebody who has seen enough does not wait for the rest."""
    server = FakeServer(lambda _: NEVER_S)

    async def timed() -> float:
        schedule = load(1, max_requests=2)
        await ran(server, schedule, meanwhile=lambda r: _later(30.0, r.interrupt))
        return asyncio.get_running_loop().time()

    assert run_virtually(timed()) == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (RequestError(ErrorCode.INVALID_VALUE, "too large"), "invalid_value"),
        (UnavailableError("Kafka", 1.0), "unavailable"),
        (WayError("http_502"), "http_502"),
    ],
    ids=str,
)
def test_what_cannot_be_sent_is_an_error_of_that_request(problem: Exception, code: str) -> None:
    """The load goes on."""

    class Refusing(FakeServer):
        async def ask(self, exchange: Exchange, body: dict[str, Any]) -> None:
            if exchange.request_id == "1.1":
                raise problem
            await super().ask(exchange, body)

    run = run_virtually(ran(Refusing(lambda _: 0.1), load(1, max_requests=3, num_turns=1)))
    assert run.recorder.errors == {code: 1}
    assert run.recorder.outcomes == {Outcome.FINISHED: 2, Outcome.FAILED: 1}


def test_more_than_can_be_sent_does_not_keep_answers_from_being_read() -> None:
    """The loop turns between two requests, however many are due."""
    server = FakeServer(lambda _: 0.0)
    first = [Arrival(0.0, PlainSession(str(number))) for number in range(500)]
    run = run_virtually(ran(server, LoadSchedule(iter(first)), max_in_flight=50))
    assert run.recorder.outcomes == {Outcome.FINISHED: 500}


def test_requests_of_one_session_that_run_at_once_are_told_apart() -> None:
    """A recorded conversation is asked at its recorded times, answered or not."""
    server = FakeServer(lambda now_s: 0.5 if now_s < 2 else NEVER_S)
    session = PlainSession("s")
    schedule = LoadSchedule(Arrival(number / 10, session) for number in range(30))
    run = run_virtually(ran(server, schedule, drain_timeout_s=5.0))
    assert run.recorder.outcomes == {Outcome.FINISHED: 20, Outcome.UNFINISHED: 10}
    assert len({exchange.request_id for _, exchange in server.asked}) == 30


def test_the_names_of_figures_are_the_run_s() -> None:
    """A run that was interrupted before its first request has them too."""

    def at_once(run: LoadRun) -> None:
        run.interrupt()

    run = run_virtually(ran(FakeServer(lambda _: 0.1), load(1), meanwhile=at_once))
    assert figures(run).keys() == FIGURES
    assert run.recorder.num_sent == 0


def _later(at_s: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_at(at_s, call)
