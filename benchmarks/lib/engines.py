"""Which engines there are, and how each one's process is started."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.lib.linear_steps import STEP_TOKENS
from benchmarks.lib.process import ChildEngine, ChildFailedError, NotInstalledError, Spec
from benchmarks.lib.rounds import OnStep

LIMIT, HEADRACE, HEADRACE_TORCH = "limit", "headrace", "headrace-torch"
BATCHING, GENERATE = "transformers-batching", "transformers-generate"
OPENVINO, VLLM, LLAMA = "openvino-genai", "vllm-cpu", "llama.cpp"

_MODULES = {
    LIMIT: "limit",
    HEADRACE: "headrace_engine",
    HEADRACE_TORCH: "headrace_engine",
    BATCHING: "transformers_batching",
    GENERATE: "transformers_generate",
    OPENVINO: "openvino_engine",
    VLLM: "vllm_engine",
    LLAMA: "llama_engine",
}
NAMES = tuple(_MODULES)
BY_DEFAULT = tuple(name for name in NAMES if name != HEADRACE_TORCH)
WITH_PREFIX_CACHE = (HEADRACE, HEADRACE_TORCH, BATCHING, OPENVINO, VLLM, LLAMA)

_PEERS = (OPENVINO, VLLM, LLAMA)


@dataclass(frozen=True)
class Peer:
    """The interpreter of another environment, and the model in its engine's own format."""

    python: Path | None
    model: Path | str | None


@dataclass(frozen=True)
class Setup:
    """What all engines of a run have in common, and where the peers are."""

    model: str
    dtype: str
    threads: int
    max_batch_size: int
    prefix_cache: bool
    peers: dict[str, Peer]

    def spec(self, name: str) -> Spec | None:
        """How to start an engine; None for a peer that is not said where it is."""
        module = f"benchmarks.lib.{_MODULES[name]}"
        if name not in _PEERS:
            native = {"native": name == HEADRACE}
            return Spec(name, module, self._config(self.model) | native)
        peer = self.peers[name]
        if peer.python is None or peer.model is None:
            return None
        environment = self._vllm_environment() if name == VLLM else {}
        return Spec(name, module, self._config(str(peer.model)), peer.python, environment)

    def with_prefix_cache(self) -> "Setup":
        """The same with the engines' prefix caches on."""
        return replace(self, prefix_cache=True)

    def _config(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "dtype": self.dtype,
            "threads": self.threads,
            "step_tokens": STEP_TOKENS,
            "max_batch_size": self.max_batch_size,
            "prefix_cache": self.prefix_cache,
        }

    def _vllm_environment(self) -> dict[str, str]:
        """One process, its threads bound to the first cores, as its manual advises."""
        return {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.threads - 1}",
            "OMP_NUM_THREADS": str(self.threads),
        }


@contextmanager
def started(
    setup: Setup, names: Sequence[str], log_path: Path, on_step: OnStep
) -> Iterator[tuple[list[ChildEngine], dict[str, str]]]:
    """The engines' processes, and for each that is missing, why. Ended at the end of the block."""
    with ExitStack() as stack:
        engines: list[ChildEngine] = []
        missing: dict[str, str] = {}
        for name in names:
            on_step(f"{name}: start")
            spec = setup.spec(name)
            if spec is None:
                missing[name] = "not installed"
                continue
            try:
                engine = ChildEngine(spec, log_path)
            except NotInstalledError:
                missing[name] = "not installed"
            except (ChildFailedError, OSError) as error:
                missing[name] = str(error)
            else:
                stack.callback(engine.close)
                engines.append(engine)
        yield engines, missing
