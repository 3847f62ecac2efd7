"""What a schedule can make happen. An action that is not possible then does nothing: False.

Actions name workers by machine, so a schedule keeps its meaning when some of it is left out.
"""

from collections.abc import Callable
from typing import Any

import orjson
from redis.exceptions import ConnectionError as RedisConnectionError

from headrace.streams.ledger import Place
from tests.explorer.broker import TOPICS
from tests.explorer.worker import Life, SimWorker
from tests.explorer.world import World

Action = tuple[str, int, int]
"""Name, the worker's machine or another number, and one more number."""

SESSIONS = (b"s0", b"s1", b"s2")
VARIANTS: tuple[dict[str, Any], ...] = (
    {"return_token_ids": True},
    {},
    {"stream": False},
    {"max_tokens": 5},
    {"seed": None},
    {"stop": ["€a"], "return_token_ids": True},
)
MAX_WORK = 50
ACTION_S = 0.001
"""What happens takes time."""


class Actions:
    """The actions of one world, by name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._num_requests = 0
        self._saved: Any = None
        self._by_name: dict[str, Callable[[int, int], bool]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._by_name)

    def act(self, action: Action) -> bool:
        """Do it, if it can be done now."""
        name, first, second = action
        did = self._by_name[name](first, second)
        if did:
            self._world.now_s += ACTION_S
            self._world.counts[f"did {name}"] += 1
            self._world.note_failures()
        return did

    def _up(self, machine: int) -> SimWorker | None:
        worker = self._world.machines[machine % len(self._world.machines)]
        return worker if worker.is_up else None

    # clients

    def _append(self, session: bytes, value: bytes | None) -> bool:
        world = self._world
        partition = SESSIONS.index(session) % world.broker.num_partitions
        record = world.broker.append(TOPICS.requests, partition, session, value, world.wall_ms)
        world.checks.on_request(record)
        return True

    def do_send(self, session: int, variant: int) -> bool:
        """A new request."""
        self._num_requests += 1
        body = {"request_id": f"r{self._num_requests}", "prompt": "hi", "seed": variant}
        body |= VARIANTS[variant % len(VARIANTS)]
        return self._append(SESSIONS[session % len(SESSIONS)], orjson.dumps(body))

    def do_send_failing(self, session: int, _: int) -> bool:
        """A request that the engine gives up at its third token."""
        self._num_requests += 1
        body = {"request_id": f"r{self._num_requests}", "prompt": "hiBOOM", "seed": 1}
        return self._append(SESSIONS[session % len(SESSIONS)], orjson.dumps(body))

    def do_send_again(self, session: int, number: int) -> bool:
        """A second record with the id of another, in the same partition."""
        if not self._num_requests:
            return False
        request_id = f"r{1 + number % self._num_requests}"
        first = self._world.checks.session_of(request_id)
        if first is None:
            return False
        num_partitions = self._world.broker.num_partitions
        partition = SESSIONS.index(first) % num_partitions
        near = [one for i, one in enumerate(SESSIONS) if i % num_partitions == partition]
        body = {"request_id": request_id, "prompt": "again", "seed": 2}
        return self._append(near[session % len(near)], orjson.dumps(body))

    def do_send_poison(self, session: int, _: int) -> bool:
        return self._append(SESSIONS[session % len(SESSIONS)], b"{")

    def do_send_tombstone(self, session: int, _: int) -> bool:
        return self._append(SESSIONS[session % len(SESSIONS)], None)

    def do_send_marker(self, partition: int, _: int) -> bool:
        broker = self._world.broker
        broker.append_marker(Place(TOPICS.requests, partition % broker.num_partitions))
        return True

    def do_cancel(self, number: int, _: int) -> bool:
        """For a request that is there, or for the next one."""
        world = self._world
        request_id = f"r{1 + number % (self._num_requests + 1)}"
        session = world.checks.session_of(request_id) or SESSIONS[number % len(SESSIONS)]
        body = {"action": "cancel", "request_id": request_id, "session_id": session.decode()}
        partition = SESSIONS.index(session) % world.broker.num_partitions
        value = orjson.dumps(body)
        world.broker.append(TOPICS.control, partition, session, value, world.wall_ms)
        world.checks.on_cancel(request_id)
        return True

    # what workers ask for

    def do_feed(self, machine: int, number: int) -> bool:
        """The next record of one partition."""
        worker = self._up(machine)
        if worker is None:
            return False
        ready = [place for place in self._world.broker.logs if worker.can_feed(place)]
        if ready:
            worker.feed(ready[number % len(ready)])
        return bool(ready)

    def do_redis(self, machine: int, _: int) -> bool:
        """The next pipeline is carried out and answered; refused, if Redis is away."""
        worker = self._up(machine)
        return worker is not None and self._world.answer_redis(worker)

    def do_redis_step(self, machine: int, _: int) -> bool:
        """The next script of the next pipeline is carried out; nobody is told."""
        world = self._world
        operation = world.machines[machine % len(world.machines)].redis.line.next()
        if operation is None or operation.is_carried_out or not world.redis_is_up:
            return False
        operation.carry_out(1)
        return True

    def do_redis_lose(self, machine: int, how: int) -> bool:
        """The next pipeline gets an error; it was carried out, was not, or will be."""
        worker = self._up(machine)
        line = worker.redis.line if worker is not None else None
        if worker is None or line is None or line.next() is None:
            return False
        if how % 3 == 0 and self._world.redis_is_up:
            line.waiting[0].carry_out()
        self._world.doubts.redis_failed = True
        line.fail(RedisConnectionError("connection lost"), may_arrive=how % 3 == 1)
        worker.run()
        return True

    def do_late(self, machine: int, number: int) -> bool:
        """A pipeline that nobody waits for any more reaches Redis, or its next script does."""
        world = self._world
        workers = [world.machines[machine % len(world.machines)], *world.dead]
        lines = [worker.redis.line for worker in workers if worker.redis.line.late]
        if not lines or not world.redis_is_up:
            return False
        late = lines[number % len(lines)].late
        operation = late[number % len(late)]
        operation.carry_out(1 if number % 2 else None)
        if operation.is_carried_out:
            late.remove(operation)
        return True

    def do_publish(self, machine: int, _: int) -> bool:
        """The broker takes the next record; it is not acknowledged yet."""
        worker = self._world.machines[machine % len(self._world.machines)]
        if worker.producer is None or not worker.producer.sending or worker.is_cut_off:
            return False
        worker.producer.take()
        return True

    def do_publish_late(self, number: int, _: int) -> bool:
        """The broker takes what a process that is gone had sent."""
        senders = [
            worker.producer
            for worker in self._world.dead
            if worker.producer is not None and worker.producer.sending
        ]
        if senders:
            senders[number % len(senders)].take()
        return bool(senders)

    def do_refuse(self, machine: int, _: int) -> bool:
        """The next record is refused for good: the worker ends."""
        worker = self._up(machine)
        if worker is None or worker.producer is None or not worker.producer.sending:
            return False
        worker.producer.refuse()
        worker.run()
        return True

    def do_kafka(self, machine: int, _: int) -> bool:
        """All that was sent is taken and acknowledged, the next question of offsets answered."""
        worker = self._up(machine)
        return worker is not None and self._world.answer_kafka(worker)

    def do_offsets(self, machine: int, _: int) -> bool:
        """The next commit or question of offsets is carried out; nobody is told."""
        worker = self._world.machines[machine % len(self._world.machines)]
        operation = worker.app.consumer_thread.line.next() if worker.app else None
        if operation is None or operation.is_carried_out or worker.is_cut_off:
            return False
        operation.carry_out()
        return True

    def do_step(self, machine: int, _: int) -> bool:
        """An engine step."""
        worker = self._up(machine)
        return worker is not None and self._world.step_engine(worker)

    def do_work(self, machine: int, num_steps: int) -> bool:
        """The worker gets all that it asks for, for a while, and makes tokens."""
        worker, did = self._up(machine), False
        if worker is None:
            return False
        for _ in range(num_steps):
            did |= self._world.step_engine(worker)
            for _ in range(MAX_WORK):
                if not self._world.work_for(worker):
                    break
                did = True
        return did

    # time

    def do_wait(self, milliseconds: int, _: int) -> bool:
        """Time passes, and nobody gets an answer."""
        waiting = any(worker.redis.line.waiting for worker in self._world.living)
        self._world.doubts.redis_failed |= waiting and milliseconds >= 100
        self._world.pass_time(milliseconds / 1000, working=False)
        return True

    def do_run(self, milliseconds: int, _: int) -> bool:
        """Time passes, and everybody gets all answers at once."""
        self._world.pass_time(milliseconds / 1000, working=True)
        return True

    def do_clock(self, machine: int, milliseconds: int) -> bool:
        """A machine's clock is set, forth or back."""
        self._world.skews_s[machine % len(self._world.skews_s)] += milliseconds / 1000
        self._world.doubts.clock_stepped = True
        return True

    # faults

    def do_crash(self, machine: int, _: int) -> bool:
        worker = self._world.machines[machine % len(self._world.machines)]
        if worker.life not in (Life.UP, Life.PAUSED):
            return False
        self._world.doubts.num_crashes += 1
        worker.kill()
        return True

    def do_start(self, machine: int, _: int) -> bool:
        """A process in the place of one that is gone."""
        machine %= len(self._world.machines)
        if self._world.machines[machine].life not in (Life.DEAD, Life.ENDED):
            return False
        self._world.start(machine)
        return True

    def do_pause(self, machine: int, _: int) -> bool:
        """SIGSTOP"""
        worker = self._up(machine)
        if worker is not None:
            worker.life = Life.PAUSED
        return worker is not None

    def do_resume(self, machine: int, _: int) -> bool:
        """SIGCONT"""
        worker = self._world.machines[machine % len(self._world.machines)]
        if worker.life is not Life.PAUSED:
            return False
        worker.life = Life.UP
        worker.run()
        return True

    def do_drain(self, machine: int, _: int) -> bool:
        """SIGTERM"""
        worker = self._up(machine)
        if worker is None or worker.is_draining or not worker.has_joined_once:
            return False
        worker.drain()
        worker.run()
        return True

    def do_cut(self, machine: int, _: int) -> bool:
        """Kafka cannot be reached from there; or it can again."""
        worker = self._world.machines[machine % len(self._world.machines)]
        worker.is_cut_off = not worker.is_cut_off
        return True

    def do_rebalance(self, first: int, second: int) -> bool:
        """The group gives the partitions out anew."""
        self._world.group.rebalance([first, second])
        return True

    def do_beat(self, machine: int, _: int) -> bool:
        """A heartbeat that brings news: a rebalance to join, or an assignment."""
        worker, group = self._up(machine), self._world.group
        if worker is None or not (group.must_join(worker) or group.has_news(worker)):
            return False
        worker.heartbeat()
        worker.learn()
        return True

    def do_redis_away(self, _: int, __: int) -> bool:
        was_up, self._world.redis_is_up = self._world.redis_is_up, False
        self._world.doubts.redis_failed = True
        return was_up

    def do_redis_back(self, _: int, __: int) -> bool:
        was_up = self._world.redis_is_up and not self._world.redis_is_full
        self._world.redis_is_up, self._world.redis_is_full = True, False
        return not was_up

    def do_redis_full(self, _: int, __: int) -> bool:
        """It answers, and takes no writes."""
        was_full, self._world.redis_is_full = self._world.redis_is_full, True
        self._world.doubts.redis_failed = True
        return not was_full

    def do_redis_empty(self, _: int, __: int) -> bool:
        self._world.redis.empty()
        self._world.doubts.redis_lost_data = True
        return True

    def do_redis_save(self, _: int, __: int) -> bool:
        """A replica has got this far."""
        self._saved = self._world.redis.copy()
        return True

    def do_redis_failover(self, _: int, __: int) -> bool:
        """And is the master now."""
        if self._saved is None:
            return False
        self._world.redis.put_back(self._saved)
        self._world.doubts.redis_lost_data = True
        return True
