"""The engine: requests in from any thread, outputs of each step out, one thread that runs the model
in between.

`Engine` is the interface; `TransformersEngine` runs a model of transformers on one device in this
process. It knows nothing of Kafka, sessions or Redis.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from headrace.models.batch import BLOCK_TOKENS, KVFormat, StepRunner
from headrace.models.block_pool import BlockPool
from headrace.models.core import EngineCore
from headrace.models.generation import Generation
from headrace.models.inbox import Action, Command, Export, Inbox
from headrace.models.loading import LoadedModel
from headrace.models.prefix import block_hashes, cache_salt, root_hash
from headrace.models.request import EngineOutput, EngineRequest, KVBlock
from headrace.models.scheduler import Scheduler
from headrace.models.text import Detokenizer, TextStream

logger = logging.getLogger(__name__)


class EngineStoppedError(Exception):
    """The engine does not run (any more), so it takes no request."""

    def __str__(self) -> str:
        return "the engine is not running"


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """What an engine has counted since it was made, for metrics.

    Units: the first three are prompt tokens: of the requests that were admitted, those found in the
        local prefix cache, and those that came with a request's `kv_blocks`. `num_evictions` are
        cached KV blocks that made room for others.
    """

    prefix_queried_tokens: int
    prefix_local_hit_tokens: int
    prefix_fetched_hit_tokens: int
    num_preemptions: int
    num_evictions: int


class Engine(Protocol):
    """What the rest of Headrace needs of an engine. All methods may be called from any thread."""

    @property
    def fingerprint(self) -> str:
        """Equal fingerprint, seed and request give the same tokens."""

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""

    @property
    def num_running(self) -> int:
        """Generations in the batch."""

    @property
    def num_waiting(self) -> int:
        """Generations that were added and are not in the batch yet."""

    @property
    def kv_usage(self) -> float:
        """Part of the KV blocks that running generations hold, from 0 to 1."""

    @property
    def kv_format(self) -> KVFormat:
        """What its KV blocks look like."""

    @property
    def counters(self) -> EngineCounters:
        """The counts up to now."""

    @property
    def alive(self) -> bool:
        """Whether it runs; False before `start`, after `stop`, and after an error that no single
        row caused.
        """

    @property
    def last_step_s(self) -> float | None:
        """`time.monotonic()` when the last step ended or an idle engine found work, None before."""

    def start(self) -> None:
        """Begin to run steps."""

    def stop(self) -> None:
        """End after the step that runs; generations that are not finished get no further output."""

    def add(self, request: EngineRequest) -> None:
        """Run a generation, or go on with it; its outputs end with one that `is_last`.

        Raises: ValueError for a key that is in use, token ids outside the vocabulary, or a prompt
            that fills the window; EngineStoppedError.
        """

    def expect(self, change: int) -> None:
        """So many more requests (or fewer) are about to be added: an idle engine waits for them,
        for at most its batch window, so that its first step is a batch.
        """

    def cancel(self, key: str) -> None:
        """End a generation at the next step boundary, with the finish reason "cancelled"; unknown
        keys have no effect.
        """

    def abort(self, key: str) -> None:
        """Drop a generation without a last output: at latest after the step that runs, nothing more
        comes for it.
        """

    def share(self, key: str) -> None:
        """A generation that `begins_alone` does no longer: from the next step boundary on others
        are computed with it. Unknown keys have no effect.
        """

    def salt(self, tenant: str) -> bytes:
        """What the names of a tenant's KV blocks begin with; see `prefix.block_hashes`."""

    def cached_tokens(self, prompt_ids: Sequence[int], tenant: str) -> int:
        """How many leading tokens the local prefix cache has now; asking reserves nothing."""

    def export_blocks(self, hashes: Sequence[bytes]) -> "Future[list[KVBlock | None]]":
        """Copies of KV blocks by their names, made at the next step boundary; None for each that is
        not in the pool any more. After `stop` they are made at once, in the calling thread.

        Cancel: a future that was cancelled before the boundary costs nothing.
        """

    def text_stream(self, stop: Sequence[str] = ()) -> TextStream:
        """A new text stream of this model's tokenizer, which gives the text that the engine gives
        for the same ids.
        """


