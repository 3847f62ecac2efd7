"""Which transformers models the native decoder can run, and handing their weights over.

A model qualifies by its structure, and is believed only after its logits were compared with those
of transformers (`check`).
"""

import hashlib
from typing import Any

import torch
from torch import nn

from headrace.models.batch import BLOCK_TOKENS, RowInput, Wanted
from headrace.models.native.build import NativeUnavailableError
from headrace.models.native.library import DecoderShape, Library, NativeDecoder, Weight
from headrace.models.native.runner import NativeRunner

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "granite"})

_ALIGNMENT = 32
_LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_PROBE_TOKENS = 40
_DIGEST_CHARS = 16
_MAX_RELATIVE_ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.06}
_MAX_INT8_ERROR = 0.2


def convert(
    model: Any,
    max_positions: int,
    *,
    num_threads: int,
    int8: bool = False,
    library: Library | None = None,
) -> NativeDecoder:
    """A native decoder with the weights of a transformers model, proved to give its logits.

    `int8` rounds the weights of linear layers to bytes, with one scale for each output. `library`
    is the one for this machine, unless a test brings another.

    Raises: NativeUnavailableError, which says why not.
    """
    shape = _shape(model, max_positions, int8=int8)
    decoder = NativeDecoder(library or Library(), shape, num_threads=num_threads)
    _hand_over(model, decoder)
    decoder.probe = _check(model, decoder)
    return decoder


def _shape(model: Any, max_positions: int, *, int8: bool) -> DecoderShape:
    config = model.config
    _require(config.model_type in MODEL_TYPES, f"models of type {config.model_type}")
    _require(model.dtype in _MAX_RELATIVE_ERROR, f"weights of {model.dtype}")
    _require(model.device.type == "cpu", f"a {model.device.type} device")
    _require(getattr(config, "hidden_act", None) == "silu", "its activation")
    rope = getattr(config, "rope_parameters", None) or {}
    _require(float(rope.get("partial_rotary_factor", 1.0)) == 1.0, "partly rotated heads")
    windowed = getattr(config, "use_sliding_window", True) and getattr(
        config, "sliding_window", None
    )
    _require(not windowed or windowed >= max_positions, "sliding windows")
    for layer in model.model.layers:
        _require_parts(layer)
    first = model.model.layers[0]
    shape = DecoderShape(
        dtype=model.dtype,
        num_layers=len(model.model.layers),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=first.self_attn.head_dim,
        vocab=config.vocab_size,
        max_positions=max_positions,
        norm_eps=config.rms_norm_eps,
        attention_scale=first.self_attn.scaling,
        embedding_scale=getattr(config, "embedding_multiplier", 1.0),
        residual_scale=getattr(config, "residual_multiplier", 1.0),
        logit_scale=1.0 / getattr(config, "logits_scaling", 1.0),
        int8_weights=int8,
    )
    sizes = (shape.hidden, shape.intermediate, shape.head_dim)
    _require(all(size % _ALIGNMENT == 0 for size in sizes), f"sizes {sizes}")
    _require(shape.head_dim <= 512, f"heads of {shape.head_dim}")
    return shape


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise NativeUnavailableError(f"the native step does not do {what}")


def _require_parts(layer: Any) -> None:
    attention, mlp = dict(layer.self_attn.named_children()), dict(layer.mlp.named_children())
    known = (
        set(dict(layer.named_children())) == _LAYER_PARTS
        and set(attention) <= _ATTENTION_PARTS
        and set(mlp) == _MLP_PARTS
    )
    _require(known, f"layers of {type(layer).__name__}")
    linear = [attention[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    linear += [mlp[name] for name in ("gate_proj", "up_proj", "down_proj")]
    _require(all(type(one) is nn.Linear for one in linear), "layers that are not plain linear ones")
    _require(all(one.bias is None for one in linear[3:]), "these biases")


def _hand_over(model: Any, decoder: NativeDecoder) -> None:
    shape = decoder.shape
    decoder.set_weight(Weight.EMBEDDING, model.model.embed_tokens.weight)
    decoder.set_weight(Weight.HEAD, model.lm_head.weight)
    decoder.set_weight(Weight.FINAL_NORM, model.model.norm.weight)
    positions = torch.arange(shape.max_positions)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.float32), positions)
    half = shape.head_dim // 2
    decoder.set_weight(Weight.COS, cos[0, :, :half].reshape(-1))
    decoder.set_weight(Weight.SIN, sin[0, :, :half].reshape(-1))
    for index, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        _set_stacked(decoder, Weight.QKV, index, qkv)
        _set_stacked(decoder, Weight.GATE_UP, index, (mlp.gate_proj, mlp.up_proj))
        decoder.set_weight(Weight.OUT, attention.o_proj.weight, layer=index)
        decoder.set_weight(Weight.DOWN, mlp.down_proj.weight, layer=index)
        norms = {
            Weight.INPUT_NORM: layer.input_layernorm,
            Weight.POST_NORM: layer.post_attention_layernorm,
            Weight.Q_NORM: getattr(attention, "q_norm", None),
            Weight.K_NORM: getattr(attention, "k_norm", None),
        }
        for which, norm in norms.items():
            if norm is not None:
                decoder.set_weight(which, norm.weight, layer=index)
        if any(one.bias is not None for one in qkv):
            biases = [
                one.weight.new_zeros(one.out_features) if one.bias is None else one.bias
                for one in qkv
            ]
            decoder.set_weight(Weight.QKV_BIAS, torch.cat(biases), layer=index)


def _set_stacked(
    decoder: NativeDecoder, which: Weight, layer: int, parts: tuple[nn.Linear, ...]
) -> None:
    first_row = 0
    for part in parts:
        decoder.set_weight(which, part.weight, layer=layer, first_row=first_row)
        first_row += part.out_features


@torch.inference_mode()
def _check(model: Any, decoder: NativeDecoder) -> str:
    """Compare the logits behind a few arbitrary tokens with those of transformers.

    Returns their digest, bit by bit.
    """
    vocab = decoder.shape.vocab
    num_tokens = min(_PROBE_TOKENS, decoder.shape.max_positions)
    ids = [(7919 * position + 13) % vocab for position in range(num_tokens)]
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        expected = model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits
    finally:
        model.set_attn_implementation(attention)
    blocks = range(-(-num_tokens // BLOCK_TOKENS))
    pool_bytes = len(blocks) * decoder.shape.block_bytes
    runner = NativeRunner(decoder, kv_pool_bytes=pool_bytes, max_tokens=num_tokens, max_rows=1)
    logits = runner.run([RowInput(blocks, 0, ids, Wanted.LOGITS)]).logits[0]
    found, wanted = logits.double(), expected[0, -1].double()
    error = float((found - wanted).norm() / wanted.norm())
    shape = decoder.shape
    limit = _MAX_INT8_ERROR if shape.int8_weights else _MAX_RELATIVE_ERROR[shape.dtype]
    if not error <= limit:
        raise NativeUnavailableError(
            f"the native step's logits differ from those of transformers by {error:.1%}"
        )
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()[:_DIGEST_CHARS]
