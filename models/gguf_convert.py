"""Turns the GGUF file of the built-in model into a folder in Hugging Face format, once.

Covers Llama weights with tied embeddings and a byte-level BPE tokenizer of the SmolLM2 family: what
the built-in model needs. Knows nothing of downloads or caches. Written without transformers: it
takes 3 s instead of 25 s, and transformers' own GGUF reader loses SmolLM2's digit splitting and
takes `<|im_start|>` for the end of a turn.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARD_NAME = "model.safetensors"
CONVERTER_VERSION = 1  # raise it whenever the written files change: cached folders are made again
CONTROL_TOKEN = 3  # GGUF token type

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert_llama_gguf(
    source: Path,
    target: Path,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write config, bf16 weights, tokenizer and chat template of a Llama GGUF into `target`.

    `on_progress` gets the tensors done and their total. Not atomic: the caller renames the folder.
    Raises: `KeyError` when the file holds something that this converter does not know.
    """
    import gguf  # the `local` extra
    import torch
    from safetensors.torch import save_file

    reader = gguf.GGUFReader(source)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    num_heads = meta["llama.attention.head_count"]
    num_kv_heads = meta["llama.attention.head_count_kv"]

    tensors: dict[str, torch.Tensor] = {}
    for index, tensor in enumerate(reader.tensors):
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("attn_q.weight"):
            weight = _to_half_rotation(weight, num_heads)
        elif tensor.name.endswith("attn_k.weight"):
            weight = _to_half_rotation(weight, num_kv_heads)
        name = _hugging_face_name(tensor.name)
        tensors[name] = torch.tensor(weight, dtype=torch.float32).to(torch.bfloat16)
        on_progress(index + 1, len(reader.tensors))

    save_file(tensors, target / SHARD_NAME, metadata={"format": "pt"})
    _write_json(target / "config.json", _config(meta))
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    _write_json(target / "generation_config.json", {"_from_model_config": True, **special})
    _write_tokenizer(meta, target)


def _to_half_rotation(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of rotary rows: (pair, half) back to (half, pair) in each head.

    Shapes: `weight` (H * D, E).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _hugging_face_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_LAYER_NAMES[rest]}"


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    hidden_size, num_heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "rms_norm_eps": round(meta["llama.attention.layer_norm_rms_epsilon"], 8),
        "rope_parameters": {"rope_theta": meta["llama.rope.freq_base"], "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": meta["llama.vocab_size"],
    }


def _write_tokenizer(meta: dict[str, Any], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    tokenizer.save(str(target / "tokenizer.json"))

    end_of_turn = words[meta["tokenizer.ggml.eos_token_id"]]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": words[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": end_of_turn,
        "pad_token": end_of_turn,
        "unk_token": words[meta["tokenizer.ggml.unknown_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
    }
    _write_json(target / "tokenizer_config.json", settings)
    (target / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], "utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
