"""The Kafka and Redis of `headrace up`: given by the settings, or embedded; and their data folder.

Owns which ports they get and the lock on the folder. Knows nothing of workers.
"""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headrace.deploy.console import note
from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.deploy.embedded_valkey import EmbeddedValkey
from headrace.deploy.processes import free_port, port_is_free
from headrace.models.cache import user_cache_dir
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import Settings

KAFKA_PORT, REDIS_PORT = 9092, 6379


class StackError(HeadraceError):
    """Something of the local stack is not as it must be; the text says what to do."""


def changed(settings: Settings, **values: Any) -> Settings:
    """`settings` with these values, which count as given."""
    return settings.model_copy(update=values)


@contextmanager
def data_folder(data_dir: Path | None, *, ephemeral: bool) -> Iterator[Path]:
    """The folder of a stack, held by us alone; an ephemeral one is deleted at the end.

    Raises: StackError when another `up` holds it.
    """
    if ephemeral:
        with tempfile.TemporaryDirectory(prefix="headrace-up-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    folder = (data_dir or user_cache_dir() / "up").expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"another `headrace up` uses {folder}: stop it, or give --data-dir or --ephemeral"
            ) from None
        yield folder


class LocalServices:
    """Kafka and Redis: those of the settings, or embedded ones that end with the exit stack."""

    def __init__(self, settings: Settings, data_dir: Path, stack: ExitStack) -> None:
        self.settings = settings
        self.exports: list[str] = []
        self.started: list[EmbeddedKafka | EmbeddedValkey] = []
        self._data_dir, self._stack = data_dir, stack
        if "kafka" not in settings.model_fields_set:
            self._start_kafka()
        if "redis" not in settings.model_fields_set:
            self._start_valkey()

    def kill(self) -> None:
        """End the embedded ones at once."""
        for service in self.started:
            service.kill()

    def require_alive(self) -> None:
        """Raises: StackError when an embedded service has ended by itself."""
        for service in self.started:
            if not service.alive:
                raise StackError(
                    f"{type(service).__name__} ended unexpectedly: see the logs in {self._data_dir}"
                )

    def _start_kafka(self) -> None:
        port = self._port(KAFKA_PORT, "Kafka")
        note("starting Kafka")
        kafka = EmbeddedKafka(self._data_dir / "kafka", port=port, on_progress=note)
        self._start(kafka)
        self._use("kafka", kafka.bootstrap, port == KAFKA_PORT)
        self.settings = changed(self.settings, kafka_security_protocol="PLAINTEXT")

    def _start_valkey(self) -> None:
        port = self._port(REDIS_PORT, "Redis")
        note("starting Redis (Valkey)")
        valkey = EmbeddedValkey(self._data_dir / "valkey", port=port, persist=True)
        self._start(valkey)
        self._use("redis", valkey.url, port == REDIS_PORT)

    def _start(self, service: EmbeddedKafka | EmbeddedValkey) -> None:
        self._stack.callback(service.stop)
        service.start()
        self.started.append(service)

    def _use(self, name: str, address: str, is_default: bool) -> None:
        self.settings = changed(self.settings, **{name: address})
        if not is_default:
            self.exports.append(f"export HEADRACE_{name.upper()}={address}")

    def _port(self, usual: int, name: str) -> int:
        if port_is_free(usual):
            return usual
        port = free_port()
        note(f"port {usual} is taken: {name} gets {port}")
        return port
