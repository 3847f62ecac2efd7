"""Writes the documents of every interface: JSON Schemas of the records, OpenAPI, AsyncAPI.

All of them are made from the code. Copies stand in `docs/schemas/`:

    python -m headrace.deploy.documents docs/schemas
"""

import sys
from pathlib import Path

from headrace.consumers import asyncapi
from headrace.consumers.gateway import build_app
from headrace.consumers.response_log import ResponseLog
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.json_schema import Schema, file_text, schemas
from headrace.schemas.settings import Settings


def documents() -> dict[str, Schema]:
    """Every document by name; the name is its file's stem."""
    settings = Settings()
    app = build_app(settings, ResponseLog(settings), RequestProducer(settings))
    return schemas() | {"openapi": app.openapi(), "asyncapi": asyncapi.document()}


def write(folder: Path) -> None:
    """Write them all to `folder`; the same code gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents().items():
        (folder / f"{name}.json").write_text(file_text(document), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headrace.deploy.documents FOLDER")
    write(Path(sys.argv[1]))
