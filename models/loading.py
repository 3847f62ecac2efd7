"""Loading a model: weights and tokenizer through transformers, and what the engine has to know of
them.

Any decoder-only architecture of transformers with a pluggable attention; others are refused here,
not when they run. On a CPU, those that the native decoder can run are handed over to it.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import logging as transformers_logging

from headrace.models.attention import (
    ATTENTION_NAME,
    ProbeStep,
    UnsupportedModelError,
    register_attention,
)
from headrace.models.batch import StepRunner
from headrace.models.fingerprint import fingerprint_model
from headrace.models.kv_cache import KVLayout
from headrace.models.native.build import NativeUnavailableError
from headrace.models.native.convert import convert
from headrace.models.native.library import NativeDecoder, has_fast_bfloat16
from headrace.models.native.runner import NativeRunner
from headrace.models.runner import TorchRunner, forward

logger = logging.getLogger(__name__)

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
QuantizeName = Literal["none", "int8"]

_PLAIN_LAYER_TYPES = {"full_attention", "sliding_attention"}
_ROPE_TYPES_THAT_SWITCH = {"dynamic", "longrope"}


class ModelLoadError(Exception):
    """The model cannot be loaded from where it was asked for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"cannot load model {self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, with its tokenizer.

    Either `decoder` has the weights, or `model`, a model of transformers; the other is None.
    """

    model: Any
    decoder: NativeDecoder | None
    tokenizer: Any
    layout: KVLayout
    fingerprint: str
    max_model_len: int
    vocab_size: int
    eos_ids: frozenset[int]


def load_model(
    name: str | Path,
    *,
    dtype: DTypeName = "auto",
    device: str = "auto",
    quantize: QuantizeName = "none",
    native: bool = True,
) -> LoadedModel:
    """Load a folder in Hugging Face format, or a model of the hub by its id.

    `dtype` "auto" is the checkpoint's on CUDA and where native steps of it are fast, else float32.
    `device` is "auto", "cpu", "cuda" or "cuda:<n>". `quantize` "int8" rounds the weights of linear
    layers to bytes. `native` False leaves the model to transformers, to compare.

    Raises: ModelLoadError if it is not there or broken; UnsupportedModelError if this engine cannot
        serve it, or not in int8; ValueError for a device that is not here.
    """
    register_attention()
    target = _device(device)
    tokenizer, model = _read(str(name), dtype)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UnsupportedModelError("its tokenizer is not one of the `tokenizers` library")
    model.eval().requires_grad_(False)
    if dtype == "auto":
        model.to(_auto_dtype(model.dtype, target, native=native))
    layout = _probe_layout(model)
    max_model_len = _max_model_len(model.config.get_text_config())
    decoder = None
    if native and target.type == "cpu":
        decoder = _convert(model, max_model_len, int8=quantize == "int8")
    if quantize != "none" and decoder is None:
        raise UnsupportedModelError(f"only the native step on CPUs does {quantize}")
    if dtype == "auto" and decoder is None and target.type == "cpu":
        model.to(torch.float32)
        layout = replace(layout, dtype=torch.float32)
    kernels = [decoder.kernels, decoder.probe] if decoder else ["torch"]
    settings = {
        "device": target.type,
        "max_model_len": max_model_len,
        "kernels": kernels,
        "quantize": quantize,
    }
    fingerprint = fingerprint_model(model, tokenizer, settings=settings)
    model.to(target)
    return LoadedModel(
        model=None if decoder else model,
        decoder=decoder,
        tokenizer=tokenizer,
        layout=replace(layout, device=target),
        fingerprint=fingerprint,
        max_model_len=max_model_len,
        vocab_size=int(model.config.get_text_config().vocab_size),
        eos_ids=_eos_ids(model, tokenizer),
    )


def make_runner(
    loaded: LoadedModel, *, kv_pool_bytes: int, max_batch_size: int, max_batch_tokens: int
) -> StepRunner:
    """What runs the model's steps, with its KV pool.

    Raises: KVPoolError.
    """
    if loaded.decoder is None:
        return TorchRunner(loaded.model, loaded.layout, kv_pool_bytes=kv_pool_bytes)
    return NativeRunner(
        loaded.decoder,
        kv_pool_bytes=kv_pool_bytes,
        max_tokens=max_batch_tokens,
        max_rows=max_batch_size,
    )


def _convert(model: Any, max_model_len: int, *, int8: bool) -> NativeDecoder | None:
    try:
        return convert(model, max_model_len, num_threads=torch.get_num_threads(), int8=int8)
    except NativeUnavailableError as reason:
        logger.warning("steps run in transformers, which is slower: %s", reason)
        return None


def _read(name: str, dtype: DTypeName) -> tuple[Any, Any]:
    """The tokenizer and the model, on the CPU."""
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model, report = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, attn_implementation=ATTENTION_NAME, output_loading_info=True
        )
    except Exception as error:  # whatever it is, the files are not what transformers can read
        raise ModelLoadError(name, str(error) or type(error).__name__) from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise ModelLoadError(name, f"{len(missing)} weights are missing, such as {missing[0]}")
    return tokenizer, model


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:<n>, is {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {name} here")
    return device


def _auto_dtype(checkpoint: torch.dtype, device: torch.device, *, native: bool) -> torch.dtype:
    """See docs/decisions/004-dtype.md."""
    if device.type == "cuda":
        return checkpoint
    is_exact = native and checkpoint == torch.bfloat16 and has_fast_bfloat16()
    return checkpoint if is_exact else torch.float32


def _max_model_len(config: Any) -> int:
    """The window, without the part where the rotary frequencies depend on the longest row of the
    batch.
    """
    window = getattr(config, "max_position_embeddings", None)
    if not isinstance(window, int):
        raise UnsupportedModelError("its config says no max_position_embeddings")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
        if parameters.get("rope_type") in _ROPE_TYPES_THAT_SWITCH:
            original = parameters.get("original_max_position_embeddings")
            original = (
                original or getattr(config, "original_max_position_embeddings", None) or window
            )
            window = min(window, int(original))
    return window


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    sources = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    return frozenset(token_id for source in sources for token_id in _as_ids(source))


def _as_ids(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


@torch.inference_mode()
def _probe_layout(model: Any) -> KVLayout:
    """Run one token through the model to see its attention layers and whether all of them are of a
    kind we do.
    """
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or []
    others = set(layer_types) - _PLAIN_LAYER_TYPES
    if others:
        raise UnsupportedModelError(f"it has layers of type {', '.join(sorted(others))}")
    probe = ProbeStep()
    logits = forward(model, [0], [0], [0], probe)
    if logits.shape[0] != 1 or probe.dtype is None:
        raise UnsupportedModelError("its layers do not use the pluggable attention")
    if len(probe.layers) != config.num_hidden_layers:
        raise UnsupportedModelError(
            f"only {len(probe.layers)} of its {config.num_hidden_layers} layers are attention"
        )
    for index, layer_type in enumerate(layer_types):
        if (layer_type == "sliding_attention") != (index in probe.windowed):
            raise UnsupportedModelError(f"its layer {index} does not say its sliding window")
    return KVLayout(layers=dict(probe.layers), dtype=probe.dtype, device=model.device)
