"""Request ids made by gateways and clients: `req_` and a UUIDv7 (RFC 9562), so that an id tells
when to look in the log.

Knows nothing of Kafka. Ids of another form hold no time and are looked for from the log's
beginning.
"""

import re
import secrets
import time

_OURS = re.compile(r"req_([0-9a-f]{12})7[0-9a-f]{3}[89ab][0-9a-f]{15}")


def new_request_id(now_ms: int | None = None) -> str:
    """A fresh id: 48 bits of milliseconds, 74 random bits."""
    time_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    random = secrets.token_hex(10)
    variant = "89ab"[int(random[3], 16) & 3]
    return f"req_{time_ms:012x}7{random[:3]}{variant}{random[4:19]}"


def time_of(request_id: str) -> int | None:
    """When `request_id` was made, in milliseconds since the epoch; None where it does not say."""
    found = _OURS.fullmatch(request_id)
    return int(found[1], 16) if found else None
