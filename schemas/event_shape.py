"""Whether what stands in a response record is an event of contract §3, as its readers rely on it.

Looks at the fields that are known today, each where it is there and not null; others may come.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

_Checks = Mapping[str, Callable[[Any], bool]]


def is_event(found: Any) -> TypeGuard[dict[str, Any]]:
    """Whether every reader can take `found`: what its last event must have is there, too."""
    if not isinstance(found, dict) or not _fit(found, _EVENT):
        return False
    if any(found.get(name) is None for name in _NEEDED):
        return False
    if found["object"] == "error":
        return isinstance(found.get("error"), dict)
    choices = found.get("choices")
    return isinstance(choices, list) and len(choices) > 0 and _is_choice(choices[0])


def _is_choice(found: Any) -> bool:
    if not isinstance(found, dict) or "finish_reason" not in found or not _fit(found, _CHOICE):
        return False
    return isinstance(found.get("delta", found.get("message")), dict)


def _fit(found: Any, checks: _Checks) -> bool:
    if not isinstance(found, dict):
        return False
    return all(check(found[name]) for name, check in checks.items() if found.get(name) is not None)


def _is_text(found: Any) -> bool:
    return isinstance(found, str)


def _is_number(found: Any) -> bool:
    return type(found) in (int, float)


def _is_int(found: Any) -> bool:
    return type(found) is int and -(2**63) <= found < 2**63  # as protobuf has it


def _is_count(found: Any) -> bool:
    return type(found) is int and 0 <= found < 2**63


def _are_ids(found: Any) -> bool:
    return isinstance(found, list) and all(map(_is_count, found))


def _is_metadata(found: Any) -> bool:
    return isinstance(found, dict) and all(map(_is_text, found.values()))


def _of(**checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda found: _fit(found, checks)


_NEEDED = ("id", "session_id", "object", "attempt", "sequence_number")
_MESSAGE = _of(role=_is_text, content=_is_text)
_CHOICE: _Checks = {
    "finish_reason": _is_text,
    "token_ids": _are_ids,
    "delta": _MESSAGE,
    "message": _MESSAGE,
}
_EVENT: _Checks = {
    **dict.fromkeys(("id", "session_id", "object", "model", "system_fingerprint"), _is_text),
    **dict.fromkeys(("attempt", "sequence_number"), _is_count),
    **dict.fromkeys(("created", "seed"), _is_int),
    "prompt_token_ids": _are_ids,
    "metadata": _is_metadata,
    "error": _of(type=_is_text, code=_is_text, message=_is_text, param=_is_text),
    "usage": _of(
        prompt_tokens=_is_count,
        completion_tokens=_is_count,
        total_tokens=_is_count,
        prompt_tokens_details=_of(cached_tokens=_is_count),
    ),
    "timings": _of(
        queue_ms=_is_number, prefill_ms=_is_number, ttft_ms=_is_number, decode_ms=_is_number
    ),
}
