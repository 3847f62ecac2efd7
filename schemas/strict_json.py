"""Decoding of JSON that strangers wrote: Kafka records, HTTP bodies and WebSocket frames.

Stricter than RFC 8259 asks: no duplicate names, no byte order mark, bounded nesting, UTF-8 only,
numbers that 64 bits hold. So whatever is accepted can also be written again by any JSON library.
"""

import json
import math
import re
from collections import Counter
from typing import Any

from headrace.schemas.errors import ErrorCode, RequestError, UndecodableError
from headrace.schemas.wire import described, path_text

MAX_DEPTH = 32
"""Levels of nesting. A JSON schema in `response_format` needs some; nothing real needs more."""

_MAX_INT_DIGITS = 20
"""Sign or digits of a 64-bit integer; Python refuses to convert more than 4,300."""

# NOTE: an unclosed string matches too, to the end: looking again from its every quote is quadratic.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class _DuplicateNameError(ValueError):
    pass


class _Pairs(list[tuple[str, Any]]):
    """An object whose names may stand twice; its own type, so that no array is taken for it."""


def decode_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises: UndecodableError where there is none; RequestError (`invalid_text`, `invalid_value`)
    with the path of the first lone surrogate or number that is not finite.
    """
    text, is_too_deep = _cut_at_max_depth(_text(data))
    if is_too_deep:
        raise UndecodableError(f"nested deeper than {MAX_DEPTH} levels", _id_in(_names_in(text)))
    try:
        value = _parse(text, _unique)
    except _DuplicateNameError:
        problem = "a name stands twice in one object"
        raise UndecodableError(problem, _id_in(_names_in(text))) from None
    if not isinstance(value, dict):
        raise UndecodableError(f"a JSON object is needed, not {described(value)}")
    _check_leaves(value, ())
    return value


def readable_names(data: bytes) -> dict[str, Any]:
    """What can still be read of an object that is refused: its names that stand once.

    The values are unchecked: they may hold lone surrogates and numbers that are not finite.
    """
    try:
        return _names_in(_cut_at_max_depth(_text(data))[0])
    except UndecodableError:
        return {}


def readable_id(data: bytes) -> str | None:
    """The `request_id` of an object that is refused as a whole, if there is one to be read."""
    return _id_in(readable_names(data))


def is_text(text: str) -> bool:
    """Whether `text` can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _names_in(text: str) -> dict[str, Any]:
    try:
        value = _parse(text, _Pairs)
    except UndecodableError:
        return {}
    if not isinstance(value, _Pairs):
        return {}
    count = Counter(name for name, _ in value)
    return {name: item for name, item in value if count[name] == 1}


def _id_in(names: dict[str, Any]) -> str | None:
    found = names.get("request_id")
    return found if isinstance(found, str) and found and is_text(found) else None


def _text(data: bytes) -> str:
    if not data:
        raise UndecodableError("empty: a JSON object is needed")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise UndecodableError(f"not UTF-8 at byte {problem.start}") from problem
    if text.startswith("\ufeff"):
        raise UndecodableError("begins with a byte order mark, which JSON does not allow")
    return text


def _cut_at_max_depth(text: str) -> tuple[str, bool]:
    """`text` with a 0 for what lies deeper than MAX_DEPTH, and whether there was any.

    The parser recurses: shallow input keeps its answer the same on any stack, on any worker.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return text, False
    kept: list[str] = []
    start = depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[0] in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept.append(text[start : found.start()])
        elif found[0] in "]}":
            if depth == MAX_DEPTH + 1:
                kept.append("0")
                start = found.end()
            depth -= 1
    if depth <= MAX_DEPTH:
        kept.append(text[start:])
    return "".join(kept), len(kept) > 1 or depth > MAX_DEPTH


def _parse(text: str, pairs_hook: Any) -> Any:
    try:
        return json.loads(text, object_pairs_hook=pairs_hook, parse_int=_bounded_int)
    except json.JSONDecodeError as problem:
        raise UndecodableError(f"not JSON: {problem}") from problem


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateNameError
    return found


def _bounded_int(digits: str) -> int | float:
    """An integer of 64 bits, or infinity, which every check refuses."""
    if len(digits) <= _MAX_INT_DIGITS and -(2**63) <= int(digits) < 2**64:
        return int(digits)
    return math.inf


def _check_leaves(value: Any, path: tuple[int | str, ...]) -> None:
    if isinstance(value, dict):
        for name, child in value.items():
            _check_text(name, path)
            _check_leaves(child, (*path, name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _check_leaves(child, (*path, index))
    elif isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        text = "must be a finite number of at most 64 bits"
        raise RequestError(ErrorCode.INVALID_VALUE, text, path_text(path))


def _check_text(text: str, path: tuple[int | str, ...]) -> None:
    if not is_text(text):
        problem = "holds half of a surrogate pair, which is no text"
        raise RequestError(ErrorCode.INVALID_TEXT, problem, path_text(path))
