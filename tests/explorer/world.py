"""All there is: workers, Redis, broker, group, and one time, which passes when a schedule says."""

from collections import Counter

from redis.exceptions import ConnectionError as RedisConnectionError

from headrace.schemas.keys import Keys
from headrace.streams.ledger import Place
from tests.explorer.broker import Broker
from tests.explorer.checks import Checks
from tests.explorer.group import Group
from tests.explorer.mini_redis import MiniRedis
from tests.explorer.worker import EPOCH_S, SimWorker

TICK_S = 1e-6
"""Added to a timer's time, so that no rounding makes it late."""

MAX_STEPS_AT_ONCE = 2_000
"""Of all workers, with no time passing: more is going in circles."""


class Doubts:
    """What happened that the promise makes exceptions for (docs/delivery.md)."""

    def __init__(self) -> None:
        self.redis_failed = False
        """An answer was lost, late or an error: some worker held Redis for absent."""
        self.redis_lost_data = False
        self.clock_stepped = False
        self.num_crashes = 0

    @property
    def is_strict(self) -> bool:
        """Whether Redis was there all the time."""
        return not (self.redis_failed or self.redis_lost_data)

    @property
    def promise_holds(self) -> bool:
        """False: tokens may have gone back (docs/delivery.md, What is not guaranteed)."""
        return self.is_strict or not self.clock_stepped


class World:
    """Owns the workers and what they talk to. `machines[i]`: the process that runs there."""

    def __init__(self, num_workers: int, num_partitions: int) -> None:
        self.now_s = 0.0
        self.skews_s = [0.0] * num_workers
        self.doubts = Doubts()
        self.counts: Counter[str] = Counter()
        """What the workers' metrics noted: shows what schedules reach."""
        self.keys = Keys()
        self.redis = MiniRedis(lambda: int((EPOCH_S + self.now_s) * 1000))
        self.redis_is_up, self.redis_is_full = True, False
        self.checks = Checks(self)
        self.broker = Broker(
            num_partitions, on_event=self.checks.on_event, on_commit=self.checks.on_commit
        )
        self.group = Group(num_partitions, lambda: self.now_s)
        self.group.plan = list(range(num_partitions))
        self._num_started = 0
        self.dead: list[SimWorker] = []
        """With something on its way that may still arrive."""
        self.machines: list[SimWorker] = []
        for machine in range(num_workers):
            self.machines.append(self._new_worker(machine))

    def _new_worker(self, machine: int) -> SimWorker:
        self._num_started += 1
        return SimWorker(self, self._num_started, machine)

    def start(self, machine: int) -> None:
        """A new process in the place of one that has ended."""
        self.dead.append(self.machines[machine])
        self.machines[machine] = self._new_worker(machine)

    @property
    def living(self) -> list[SimWorker]:
        return [worker for worker in self.machines if worker.is_up]

    @property
    def wall_ms(self) -> int:
        return int((EPOCH_S + self.now_s) * 1000)

    # time

    def pass_time(self, seconds: float, *, working: bool) -> None:
        """Timers and heartbeats in their order. `working`: what is asked is answered at once."""
        end_s = self.now_s + seconds
        while True:
            if working:
                self.work()
            next_s = self._next_s()
            if next_s > end_s:
                break
            self.now_s = max(self.now_s, next_s) + TICK_S
            self._run_due()
        self.now_s = max(self.now_s, end_s)
        self._run_due()
        if working:
            self.work()

    def _next_s(self) -> float:
        times = [self.now_s + 1e9]
        for worker in self.living:
            times.append(worker.next_beat_s)
            timer_s = worker.loop.next_timer_s
            if timer_s is not None:
                times.append(timer_s - worker.monotonic_s() + self.now_s)
        return min(times)

    def _run_due(self) -> None:
        for worker in self.living:
            worker.run()
            if worker.next_beat_s <= self.now_s:
                worker.heartbeat()
        self.group.expel()
        self.note_failures()

    # what happens when nothing goes wrong

    def work(self, *, engine: bool = True) -> None:
        """Everything asked is done and answered, until nobody asks for more. One engine step."""
        if engine:
            for worker in self.living:
                self.step_engine(worker)
        for _ in range(MAX_STEPS_AT_ONCE):
            if not any([self.work_for(worker) for worker in self.living]):
                return
        self.checks.broken("the workers ask without end, and no time passes")

    def work_for(self, worker: SimWorker) -> bool:
        """What one worker waits for; False: it waits for nothing that can be had now."""
        did = self.answer_redis(worker) | worker.join() | worker.learn()
        did |= self.answer_kafka(worker) | self.feed(worker)
        self.note_failures()
        return did

    def answer_redis(self, worker: SimWorker) -> bool:
        """The next pipeline of this worker; False: there is none."""
        line = worker.redis.line
        if line.next() is None or not worker.is_up:
            return False
        if self.redis_is_up:
            line.answer()
            self.doubts.redis_failed |= self.redis_is_full
        else:
            self.doubts.redis_failed = True
            line.fail(RedisConnectionError("Redis is away"), may_arrive=False)
        worker.run()
        return True

    def answer_kafka(self, worker: SimWorker) -> bool:
        """All that this worker sent, and its next question of offsets."""
        if worker.is_cut_off or not worker.is_up:
            return False
        did = False
        producer, app = worker.producer, worker.app
        if producer is not None and (producer.sending or producer.taken):
            while producer.sending:
                producer.take()
            producer.acknowledge()
            worker.run()
            did = True
        if app is not None and app.consumer_thread.line.next() is not None:
            app.consumer_thread.line.answer()
            worker.run()
            did = True
        return did

    def feed(self, worker: SimWorker) -> bool:
        """All records that wait."""
        did = False
        for place in self.broker.logs:
            while worker.can_feed(place):
                worker.feed(place)
                did = True
        return did

    def step_engine(self, worker: SimWorker) -> bool:
        """One token for each generation; False: none runs."""
        if worker.engine is None or not worker.is_up:
            return False
        did: bool = worker.on_stage(worker.engine.step)
        worker.run()
        return did

    def note_failures(self) -> None:
        """A worker may end by itself only if a send was refused."""
        for worker in self.machines:
            problem = worker.fails()
            if problem is not None:
                self.checks.broken(f"worker {worker.number} failed: {problem}")

    # its end

    def close(self) -> None:
        """No task is left behind."""
        for worker in [*self.dead, *self.machines]:
            worker.kill()

    def is_quiet(self) -> bool:
        """Whether every record is committed."""
        return all(
            self.broker.committed(place) == self.broker.end(place) for place in self.broker.logs
        )

    def unfinished(self) -> list[Place]:
        return [p for p in self.broker.logs if self.broker.committed(p) < self.broker.end(p)]
