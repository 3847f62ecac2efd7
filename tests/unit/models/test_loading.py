"""Other architectures, other dtypes, what is refused, and what the fingerprint covers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    GenerationConfig,
    GPT2Config,
    GptOssConfig,
    MistralConfig,
    Phi3Config,
    Qwen3Config,
)

from headrace.models import loading
from headrace.models.attention import UnsupportedModelError
from headrace.models.loading import LoadedModel, ModelLoadError, load_model
from headrace.models.native import build
from headrace.models.request import EngineRequest, SamplingParams
from tests.tiny_model import make_tiny_model, make_tiny_tokenizer
from tests.unit.models.engine_run import EngineRun, make_torch_runner

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, Callable[[], Any]] = {
    "sliding window": lambda: MistralConfig(**SIZES, sliding_window=7),
    "sliding and full": lambda: Qwen3Config(
        **SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "learned positions, no GQA": lambda: GPT2Config(**GPT2_SIZES),
    "fused projections": lambda: Phi3Config(**SIZES),
}
LONG_PROMPT = [3 + 7 * i % 400 for i in range(30)]


def save_model(config: Any, folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    make_tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_other_architectures_equal_generate(name: str, tmp_path: Path) -> None:
    """Windows, chunked prefill and batches on models that are no Llama: generate's tokens."""
    folder = save_model(MODELS[name](), tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    loaded = load_model(folder, dtype="float32")
    run = EngineRun(loaded, make_torch_runner(loaded), max_batch_tokens=11)
    prompts = [LONG_PROMPT, LONG_PROMPT[:3], LONG_PROMPT[5:14]]
    greedy = SamplingParams(temperature=0, ignore_eos=True)
    answers = run.run(
        *(EngineRequest(str(i), p, 20, sampling=greedy) for i, p in enumerate(prompts))
    )
    run.engine.stop()
    for index, prompt_ids in enumerate(prompts):
        output = reference.generate(
            torch.tensor([prompt_ids]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            max_new_tokens=20,
            min_new_tokens=20,
            do_sample=False,
            suppress_tokens=None,
            eos_token_id=-1,
        )
        assert output[0, len(prompt_ids) :].tolist() == answers[str(index)].token_ids


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: Gemma2Config(**SIZES, attn_logit_softcapping=50.0), "softcap"),
        (lambda: GptOssConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1), "s_aux"),
    ],
    ids=["softcap", "sinks"],
)
def test_what_the_attention_cannot_do_is_refused(
    config: Callable[[], Any], reason: str, tmp_path: Path
) -> None:
    """The model is refused when it is loaded, with the reason."""
    folder = save_model(config(), tmp_path)
    with pytest.raises(UnsupportedModelError, match=reason):
        load_model(folder)


def break_nothing_there(folder: Path) -> None:
    """No folder at all."""


def break_no_weights(folder: Path) -> None:
    (make_tiny_model(folder) / "model.safetensors").unlink()


def break_cut_weights(folder: Path) -> None:
    weights = make_tiny_model(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def break_one_weight(folder: Path) -> None:
    weights = make_tiny_model(folder) / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "break_model", [break_nothing_there, break_no_weights, break_cut_weights, break_one_weight]
)
def test_a_broken_folder_is_a_clear_error(
    break_model: Callable[[Path], None], tmp_path: Path
) -> None:
    """It names the folder; in particular nothing is made up for a weight that is missing."""
    folder = tmp_path / "the-model"
    break_model(folder)
    with pytest.raises(ModelLoadError, match="the-model"):
        load_model(folder)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", "meta"])
def test_a_device_that_is_not_here_is_refused(device: str, tiny_model_dir: Path) -> None:
    """Before anything is loaded."""
    with pytest.raises(ValueError, match="device"):
        load_model(tiny_model_dir, device=device)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_is_the_one_asked_for(dtype: Any, tiny_model_dir: Path) -> None:
    """Weights and KV cache have it; the KV cache of 2 layers, 2 heads of 32 is sized by it."""
    loaded = load_model(tiny_model_dir, dtype=dtype, native=False)
    expected = getattr(torch, dtype)
    assert (loaded.model.dtype, loaded.layout.dtype) == (expected, expected)
    assert loaded.layout.bytes_per_token == 2 * 2 * 2 * 32 * expected.itemsize


def test_what_is_known_of_a_model(tiny_model_dir: Path) -> None:
    """Window, vocabulary and end tokens come from its configuration; auto keeps float32."""
    loaded = load_model(tiny_model_dir)
    assert (loaded.max_model_len, loaded.vocab_size, loaded.eos_ids) == (512, 512, frozenset({2}))
    assert dtype_of(loaded) == torch.float32


def dtype_of(loaded: LoadedModel) -> torch.dtype:
    """Wherever its weights are."""
    dtype: torch.dtype = loaded.decoder.shape.dtype if loaded.decoder else loaded.model.dtype
    return dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_native_decoder_takes_the_weights(dtype: Any, tiny_model_dir: Path) -> None:
    """They are not kept twice."""
    loaded = load_model(tiny_model_dir, dtype=dtype)
    assert loaded.model is None
    assert dtype_of(loaded) == getattr(torch, dtype)


def test_int8_is_another_model(tiny_model_dir: Path) -> None:
    """With other tokens, so another fingerprint; where it cannot be had, that is an error."""
    loaded = load_model(tiny_model_dir, quantize="int8")
    assert loaded.decoder is not None
    assert loaded.decoder.shape.int8_weights
    assert loaded.fingerprint != load_model(tiny_model_dir).fingerprint
    with pytest.raises(UnsupportedModelError, match="int8"):
        load_model(tiny_model_dir, quantize="int8", native=False)


def test_without_a_compiler_transformers_runs_the_steps(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says why it is slow."""
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    loaded = load_model(tiny_model_dir)
    assert loaded.decoder is None
    assert dtype_of(loaded) == torch.float32
    assert "no C++ compiler" in caplog.text


@pytest.mark.parametrize("is_fast", [True, False])
def test_auto_keeps_bfloat16_where_it_is_fast_and_exact(
    is_fast: bool, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other processors, and in transformers' own steps, it is float32."""
    monkeypatch.setattr(loading, "has_fast_bfloat16", lambda: is_fast)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(tmp_path)
    assert dtype_of(load_model(tmp_path)) == (torch.bfloat16 if is_fast else torch.float32)
    assert dtype_of(load_model(tmp_path, native=False)) == torch.float32


def test_the_window_ends_where_the_rotary_frequencies_would_switch(tmp_path: Path) -> None:
    """Frequencies that depend on the longest row of a batch are never reached."""
    folder = make_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 256,
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(folder).max_model_len == 256


def test_equal_files_have_equal_fingerprints(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Where the folder is, and when it was loaded, does not matter."""
    again = make_tiny_model(tmp_path, seed=0)
    assert load_model(tiny_model_dir).fingerprint == load_model(again).fingerprint


def test_whatever_changes_tokens_changes_the_fingerprint(tmp_path: Path) -> None:
    """One weight, the dtype, a rotary setting, the template: each gives another fingerprint."""
    folder = make_tiny_model(tmp_path)
    fingerprints = [
        load_model(folder).fingerprint,
        load_model(folder, dtype="bfloat16").fingerprint,
    ]
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    fingerprints.append(load_model(folder).fingerprint)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 5000.0
    (folder / "config.json").write_text(json.dumps(config))
    fingerprints.append(load_model(folder).fingerprint)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    fingerprints.append(load_model(folder).fingerprint)
    assert len(set(fingerprints)) == len(fingerprints)
