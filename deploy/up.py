"""`headrace up`: everything on this machine, under one process.

Owns the order of start and stop, and which programs run. How one is kept running is `supervisor`'s.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from headrace.consumers.lag_service import LagService
from headrace.deploy.autoscale.fleet import Fleet
from headrace.deploy.autoscale.metrics import served
from headrace.deploy.autoscale.policy import Policy
from headrace.deploy.autoscale.scaler import Scaler
from headrace.deploy.console import note
from headrace.deploy.local_services import LocalServices, StackError, changed, data_folder
from headrace.deploy.processes import free_port, port_is_free
from headrace.deploy.programs import (
    gateway_program,
    stop_timeout_s,
    with_model,
    worker_program,
)
from headrace.deploy.scrape_targets import TargetsFile
from headrace.deploy.supervisor import Program, Supervised
from headrace.deploy.topics import check_topics, ensure_topics
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings

WATCH_INTERVAL_S = 0.5
_METRICS_HOST = "127.0.0.1"


class _StopRequested(Exception):
    """Somebody pressed Ctrl-C: the task group ends, and each program is drained."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What only `up` takes; everything else is in the settings."""

    num_workers: int = 1
    autoscale: Policy | None = None
    """In place of a fixed number of workers."""
    num_partitions: int = 12
    data_dir: Path | None = None
    ephemeral: bool = False

    @property
    def first_workers(self) -> int:
        """How many are started before anything is known of the load."""
        return self.num_workers if self.autoscale is None else self.autoscale.min_workers

    @property
    def most_workers(self) -> int:
        """How many there may ever be at once: they share the cores."""
        return self.num_workers if self.autoscale is None else self.autoscale.max_workers


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs, as the ready box shows it."""

    settings: Settings
    log_dir: Path
    exports: list[str]
    """`export …` lines that other terminals need to reach it."""

    worker_pids: tuple[int, ...] = ()
    autoscale: Policy | None = None
    scrape_targets: Path | None = None
    """Where Prometheus is told of all `/metrics`."""


def run_up(settings: Settings, options: UpOptions, *, on_ready: Callable[[Stack], None]) -> int:
    """Bring everything up, call `on_ready`, and block until a signal; returns the exit code.

    A second signal kills what is left at once. Leaves no process, also when this one is killed.
    Raises: HeadraceError, ServiceStartError when something cannot be brought up.
    """
    if settings.group_instance_id is not None:
        raise SettingsError("HEADRACE_GROUP_INSTANCE_ID names one worker, and `up` runs several")
    for number in _stop_signals():
        signal.signal(number, _interrupt)
    try:
        with ExitStack() as stack:
            data_dir = stack.enter_context(_folder(settings, options))
            services = LocalServices(with_model(settings), data_dir, stack)
            settings = _with_ports(services.settings)
            asyncio.run(_ensure_topics(settings, options.num_partitions))
            running = Stack(settings, data_dir, services.exports)
            asyncio.run(_Processes(running, options, services).run(on_ready))
            note("stopping Kafka and Redis" if services.started else "stopped")
    except KeyboardInterrupt:
        note("stopped")
    return 0


def _stop_signals() -> list[signal.Signals]:
    """SIGHUP, a terminal that is closed, counts unless `nohup` has us ignore it."""
    stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if stays else [signal.SIGHUP])]


def _folder(settings: Settings, options: UpOptions) -> AbstractContextManager[Path]:
    """Where data and logs go: nothing is kept where both services are somebody else's, so that any
    number of these may run.
    """
    all_given = {"kafka", "redis"} <= settings.model_fields_set
    ephemeral = options.ephemeral or (all_given and options.data_dir is None)
    return data_folder(options.data_dir, ephemeral=ephemeral)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _with_ports(settings: Settings) -> Settings:
    """With the ports that the gateway gets: 0 becomes a free one, so that it can be shown."""
    if settings.grpc_port == 0:
        settings = changed(settings, grpc_port=free_port())
    return _with_http_port(settings)


def _with_http_port(settings: Settings) -> Settings:
    """The port of the settings, or another where it is taken and nobody asked for it."""
    port = settings.http_port
    if port and port_is_free(port):
        return settings
    if port and "http_port" in settings.model_fields_set:
        raise SettingsError(f"--http-port {port} is taken by another program")
    if port:
        note(f"port {port} is taken: the web page gets another, see below")
    return changed(settings, http_port=free_port())


async def _ensure_topics(settings: Settings, num_partitions: int) -> None:
    await ensure_topics(settings, partitions=num_partitions)
    if found := await check_topics(settings):
        raise StackError("; ".join(found))


class _Processes:
    """Workers and gateway, from start to the end of their drain."""

    def __init__(self, stack: Stack, options: UpOptions, services: LocalServices) -> None:
        self._stack, self._options, self._services = stack, options, services
        self._stop = asyncio.Event()
        settings = stack.settings
        timeout_s = stop_timeout_s(settings)
        self._fleet = Fleet(self._worker, stop_timeout_s=timeout_s, on_note=note)
        self._gateway = Supervised(
            gateway_program(settings, stack.log_dir), stop_timeout_s=timeout_s, on_restart=note
        )
        self._targets = TargetsFile(stack.log_dir)
        self._autoscaler: str | None = None

    async def run(self, on_ready: Callable[[Stack], None]) -> None:
        """Start all, report, and return when all are drained after a signal.

        Raises: ServiceStartError when one cannot be started; StackError when Kafka or Redis ends.
        """
        loop = asyncio.get_running_loop()
        for number in _stop_signals():
            loop.add_signal_handler(number, self._on_signal)
        workers = self._options.first_workers
        note(f"starting {workers} worker{'' if workers == 1 else 's'} and the gateway")
        try:
            with ExitStack() as stack:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._until_stop(), name="up.stop")
                    tasks.create_task(self._watch_services(), name="up.watch")
                    await self._start(tasks, workers)
                    running = replace(
                        self._stack,
                        worker_pids=self._worker_pids(),
                        scrape_targets=self._targets.path,
                    )
                    on_ready(self._autoscaled(running, tasks, stack))
        except BaseExceptionGroup as group:
            _, failed = group.split(_StopRequested)
            if failed is not None:
                raise failed.exceptions[0] from None

    async def _start(self, tasks: asyncio.TaskGroup, workers: int) -> None:
        started = [self._fleet.add(tasks, must_start=True).supervised for _ in range(workers)]
        tasks.create_task(self._gateway.run(), name="up.gateway")
        for supervised in [*started, self._gateway]:
            await supervised.ready.wait()

    def _worker(self, number: int) -> Program:
        sharing = self._options.most_workers
        return worker_program(self._stack.settings, self._stack.log_dir, number, sharing)

    def _worker_pids(self) -> tuple[int, ...]:
        pids = [member.supervised.pid for member in self._fleet.members]
        return tuple(pid for pid in pids if pid is not None)

    def _autoscaled(self, running: Stack, tasks: asyncio.TaskGroup, stack: ExitStack) -> Stack:
        """Begin to scale, if that is wanted, and serve the metrics of it."""
        policy, settings = self._options.autoscale, running.settings
        if policy is None:
            return running
        scaler = Scaler(policy, self._fleet, LagService(settings), settings)
        port = settings.metrics_port or free_port()
        stack.enter_context(served(scaler.metrics, _METRICS_HOST, port))
        tasks.create_task(scaler.run(tasks, note), name="up.scaler")
        self._autoscaler = f"{_METRICS_HOST}:{port}"
        return replace(running, autoscale=policy)

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            return
        self._fleet.kill()
        self._gateway.kill()
        self._services.kill()
        os._exit(1)  # the second signal: nobody wants to wait for anything now

    async def _until_stop(self) -> None:
        await self._stop.wait()
        note("stopping: workers hand their running answers over (Ctrl-C again kills them)")
        raise _StopRequested

    async def _watch_services(self) -> None:
        while True:
            self._services.require_alive()
            programs = [member.supervised.program for member in self._fleet.members]
            self._targets.write(
                workers=map(_address, programs),
                gateway=_address(self._gateway.program),
                autoscaler=self._autoscaler,
                gateway_tls=self._gateway.program.ready_tls,
            )
            await asyncio.sleep(WATCH_INTERVAL_S)


def _address(program: Program) -> str:
    host = program.ready_host
    return f"[{host}]:{program.ready_port}" if ":" in host else f"{host}:{program.ready_port}"
