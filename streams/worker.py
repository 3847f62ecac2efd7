"""One worker process, from start to exit code: load the model, serve, drain on SIGTERM.

Exit codes: 0 drained, 1 failed.
"""

import asyncio
import gc
import os
import signal
import threading
import time
from pathlib import Path

import structlog
import torch
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError

from headrace.models.loading import LoadedModel, load_model
from headrace.models.store import resolve_model
from headrace.schemas.errors import HeadraceError, UnavailableError
from headrace.schemas.settings import Settings
from headrace.streams.health import HealthServer
from headrace.streams.liveness import end_with_the_loop
from headrace.streams.metrics import WorkerMetrics
from headrace.streams.redis_scripts import Scripts, connect
from headrace.streams.served import served_runner
from headrace.streams.serving import Serving, WorkerFailedError

START_TIMEOUT_S = 15.0
"""Kafka or Redis that does not answer in this time at start: exit 1 and say so."""

EXIT_TIMEOUT_S = 3.0
"""How long the interpreter may take to end after a drain: client threads must not hold it."""

log = structlog.get_logger(__name__)


def run_worker(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Blocking, in the main thread."""
    code = 1
    try:
        code = asyncio.run(Worker(settings).run())
    except* (HeadraceError, KafkaError, OSError) as problems:
        for problem in _leaves(problems):
            log.error("worker failed", problem=str(problem) or repr(problem))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one more changes nothing, nor the exit code
    _end_within(EXIT_TIMEOUT_S, code)
    return code


def _end_within(timeout_s: float, code: int) -> None:
    """The bound on everything that follows: a client's thread must not hold the process."""
    last_resort = threading.Timer(timeout_s, os._exit, args=(code,))
    last_resort.daemon = True
    last_resort.start()


def _leaves(problem: BaseException) -> list[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        return [leaf for inner in problem.exceptions for leaf in _leaves(inner)]
    return [problem]


class Worker:
    """The process around one `Serving`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = WorkerMetrics()
        self._serving: Serving | None = None

    async def run(self) -> int:
        """Returns 0 after a drain. Raises: what made it fail, in an ExceptionGroup."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        health = HealthServer(
            self._metrics.registry,
            port=self._settings.metrics_port,
            alive=self._not_alive,
            ready=self._not_ready,
        )
        log.info("metrics and health", port=health.port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(health.serve(), name="health")
            await _reach_services(self._settings)
            loaded = await self._load(stop)
            if loaded is not None:
                await self._serve(loaded, stop, tasks)
            health.stop()
        return 0

    async def _load(self, stop: asyncio.Event) -> LoadedModel | None:
        """The model, loaded in a thread so that health checks are answered; None: told to stop."""
        started_s = time.monotonic()
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[LoadedModel] = loop.create_future()

        def load() -> None:
            try:
                result = load_served_model(self._settings)
            except BaseException as problem:  # handed to the loop, which raises it
                loop.call_soon_threadsafe(_settle, loaded, None, problem)
            else:
                loop.call_soon_threadsafe(_settle, loaded, result, None)

        # a daemon: a download that is under way must not hold back the end of the process
        threading.Thread(target=load, name="load-model", daemon=True).start()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((loaded, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not loaded.done():
                return None
            model = await loaded
        finally:
            stopped.cancel()
        dtype = str(model.layout.dtype).removeprefix("torch.")
        self._metrics.describe(
            model=self._settings.short_model, dtype=dtype, fingerprint=model.fingerprint
        )
        log.info(
            "model loaded",
            model=self._settings.model,
            dtype=dtype,
            fingerprint=model.fingerprint,
            s=_since(started_s),
        )
        _keep_loaded_objects_out_of_gc()
        return model

    async def _serve(
        self, loaded: LoadedModel, stop: asyncio.Event, tasks: asyncio.TaskGroup
    ) -> None:
        runner = await asyncio.to_thread(served_runner, self._settings, loaded)
        serving = Serving(self._settings, loaded, runner, self._metrics, tasks)
        self._serving = serving
        try:
            await self._start(serving)
            failed = tasks.create_task(serving.failed(), name="failed")
            awake = tasks.create_task(end_with_the_loop(), name="awake")
            await stop.wait()
            started_s = time.monotonic()
            _end_within(self._settings.drain_timeout_s, code=0)
            log.info("draining")
            await serving.drain()
            failed.cancel()
            awake.cancel()
            log.info("drained", s=_since(started_s))
        finally:
            await serving.close()

    async def _start(self, serving: Serving) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await serving.start()
        except TimeoutError as problem:
            text = (
                f"Kafka at {self._settings.kafka} did not let this worker start"
                f" in {START_TIMEOUT_S:g} s"
            )
            raise WorkerFailedError(text) from problem
        log.info("serving", group=self._settings.group)

    def _not_alive(self) -> str | None:
        return self._serving.not_alive() if self._serving else None

    def _not_ready(self) -> str | None:
        return self._serving.not_ready() if self._serving else "the model is loading"


async def _reach_services(settings: Settings) -> None:
    """Say within seconds that Redis or Kafka is not there, not after the model is loaded.

    Raises: UnavailableError, KafkaError.
    """
    client = connect(settings.redis)
    producer = AIOKafkaProducer(**settings.kafka_options())
    try:
        await Scripts(client, settings.keys).reach()
        async with asyncio.timeout(START_TIMEOUT_S):
            await producer.start()
    except TimeoutError as problem:
        raise UnavailableError(f"Kafka at {settings.kafka}", START_TIMEOUT_S) from problem
    except KafkaConnectionError as problem:
        raise WorkerFailedError(f"cannot connect to Kafka at {settings.kafka}") from problem
    finally:
        await client.aclose()
        await producer.stop()


def _keep_loaded_objects_out_of_gc() -> None:
    """Modules, model and tokenizer stay for ever. Each full collection walked over all of them and
    held up every stream, the engine included (docs/decisions/007-windows-and-flush.md).
    """
    gc.collect()
    gc.freeze()


def _settle(
    future: "asyncio.Future[LoadedModel]",
    result: LoadedModel | None,
    problem: BaseException | None,
) -> None:
    if future.done():
        return
    if result is not None:
        future.set_result(result)
    elif problem is not None:
        future.set_exception(problem)


def _since(started_s: float) -> float:
    return round(time.monotonic() - started_s, 2)


def load_served_model(settings: Settings) -> LoadedModel:
    """The model of a worker with these settings. Blocking."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    source: str | Path = resolve_model(settings.model)
    return load_model(
        source,
        dtype=settings.dtype,
        device=settings.device,
        quantize=settings.quantize,
    )
