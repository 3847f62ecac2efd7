"""`headrace models list` and `pull`."""

import json
from typing import Annotated

import typer

from headrace.deploy.commands.options import LOG, examples, with_settings
from headrace.deploy.progress import ModelProgress
from headrace.schemas.settings import Settings

app = typer.Typer(
    help="List and fetch models.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("headrace models list", "headrace models pull smollm2-135m"),
)


@app.command("list", epilog=examples("headrace models list", "headrace models list --json"))
@with_settings(*LOG, errors_only=True)
def list_(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> int:
    """Show the built-in models, fetched or not. Hub ids and folders can be used too."""
    from headrace.models.store import list_models

    found = list_models()
    if as_json:
        rows = [
            {
                "alias": model.alias,
                "fetched": model.fetched,
                "size_bytes": model.size_bytes,
                "folder": str(model.folder),
            }
            for model in found
        ]
        print(json.dumps(rows))
        return 0
    for model in found:
        state = str(model.folder) if model.fetched else "not fetched"
        print(f"{model.alias:20} {model.size_bytes / 1e6:7.0f} MB  {state}")
    return 0


@app.command(epilog=examples("headrace models pull smollm2-135m"))
@with_settings(*LOG, errors_only=True)
def pull(
    settings: Settings, name: Annotated[str, typer.Argument(help="Alias, hub id or folder.")]
) -> int:
    """Fetch a built-in model, unless it is there, and print where it is.

    Hub ids are fetched by the worker that uses them.
    """
    from headrace.models.store import resolve_model

    with ModelProgress(name) as progress:
        print(resolve_model(name, on_progress=progress.show))
    return 0
