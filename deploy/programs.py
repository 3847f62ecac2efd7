"""The command lines of the workers and the gateway that we start ourselves, on this machine.

Knows which settings each takes. Keeping them running is `supervisor`'s.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.deploy.commands.options import GATEWAY_FLAGS, WORKER_FLAGS, flag_name
from headrace.deploy.local_services import changed
from headrace.deploy.processes import free_port
from headrace.deploy.progress import ModelProgress
from headrace.deploy.supervisor import Program
from headrace.models.store import resolve_model
from headrace.schemas.settings import Settings

STOP_GRACE_S = 5.0
"""On top of the drain timeout, before a program that does not end is killed."""


def stop_timeout_s(settings: Settings) -> float:
    """How long a program may take to end."""
    return settings.drain_timeout_s + STOP_GRACE_S


def with_model(settings: Settings) -> Settings:
    """Fetch the model; a folder becomes an absolute path, because our children run elsewhere."""
    with ModelProgress(settings.model) as progress:
        found = resolve_model(settings.model, on_progress=progress.show)
    given = Path(settings.model).expanduser()
    return changed(settings, model=str(given.resolve())) if found == given else settings


def worker_program(settings: Settings, log_dir: Path, number: int, sharing: int) -> Program:
    """Worker `number` of at most `sharing`, which share the cores unless `threads` is set."""
    if settings.threads == 0 and sharing > 1:
        settings = changed(settings, threads=max(1, num_cores() // sharing))
    port = free_port()
    args = _command("worker", changed(settings, metrics_port=port), WORKER_FLAGS)
    return Program(f"worker {number}", args, log_dir / f"worker-{number}.log", port)


def gateway_program(settings: Settings, log_dir: Path) -> Program:
    """The gateway, on the port of the settings."""
    args = _command("gateway", settings, GATEWAY_FLAGS)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.http_host, settings.http_host)  # noqa: S104 - compared, not bound
    log_path = log_dir / "gateway.log"
    tls = settings.tls_cert_file is not None
    return Program("the gateway", args, log_path, settings.http_port, host, tls)


def num_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _command(name: str, settings: Settings, fields: Sequence[str]) -> list[str]:
    """The arguments of a child: every setting that was given, as a flag.

    NOTE: it runs in another folder, so paths are made absolute. Secrets come by the environment,
    which it inherits.
    """
    words: list[str] = []
    for field in fields:
        value: Any = getattr(settings, field)
        if field in settings.model_fields_set and value is not None:
            text = str(value.resolve()) if isinstance(value, Path) else str(value)
            words.append(f"{flag_name(field)}={text}")
    return [sys.executable, "-P", "-m", "headrace.deploy.cli", name, *words]
