"""Small random models of the architectures that the native decoder does, and runners of them."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.models.batch import BLOCK_TOKENS, RowInput, Wanted
from headrace.models.native.convert import convert
from headrace.models.native.library import Library
from headrace.models.native.runner import NativeRunner

VOCAB = 203
"""Not a multiple of 32: the last outputs of the head are padding."""

MAX_TOKENS, MAX_ROWS, NUM_BLOCKS = 640, 24, 96

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama tied, one head each": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "num_key_value_heads": 6,
    },
    "llama 3 rope": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    },
    "many heads on one": {
        "model_type": "llama",
        "num_attention_heads": 24,
        "num_key_value_heads": 1,
    },
    "wide heads": {"model_type": "llama", "head_dim": 128, "num_attention_heads": 2},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 4.0,
    },
}


def make_model(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A random model of transformers; biases and norms are random too, not 0 and 1."""
    settings = {**SIZES, **changes}
    config = AutoConfig.for_model(settings.pop("model_type", "llama"), **settings)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                noise = torch.randn_like(parameter) * 0.3
                parameter.copy_(noise if name.endswith("bias") else 1.0 + noise)
    return model.to(dtype).eval()


def make_runner(model: Any, num_threads: int = 2, library: Library | None = None) -> NativeRunner:
    decoder = convert(model, 2048, num_threads=num_threads, library=library)
    pool_bytes = NUM_BLOCKS * decoder.shape.block_bytes
    return NativeRunner(decoder, kv_pool_bytes=pool_bytes, max_tokens=MAX_TOKENS, max_rows=MAX_ROWS)


def ids_of(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()


def blocks_of(place: int, num_tokens: int = 640) -> list[int]:
    """Blocks of one of the places that rows can have, scattered over the pool."""
    count = -(-num_tokens // BLOCK_TOKENS)
    return [(place * 20 + i) * 37 % NUM_BLOCKS for i in range(count)]


def run_one(runner: NativeRunner, ids: list[int], place: int = 0) -> torch.Tensor:
    row = RowInput(blocks_of(place), 0, ids, Wanted.LOGITS)
    return runner.run([row]).logits[0].clone()
