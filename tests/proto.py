"""Makes the Python code of the `.proto` file anew: `python -m tests.proto`.

The code is committed, so that nobody who installs Headrace needs a compiler; a test says when it is
not of today's `.proto`.
"""

import sys
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTO = Path("headrace/schemas/proto/headrace/v1/generation.proto")
"""Under `src`: the path becomes the name by which the generated modules import each other."""


def generate(out: Path, source: Path = ROOT / "src") -> None:
    """Write the generated modules under `out`. Raises: RuntimeError where protoc refuses."""
    from grpc_tools import protoc

    common = resources.files("grpc_tools") / "_proto"
    flags = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    status = protoc.main(["protoc", f"-I{source}", f"-I{common}", *flags, str(source / PROTO)])
    if status != 0:
        raise RuntimeError(f"protoc ended with {status}")


if __name__ == "__main__":
    generate(ROOT / "src")
    sys.exit(0)
