"""How events are printed: the text as it comes, or one JSON line an event.

Owns nothing but the wording. Which events are new is decided by `ReplyReader`.
"""

import json
import re
import sys
from typing import Any

from headrace.deploy.console import note
from headrace.schemas.reply import event_text

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A model's text must not move a terminal's cursor or change its title; a file gets it as it is."""


def write(text: str) -> None:
    """Put `text` on stdout now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(event: dict[str, Any]) -> None:
    """Put an event on stdout as one line."""
    write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")


class ReplyText:
    """Prints the text of one reply; its last line always ends."""

    def __init__(self) -> None:
        self._mid_line = False

    def show(self, event: dict[str, Any], *, restarted: bool) -> None:
        """Print what `event` adds; `restarted`: the text so far is void and comes again."""
        if restarted:
            self.end_line()
            note("(the state of this answer was lost: here it is again from its beginning)")
        text = event_text(event)
        if sys.stdout.isatty():
            text = _CONTROLS.sub("", text)
        if text:
            write(text)
            self._mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        """Finish the line that stands on stdout."""
        if self._mid_line:
            write("\n")
        self._mid_line = False


def failure_text(event: dict[str, Any]) -> str | None:
    """What a `failed` event says; None for any other."""
    if event["object"] != "error":
        return None
    error = event["error"]
    param = f" ({error['param']})" if error.get("param") else ""
    return f"{error.get('code')}: {error.get('message')}{param}"


def statistics(event: dict[str, Any]) -> str:
    """`42 tokens · 38.1 tok/s · first token after 120 ms · stop` of a last event."""
    usage, timings = event.get("usage") or {}, event.get("timings") or {}
    tokens, decode_ms = usage.get("completion_tokens", 0), timings.get("decode_ms", 0)
    parts = [f"{tokens} token{'' if tokens == 1 else 's'}"]
    if decode_ms > 0 and tokens > 1:
        parts.append(f"{(tokens - 1) * 1000 / decode_ms:.1f} tok/s")
    if "ttft_ms" in timings:
        parts.append(f"first token after {timings['ttft_ms']:.0f} ms")
    if cached := (usage.get("prompt_tokens_details") or {}).get("cached_tokens"):
        parts.append(f"{cached} of {usage['prompt_tokens']} prompt tokens cached")
    parts.append(event["choices"][0]["finish_reason"])
    return " · ".join(parts)
