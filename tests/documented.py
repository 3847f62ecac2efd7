"""The Python examples of `docs/client.md`, to be run as they are printed."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[1] / "docs" / "client.md"
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_END = "\n\nasyncio.run(main())\n"


def documented(word: str, number: int, address: str, real: str) -> Callable[[], Awaitable[None]]:
    """`main` of the example that holds `word`, the one at `number`, with another address."""
    blocks = [block for block in _BLOCK.findall(DOCUMENT.read_text("utf-8")) if word in block]
    source = blocks[number]
    assert source.endswith(_END)
    assert address in source
    names: dict[str, Any] = {}
    exec(source.removesuffix(_END).replace(address, real), names)  # noqa: S102 - our own text
    main: Callable[[], Awaitable[None]] = names["main"]
    return main
