"""The worker processes of a replay or a shadow: started, kept running, and drained at the end.

Owns how long they run; one process's life is `supervisor`'s.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.deploy.console import note
from headrace.deploy.programs import stop_timeout_s, worker_program
from headrace.deploy.replaying.engine_info import EngineInfo, read_engine_info
from headrace.deploy.supervisor import Supervised
from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings


@asynccontextmanager
async def running_workers(
    settings: Settings, number: int, log_dir: Path
) -> AsyncIterator[EngineInfo | None]:
    """`number` workers around a block, which begins when all are ready; tells what they run, None
    where `number` is 0.

    Raises: ServiceStartError when one does not start; SettingsError.
    """
    if settings.group_instance_id is not None and number > 1:
        raise SettingsError("HEADRACE_GROUP_INSTANCE_ID names one worker, and these are several")
    supervised = [
        Supervised(
            worker_program(settings, log_dir, index, number),
            stop_timeout_s=stop_timeout_s(settings),
            on_restart=note,
        )
        for index in range(1, number + 1)
    ]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one.run(), name=one.program.name) for one in supervised]
        if supervised:
            note(f"starting {number} worker{'' if number == 1 else 's'}")
        for one in supervised:
            await one.ready.wait()
        if supervised:
            port = supervised[0].program.ready_port
            yield await asyncio.to_thread(read_engine_info, settings, port)
        else:
            yield None
        for task in running:
            task.cancel()