class TransformersEngine(Engine):
    """Continuous batching of one transformers model, on its own thread.

    `on_outputs` is called on that thread, once per step that has outputs, so it must only hand them
    over. If it raises, or the device fails, the engine is dead: `alive` is False and `on_death` is
    called once, on the same thread.

    `runner` computes the steps and owns the memory of the KV blocks; while the engine runs only its
    thread may call it. Without `prefix_caching` every prompt is computed as a whole.

    Units: an idle engine waits up to `batch_window_ms` for the requests that it expects.
    """

    def __init__(
        self,
        loaded_model: LoadedModel,
        *,
        runner: StepRunner,
        max_batch_size: int,
        max_batch_tokens: int,
        batch_window_ms: float,
        on_outputs: Callable[[list[EngineOutput]], None],
        on_death: Callable[[BaseException], None] | None = None,
        prefix_caching: bool = True,
    ) -> None:
        self._loaded = loaded_model
        self._detokenizer = Detokenizer(loaded_model.tokenizer)
        self._on_outputs, self._on_death = on_outputs, on_death
        self._kv_format, self._prefix_caching = runner.kv_format, prefix_caching
        self._pool = BlockPool(runner.num_blocks)
        self._scheduler: Scheduler[Generation] = Scheduler(
            self._pool, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens
        )
        self._core = EngineCore(self._scheduler, runner)
        self._inbox = Inbox(window_s=batch_window_ms / 1000, full_batch=max_batch_size)
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self._alive = False
        self._last_step_s: float | None = None
        self._lock = threading.Lock()
        self._export_lock = threading.Lock()  # once the thread has ended, any other may come
        self._live: dict[str, Generation] = {}  # neither ended nor aborted; guarded by the lock

    @property
    def fingerprint(self) -> str:
        return self._loaded.fingerprint

    @property
    def max_model_len(self) -> int:
        return self._loaded.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._loaded.vocab_size

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting + self._inbox.num_adds

    @property
    def kv_usage(self) -> float:
        return self._pool.num_held / self._pool.num_blocks

    @property
    def kv_format(self) -> KVFormat:
        return self._kv_format

    @property
    def counters(self) -> EngineCounters:
        prefix = self._scheduler.prefix_cache
        return EngineCounters(
            prefix.queried,
            prefix.local_hits,
            prefix.fetched_hits,
            self._scheduler.num_preemptions,
            self._pool.num_evicted,
        )

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def last_step_s(self) -> float | None:
        return self._last_step_s

    def text_stream(self, stop: Sequence[str] = ()) -> TextStream:
        return TextStream(self._detokenizer, stop)

    def start(self) -> None:
        self._alive = True
        self._thread.start()

    def stop(self) -> None:
        self._inbox.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._alive = False
        if not self._thread.is_alive():  # it may never have run
            self._export(last=True)

    def add(self, request: EngineRequest) -> None:
        self._check(request)
        generation = Generation(
            request,
            self.text_stream(request.sampling.stop),
            eos_ids=self._loaded.eos_ids,
            max_model_len=self.max_model_len,
            root_hash=root_hash(self.salt(request.tenant)) if self._prefix_caching else None,
            kv_blocks=[block for block in request.kv_blocks if self._has_format(block)],
        )
        with self._lock:
            if request.key in self._live:
                raise ValueError(f"request {request.key} is already running")
            if not self._inbox.put(Command(Action.ADD, generation)):
                raise EngineStoppedError
            self._live[request.key] = generation

    def expect(self, change: int) -> None:
        self._inbox.expect(change)

    def cancel(self, key: str) -> None:
        self._command(Action.CANCEL, key)

    def share(self, key: str) -> None:
        self._command(Action.SHARE, key)

    def _command(self, action: Action, key: str) -> None:
        with self._lock:
            generation = self._live.get(key)
            if generation is not None:
                self._inbox.put(Command(action, generation))

    def abort(self, key: str) -> None:
        with self._lock:
            generation = self._live.pop(key, None)
            if generation is not None:
                self._inbox.put(Command(Action.ABORT, generation))

    def salt(self, tenant: str) -> bytes:
        return cache_salt(self.fingerprint, self._kv_format.name, tenant)

    def cached_tokens(self, prompt_ids: Sequence[int], tenant: str) -> int:
        for index, name in enumerate(block_hashes(prompt_ids, salt=self.salt(tenant))):
            start = index * BLOCK_TOKENS
            if self._pool.find(name, tuple(prompt_ids[start : start + BLOCK_TOKENS])) is None:
                return start
        return len(prompt_ids) // BLOCK_TOKENS * BLOCK_TOKENS

    def export_blocks(self, hashes: Sequence[bytes]) -> "Future[list[KVBlock | None]]":
        export = Export(hashes)
        if not self._inbox.put_export(export):
            self._carry_out(export)
        return export.done

    def _has_format(self, block: KVBlock) -> bool:
        return memoryview(block.data).nbytes == self._kv_format.block_bytes

    def _check(self, request: EngineRequest) -> None:
        sampling, num_ids = request.sampling, self.vocab_size
        for token_ids in (
            request.prompt_ids,
            request.generated_ids,
            sampling.stop_token_ids,
            sampling.logit_bias,
        ):
            if token_ids and (min(token_ids) < 0 or max(token_ids) >= num_ids):
                raise ValueError(f"request {request.key}: token ids must be in 0...{num_ids - 1}")
        num_prompt = len(request.prompt_ids)
        if num_prompt >= self.max_model_len:
            raise ValueError(
                f"request {request.key}: {num_prompt} prompt tokens fill the window of"
                f" {self.max_model_len}"
            )

    def _run(self) -> None:
        """The engine thread."""
        try:
            while (commands := self._inbox.take(idle=self._core.is_idle)) is not None:
                self._last_step_s = time.monotonic()  # an idle engine has not stood still
                self._core.apply(commands)
                self._export()
                self._core.step()
                self._last_step_s = time.monotonic()
                self._emit()
        except BaseException as error:
            self._die(error)
        finally:
            self._export(last=True)

    def _export(self, *, last: bool = False) -> None:
        for export in self._inbox.take_exports(last=last):
            self._carry_out(export)

    def _carry_out(self, export: Export) -> None:
        if not export.done.set_running_or_notify_cancel():
            return
        try:
            with self._export_lock:
                blocks = self._core.export(export.hashes)
            export.done.set_result(blocks)
        except Exception as error:  # the one who asked decides what it means
            export.done.set_exception(error)

    def _emit(self) -> None:
        """Hand over the outputs, without those of generations that were aborted meanwhile."""
        with self._lock:
            outputs = [
                output
                for generation, output in self._core.take_outputs()
                if self._live.get(output.key) is generation
            ]
            for output in outputs:
                if output.is_last:
                    del self._live[output.key]
        if outputs:
            self._on_outputs(outputs)

    def _die(self, error: BaseException) -> None:
        logger.critical("the engine died", exc_info=error)
        self._alive = False
        self._inbox.close()
        if self._on_death is not None:
            self._on_death(error)
