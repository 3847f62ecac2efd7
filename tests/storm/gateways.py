"""Gateway processes of the storm: started, killed, started again at the same address."""

import asyncio
import sys
from pathlib import Path

from headrace.deploy.processes import ServerProcess, free_port
from headrace.deploy.supervisor import answers
from headrace.schemas.settings import Settings

START_TIMEOUT_S = 60.0


class GatewayProcess:
    """`headrace gateway` on a port that stays its own."""

    def __init__(self, settings: Settings, folder: Path, number: int) -> None:
        self._settings, self._port = settings, free_port()
        self._process = ServerProcess(f"gateway {number}", folder / f"gateway-{number}.log")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Returns once it is ready."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        self._process.start(
            [
                *(sys.executable, "-m", "headrace.deploy.cli", "gateway"),
                *("--kafka", self._settings.kafka, "--http-port", str(self._port)),
                *("--topic-prefix", self._settings.topic_prefix),
            ],
            port=self._port,
            is_ready=lambda: answers("127.0.0.1", self._port, "/readyz"),
            timeout_s=START_TIMEOUT_S,
        )

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def memory_mb(self) -> float:
        """Resident memory now; 0 while it does not run."""
        if self._process.pid is None:
            return 0.0
        fields = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        found = next(line for line in fields if line.startswith("VmRSS"))
        return int(found.split()[1]) / 1024
