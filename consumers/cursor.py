"""The resume cursor: a place in the response log, opaque to clients.

Owns its text form only. Whether the place still exists, and belongs to the one who shows it, is
checked by `headrace.consumers.replay` against the log.
"""

import re
from dataclasses import dataclass

from headrace.schemas.errors import ErrorCode, RequestError

_FORM = re.compile(r"c1\.(\d{1,9})\.(\d{1,18})")
"""Version, partition, offset. Characters that need no quoting in a URL; 18 digits stay below
2**63.
"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of one record of the responses topic: what comes after it is still to be read."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"c1.{self.partition}.{self.offset}"


def parse_cursor(text: str) -> Cursor:
    """Read a cursor that a client sent back.

    Raises: RequestError `invalid_value` where `text` was never one of ours.
    """
    found = _FORM.fullmatch(text) if text.isascii() else None
    if found is None:
        raise RequestError(ErrorCode.INVALID_VALUE, "not a cursor of this gateway", "cursor")
    return Cursor(int(found[1]), int(found[2]))


def resume_gap(message: str, param: str | None = "cursor") -> RequestError:
    """The error of a reader whose place in the log is gone: it has to begin again."""
    return RequestError(ErrorCode.RESUME_GAP, message, param)
