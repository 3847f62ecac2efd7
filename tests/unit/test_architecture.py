"""The shape of the code: which way imports point, what every module has, how long it may be."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "models", "streams", "producers", "consumers", "deploy")
MAY_IMPORT = {
    "schemas": {"schemas"},
    "models": {"schemas", "models"},
    "streams": {"schemas", "models", "streams"},
    "producers": {"schemas", "models", "producers"},
    "consumers": {"schemas", "models", "consumers"},
    "deploy": set(FOLDERS),
}
MAX_LINES = 400
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
IDS = [str(path.relative_to(ROOT)) for path in MODULES]
MODULE = pytest.mark.parametrize("path", MODULES, ids=IDS)


def imported(path: Path) -> Iterator[str]:
    """The absolute names of all that `path` imports, wherever in the file."""
    package = ("headrace", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@MODULE
def test_imports_point_one_way(path: Path) -> None:
    """schemas <- models <- {streams, producers, consumers} <- deploy; the three never meet."""
    folder = path.relative_to(ROOT).parts[0]
    ours = [name.split(".") for name in imported(path) if name.split(".")[0] == "headrace"]
    reached = {parts[1] for parts in ours if len(parts) > 1} & set(FOLDERS)
    assert reached <= MAY_IMPORT[folder]


TESTS = sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize(
    "path", [*MODULES, *TESTS], ids=[*IDS, *(str(path.relative_to(ROOT)) for path in TESTS)]
)
def test_no_bare_folder_name_is_imported(path: Path) -> None:
    """`import models` would load the file of `headrace.models` a second time."""
    assert not {name.split(".")[0] for name in imported(path)} & set(FOLDERS)


def test_no_folder_is_loaded_twice() -> None:
    """Also in the repository's root, where the bare names can be found."""
    code = (
        "import importlib, pkgutil, sys, headrace\n"
        f"for name in {FOLDERS}: importlib.import_module('headrace.' + name)\n"
        "import headrace.schemas\n"
        "for found in pkgutil.iter_modules(headrace.schemas.__path__, 'headrace.schemas.'):\n"
        "    importlib.import_module(found.name)\n"
        f"print(sorted(set({FOLDERS}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@MODULE
def test_every_module_says_what_it_owns(path: Path) -> None:
    """The module's docstring."""
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


@MODULE
def test_no_module_is_too_long(path: Path) -> None:
    """One noun per file."""
    assert len(path.read_text("utf-8").splitlines()) <= MAX_LINES


def test_the_checks_see_the_code() -> None:
    """A moved folder must not leave them with nothing to check."""
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(FOLDERS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import headrace.models.engine as e", ["headrace.models.engine"]),
        ("from headrace import deploy", ["headrace.deploy"]),
        ("from . import a", ["headrace.models.kv.a"]),
        ("from ..engine import b", ["headrace.models.engine.b"]),
        ("from ...streams import c", ["headrace.streams.c"]),
        ("def f():\n    from models import d", ["models.d"]),
    ],
)
def test_imports_are_found_in_every_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: list[str]
) -> None:
    """Relative ones, those of whole packages, those in functions."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "models" / "kv" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert expected == list(imported(path))
