"""How many WebSockets one gateway holds, and what it adds between Kafka and them.

Regime: one gateway, one embedded Kafka, one writer and one client process on this machine. Each
socket follows a session of its own, and the sessions get their events in turn; `--wedged` of the
sockets never read and all follow one hot session, as one reader does that is not wedged. Three
phases: calm, wedged, and the limit, which is the same frames to the same sockets from a bare
Starlette endpoint (no Kafka, nobody wedged).
Judged by: added latency, from the broker's append (a time in whole milliseconds, rounded down) to
the frame at the client: p99 of 50 ms or less for those that read, with 5,000 sockets, 200 of them
wedged, at 2,000 events/s; the gateway's resident size, which must not grow; every wedged socket
finds 1013 when it reads on, and its cursor leads to the very next event.
"""

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from benchmarks.lib.figures import percentile
from benchmarks.lib.gateway_source import HOT
from benchmarks.lib.pipeline_parts import Child
from benchmarks.lib.process import ROOT, STOP_TIMEOUT_S, ChildFailedError
from benchmarks.lib.process_watch import Watch, resident_mb
from benchmarks.lib.report import format_table, number, write_line
from benchmarks.lib.rounds import OnStep, progress
from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.http_get import get_text
from headrace.deploy.processes import free_port, tail
from headrace.deploy.topics import ensure_topics
from headrace.models.cache import dying_with_us
from headrace.schemas.settings import Settings, child_environment

NUM_PARTITIONS = 12
START_TIMEOUT_S = 60.0
SETTLE_S = 2.0
LET_GO_TIMEOUT_S = 60.0
"""A ping after 20 s and 20 s for its answer, and time to spare."""
NUM_RESUMED = 50
"""Wedged sockets that go on from their cursors: enough to see it, few enough for a short run."""

_EXAMPLES = """\b
Examples:
  python -m benchmarks.bench_gateway
  python -m benchmarks.bench_gateway --sockets 300 --wedged 20 --seconds 5
"""


@dataclass(frozen=True)
class Load:
    """What every phase is given."""

    sockets: int
    wedged: int
    per_s: int
    hot_per_s: int
    hot_bytes: int
    seconds: float

    @property
    def num_readers(self) -> int:
        return self.sockets - self.wedged

    def order(self, **others: Any) -> dict[str, Any]:
        """For the source; the hot session's events are part of the rate."""
        order = {
            "per_s": self.per_s - self.hot_per_s,
            "hot_per_s": self.hot_per_s,
            "hot_bytes": self.hot_bytes,
            "sessions": self.num_readers - 1,
            "seconds": self.seconds,
        }
        return order | others


