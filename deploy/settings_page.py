"""Writes the page of all settings, made from the code. The copy stands in `docs/`:

python -m headrace.deploy.settings_page > docs/settings.md
"""

from typing import Any

from headrace.deploy.commands.options import GATEWAY_FLAGS, WORKER_FLAGS, values_of
from headrace.schemas.settings import PREFIX, Settings

_HEAD = f"""# Settings

Every process reads them from variables, `{PREFIX}…`. Nearly all are flags of the commands, too:
`{PREFIX}BATCH_WINDOW_MS` is `--batch-window-ms`, and a flag wins. An unknown `{PREFIX}` name, a
value that cannot be, and an empty one are errors at start. `headrace up` hands its own on to the
workers and the gateway that it starts. Which file makes this page: `deploy/settings_page.py`.

| `{PREFIX}` | of | values | default | |
|---|---|---|---|---|
"""


def page() -> str:
    """The page as Markdown; the same code gives the same bytes."""
    return _HEAD + "".join(_row(name) for name in Settings.model_fields)


def _row(name: str) -> str:
    field = Settings.model_fields[name]
    default = "" if field.default is None else f"`{field.default}`"
    texts = (f"`{name.upper()}`", _users(name), _values(name), default, field.description or "")
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |\n"


def _users(name: str) -> str:
    users = {"worker": WORKER_FLAGS, "gateway": GATEWAY_FLAGS}
    of = [user for user, flags in users.items() if name in flags]
    return "all" if len(of) != 1 else of[0]


def _values(name: str) -> str:
    bounds: dict[str, Any] = {}
    for rule in Settings.model_fields[name].metadata:
        bounds |= {sign: getattr(rule, sign) for sign in ("gt", "ge", "le") if hasattr(rule, sign)}
    signs = {"gt": "> ", "ge": "≥ ", "le": "≤ "}
    return ", ".join([values_of(name), *(f"{signs[it]}{limit:,}" for it, limit in bounds.items())])


if __name__ == "__main__":
    print(page(), end="")
