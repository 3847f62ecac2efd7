"""How a journal's fields are written in Redis, and read back. Pure."""

import struct
from collections.abc import Mapping, Sequence

import orjson

from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import Timings
from headrace.streams.generation import Ending, JournalEntry, Start


def pack(numbers: Sequence[int]) -> bytes:
    """Little-endian uint32 each: 4 bytes a token, and Lua can cut it."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def unpack(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def encode_start(start: Start | None) -> tuple[bytes, bytes]:
    """(`start`, `prompt`); both empty where nothing is to be written."""
    if start is None:
        return b"", b""
    fields = {
        "seed": start.seed,
        "session_version": start.session_version,
        "dropped_messages": start.dropped_messages,
        "created_s": start.created_s,
        "model": start.model,
        "fingerprint": start.fingerprint,
    }
    return orjson.dumps(fields), pack(start.prompt_ids)


def decode_start(start: bytes, prompt: bytes) -> Start:
    return Start(prompt_ids=unpack(prompt), **orjson.loads(start))


def encode_ending(ending: Ending | None) -> bytes:
    if ending is None:
        return b""
    error = ending.error
    fields = {
        "finish_reason": ending.finish_reason,
        "error": [error.code, error.message, error.param] if error else None,
        "cached_tokens": ending.cached_tokens,
        "timings": ending.timings.body(),
    }
    return orjson.dumps(fields)


def decode_ending(data: bytes) -> Ending:
    fields = orjson.loads(data)
    error = None
    if fields["error"]:
        code, message, param = fields["error"]
        error = RequestError(ErrorCode(code), message, param)
    return Ending(
        finish_reason=fields["finish_reason"],
        error=error,
        cached_tokens=fields["cached_tokens"],
        timings=Timings(**fields["timings"]),
    )


def decode_entry(fields: Mapping[bytes, bytes]) -> JournalEntry:
    """A journal's hash as Redis returned it.

    Raises: ValueError and others for what this version did not write. Among it ids without their
    start: what another seed would add to them is another text.
    """
    start, ending = fields.get(b"start"), fields.get(b"ending")
    if fields.get(b"ids") and not start:
        raise ValueError("ids without the start that they came from")
    return JournalEntry(
        attempt=int(fields[b"attempt"]),
        start=decode_start(start, fields.get(b"prompt", b"")) if start else None,
        ids=unpack(fields.get(b"ids", b"")),
        bounds=unpack(fields.get(b"bounds", b"")),
        confirmed=int(fields.get(b"confirmed", b"0")),
        ending=decode_ending(ending) if ending else None,
        cancelled=b"cancel" in fields,
        done=b"done" in fields,
        runner=fields.get(b"runner", b"").decode(),
        num_ids_claimed=int(fields.get(b"claimed", b"0")),
        failures=int(fields.get(b"failures", b"0")),
        alone=bool(fields.get(b"alone")),
    )
