"""`headrace keys new`."""

import json
import secrets
from typing import Annotated

import typer

from headrace.consumers.api_keys import DIGEST_PREFIX, digest_of
from headrace.deploy.commands.options import examples
from headrace.deploy.commands.output import write, write_json
from headrace.schemas.errors import SettingsError
from headrace.schemas.request import MAX_ID_CHARS

KEY_PREFIX = "hr_"
"""Tells people, and scanners that look for secrets, what it is."""

KEY_BYTES = 32
"""Of randomness: nobody finds such a key by trying."""

app = typer.Typer(
    help="Make API keys.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("headrace keys new --tenant acme"),
)


@app.callback()
def _group() -> None:
    """Makes this a group, though it has one command as yet."""


@app.command(epilog=examples("headrace keys new --tenant acme"))
def new(
    tenant: Annotated[str, typer.Option(help="Whose it is.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Make a key: shown once, with its entry for the keys file, which holds its hash only."""
    if not 0 < len(tenant) <= MAX_ID_CHARS:
        raise SettingsError(f"--tenant: must have 1 to {MAX_ID_CHARS} characters")
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    digest = DIGEST_PREFIX + digest_of(key).hex()
    if as_json:
        write_json({"key": key, "entry": {digest: tenant}})
    else:
        write(f"{key}\n{json.dumps(digest)}: {json.dumps(tenant, ensure_ascii=False)}\n")
    return 0
