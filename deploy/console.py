"""What the command line prints for people: notes and errors on stderr, colours only on a terminal.

Knows nothing of commands. rich reads NO_COLOR and TERM; a pipe gets plain lines.
"""

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def stderr_console() -> "Console":
    """The one rich console; made at first use, because rich takes 60 ms to load."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def stderr_is_terminal() -> bool:
    """Whether somebody may be watching stderr."""
    return sys.stderr.isatty()


def note(text: str, *, style: str = "dim") -> None:
    """A line on stderr beside the output."""
    if stderr_is_terminal():
        stderr_console().print(text, style=style, markup=False)
    else:
        print(text, file=sys.stderr, flush=True)


def fail(text: str) -> None:
    """The line that says why the command did not do what it was asked to."""
    line = f"headrace: {text}"
    if stderr_is_terminal():
        stderr_console().print(line, style="red", markup=False)
    else:
        print(line, file=sys.stderr, flush=True)