class Stand:
    """The processes of the gateway's phases: Kafka, gateway, source, clients."""

    def __init__(self, load: Load, folder: Path, stack: ExitStack, gateway_args: list[str]) -> None:
        self._load = load
        kafka = EmbeddedKafka(folder / "kafka")
        stack.callback(kafka.stop)
        kafka.start()
        settings = Settings(kafka=kafka.bootstrap)
        asyncio.run(_make_topics(settings))
        environment = child_environment(kafka=kafka.bootstrap)
        self._port = port = free_port()
        self.gateway_pid = stack.enter_context(_gateway(port, folder, environment, gateway_args))
        topic = settings.topics.responses
        source_args = (kafka.bootstrap, topic, str(NUM_PARTITIONS))
        self._source = Child("gateway_source", *source_args, environment=environment)
        stack.callback(self._source.close)
        self._clients = _clients(port, environment, stack)
        assert kafka.pid is not None
        self._pids = {
            "gateway": self.gateway_pid,
            "kafka": kafka.pid,
            "source": self._source.pid,
            "clients": self._clients.pid,
        }

    def open(self, *, wedged: bool) -> None:
        """The sockets that read, or those that will not."""
        load = self._load
        readers = [f"s{index}" for index in range(load.num_readers - 1)] + [HOT]
        sessions = [HOT] * load.wedged if wedged else readers
        self._clients.ask({"do": "open", "sessions": sessions, "wedged": wedged})

    def wedge(self) -> None:
        self._clients.ask({"do": "wedge"})

    def phase(self, name: str) -> dict[str, Any]:
        """Write for some seconds and see what came of it."""
        self._source.ask(self._load.order(seconds=SETTLE_S))
        time.sleep(SETTLE_S)
        self._clients.ask({"do": "collect"})
        with Watch(self._pids, "gateway") as watch:
            written = self._source.ask(self._load.order())
            time.sleep(SETTLE_S)
        found = self._clients.ask({"do": "collect"})
        sizes = watch.sizes_mb
        return _figures(name, written, found, self._load.num_readers) | {
            "cores": watch.cores,
            "resident_mb": {"first": sizes[0], "last": sizes[-1], "max": max(sizes)},
        }

    def let_go(self) -> dict[str, Any]:
        """The wedged ones are let go; they read on then, and some go on from their cursors."""
        began_s = time.monotonic()
        while self._num_open() > self._load.num_readers:
            if time.monotonic() - began_s > LET_GO_TIMEOUT_S:
                break
            time.sleep(0.1)
        found = {"waited_s": round(time.monotonic() - began_s, 1), "left_open": self._num_open()}
        found["left_open"] -= self._load.num_readers
        self._source.ask(self._load.order(seconds=SETTLE_S))  # what they miss
        found |= self._clients.ask({"do": "unwedge"})
        return found | self._clients.ask({"do": "resume", "session": HOT, "count": NUM_RESUMED})

    def _num_open(self) -> float:
        text = get_text("127.0.0.1", self._port, "/metrics", timeout_s=5) or ""
        return float(text.partition("\nheadrace_gateway_websockets ")[2].partition("\n")[0])

    def close(self) -> None:
        self._clients.ask({"do": "close"})


