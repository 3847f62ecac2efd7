"""Loading a model: weights and tokenizer through transformers, and what the engine has to know of
them.

Any decoder-only architecture of transformers with a pluggable attention; others are refused here,
not when they run.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from headrace.models.fingerprint import fingerprint_model
from headrace.models.kv_cache import KVLayout
from headrace.models.runner import forward

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]

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
    """A model ready to run, with its tokenizer."""

    model: Any
    tokenizer: Any
    layout: KVLayout
    fingerprint: str
    max_model_len: int
    vocab_size: int
    eos_ids: frozenset[int]


def load_model(name: str | Path, *, dtype: DTypeName = "auto", device: str = "auto") -> LoadedModel:
    """Load a folder in Hugging Face format, or a model of the hub by its id.

    `dtype` "auto" is the checkpoint's on CUDA and float32 on a CPU. `device` is "auto", "cpu",
    "cuda" or "cuda:<n>".

    Raises: ModelLoadError if it is not there or broken; UnsupportedModelError if this engine cannot
        serve it; ValueError for a device that is not here.
    """
    register_attention()
    target = _device(device)
    tokenizer, model = _read(str(name), dtype)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UnsupportedModelError("its tokenizer is not one of the `tokenizers` library")
    if dtype == "auto":
        model = model.to(_auto_dtype(model.dtype, target))
    model.eval().requires_grad_(False)
    max_model_len = _max_model_len(model.config.get_text_config())
    fingerprint = fingerprint_model(
        model, tokenizer, settings={"device": target.type, "max_model_len": max_model_len}
    )
    model.to(target)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        layout=_probe_layout(model),
        fingerprint=fingerprint,
        max_model_len=max_model_len,
        vocab_size=int(model.config.get_text_config().vocab_size),
        eos_ids=_eos_ids(model, tokenizer),
    )


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


def _auto_dtype(checkpoint: torch.dtype, device: torch.device) -> torch.dtype:
    """See docs/decisions/004-dtype.md."""
    return checkpoint if device.type == "cuda" else torch.float32


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
