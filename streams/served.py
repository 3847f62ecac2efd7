"""From settings and a loaded model to what serves it: the runner, the engine, and what requests may
ask of it.
"""

from collections.abc import Callable

from headrace.models.batch import StepRunner
from headrace.models.constraints import GrammarCompiler
from headrace.models.conversation import ConversationEncoder
from headrace.models.engine import TransformersEngine
from headrace.models.loading import LoadedModel, make_runner
from headrace.models.request import EngineOutput
from headrace.schemas.settings import Settings
from headrace.streams.preparation import ServedModel


def served_runner(settings: Settings, loaded: LoadedModel) -> StepRunner:
    """What runs a worker's steps. Blocking: it takes the memory of the KV pool.

    Raises: KVPoolError.
    """
    return make_runner(
        loaded,
        kv_pool_bytes=settings.kv_pool_mb * 1024 * 1024,
        max_batch_size=settings.max_batch_size,
        max_batch_tokens=settings.max_batch_tokens,
    )


def build_engine(
    settings: Settings,
    loaded: LoadedModel,
    runner: StepRunner,
    *,
    on_outputs: Callable[[list[EngineOutput]], None],
    on_death: Callable[[BaseException], None] | None = None,
) -> TransformersEngine:
    """The engine as a worker runs it, not started."""
    return TransformersEngine(
        loaded,
        runner=runner,
        max_batch_size=settings.max_batch_size,
        max_batch_tokens=settings.max_batch_tokens,
        batch_window_ms=settings.batch_window_ms,
        on_outputs=on_outputs,
        on_death=on_death,
    )


def served_model(settings: Settings, loaded: LoadedModel) -> ServedModel:
    """How requests may call the model: the setting as it is, and its short name."""
    return ServedModel(
        name=settings.short_model,
        aliases=frozenset({settings.model, settings.short_model}),
        fingerprint=loaded.fingerprint,
        window_tokens=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        longest_token_chars=max(map(len, loaded.tokenizer.get_vocab())),
        encoder=ConversationEncoder(loaded.tokenizer),
        grammars=GrammarCompiler(
            loaded.tokenizer, vocab_size=loaded.vocab_size, eos_ids=loaded.eos_ids
        ),
    )