def main(
    sockets: Annotated[int, typer.Option(min=10, help="in all")] = 5_000,
    wedged: Annotated[int, typer.Option(min=0, help="of them never read")] = 200,
    per_s: Annotated[int, typer.Option(min=50, help="events, of all sessions together")] = 2_000,
    hot_per_s: Annotated[int, typer.Option(min=0, help="of them for the hot session")] = 20,
    hot_bytes: Annotated[int, typer.Option(min=100, help="text of a hot event")] = 8_000,
    seconds: Annotated[float, typer.Option(min=2, help="of each phase")] = 60.0,
    out: Annotated[Path | None, typer.Option(help="also add the JSON line to this file")] = None,
) -> None:
    """Sockets, added latency and memory of one gateway, and the limit."""
    load = Load(sockets, wedged, per_s, hot_per_s, hot_bytes, seconds)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with ExitStack() as stack:
        results = stack.enter_context(out.open("a", encoding="utf-8")) if out else None
        on_step = stack.enter_context(progress("gateway"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-gateway-")))
        row = {"bench": "gateway", "load": asdict(load)} | _measure(load, folder, on_step)
        print(_table(row), end="\n\n")
        write_line(results, row)


def _measure(load: Load, folder: Path, on_step: OnStep) -> dict[str, Any]:
    with ExitStack() as stack:
        stand = Stand(load, folder, stack, [])
        on_step("opening sockets")
        empty_mb = resident_mb(stand.gateway_pid)
        began_s = time.monotonic()
        stand.open(wedged=False)
        opened_s = time.monotonic() - began_s
        time.sleep(SETTLE_S)
        per_socket_kb = (resident_mb(stand.gateway_pid) - empty_mb) * 1024 / load.num_readers
        on_step("calm")
        phases = [stand.phase("calm")]
        released: dict[str, Any] = {}
        if load.wedged:
            on_step("wedged")
            stand.open(wedged=True)
            stand.wedge()
            phases.append(stand.phase("wedged"))
            released = stand.let_go()
        stand.close()
    on_step("limit")
    phases.append(_limit(load))
    return {
        "opened_per_s": round(load.num_readers / opened_s),
        "kb_per_socket": round(per_socket_kb, 1),
        "phases": phases,
        "released": released,
    }


def _limit(load: Load) -> dict[str, Any]:
    """The same frames from a bare endpoint."""
    with ExitStack() as stack:
        environment, port = child_environment(), free_port()
        peer = Child("gateway_peer", str(port), environment=environment)
        stack.callback(peer.close)
        clients = _clients(port, environment, stack)
        names = [f"s{index}" for index in range(load.num_readers)]
        clients.ask({"do": "open", "sessions": names, "wedged": False})
        order = load.order(per_s=load.per_s, sessions=load.num_readers)
        peer.ask(order | {"seconds": SETTLE_S})
        clients.ask({"do": "collect"})
        with Watch({"gateway": peer.pid, "clients": clients.pid}, "gateway") as watch:
            written = peer.ask(order)
        found = clients.ask({"do": "collect"})
        clients.ask({"do": "close"})
        return _figures("limit", written, found, load.num_readers) | {"cores": watch.cores}


def _figures(
    name: str, written: dict[str, Any], found: dict[str, Any], num_readers: int
) -> dict[str, Any]:
    append_ms = written["append_ms"]
    added_ms = [
        at_ms - append_ms[n] for n, at_ms in zip(found["numbers"], found["at_ms"], strict=True)
    ]
    return {
        "phase": name,
        "readers": num_readers,
        "events_per_s": round(len(append_ms) / written["wall_s"]),
        "lost": len(append_ms) - len(added_ms),
        "readers_lost": found["readers_lost"],
        "added_ms": {
            "p50": round(percentile(added_ms, 50), 2),
            "p99": round(percentile(added_ms, 99), 2),
            "max": round(max(added_ms), 2),
        },
        "client_late_ms": {
            "p99": round(found["late_ms_p99"], 2),
            "max": round(found["late_ms_max"], 2),
        },
    }


def _clients(port: int, environment: dict[str, str], stack: ExitStack) -> Child:
    clients = Child(
        "gateway_clients", "127.0.0.1", str(port), "/v1/stream", environment=environment
    )
    stack.callback(clients.close)
    return clients


async def _make_topics(settings: Settings) -> None:
    """Topics whose records carry the time at which the broker appended them."""
    await ensure_topics(settings, partitions=NUM_PARTITIONS)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await admin.alter_configs(
            [
                ConfigResource(
                    ConfigResourceType.TOPIC,
                    settings.topics.responses,
                    {"message.timestamp.type": "LogAppendTime"},
                )
            ]
        )
    finally:
        await admin.close()


@contextmanager
def _gateway(
    port: int, folder: Path, environment: dict[str, str], args: list[str]
) -> Iterator[int]:
    """`headrace gateway`, ready; yields its process id."""
    log_path = folder / "gateway.log"
    command = [sys.executable, "-m", "headrace.deploy.cli", "gateway", "--http-port", str(port)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            dying_with_us(command + args),
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while get_text("127.0.0.1", port, "/readyz", timeout_s=1) is None:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise ChildFailedError(f"the gateway did not start: {tail(log_path)}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
        print(tail(log_path), file=sys.stderr)


def _table(row: dict[str, Any]) -> str:
    rows = [
        [
            one["phase"],
            number(one["readers"]),
            number(one["events_per_s"]),
            number(one["lost"]),
            *(number(one["added_ms"][name], digits=1) for name in ("p50", "p99", "max")),
            number(one["client_late_ms"]["p99"], digits=1),
            f"{one['cores']['gateway']:.2f}",
            f"{one['cores']['others']:.2f}",
            number(one.get("resident_mb", {}).get("first"), digits=1),
            number(one.get("resident_mb", {}).get("last"), digits=1),
        ]
        for one in row["phases"]
    ]
    header = ["phase", "readers", "events/s", "lost", "added ms p50", "p99", "max"]
    header += ["client late p99", "cores", "others'", "MB first", "MB last"]
    told = f"opened {row['opened_per_s']} sockets/s, {row['kb_per_socket']} KB each"
    return f"{format_table(header, rows)}\n\n{told}; wedged ones: {row['released'] or 'none'}"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=_EXAMPLES)(main)
    app()
