"""The flags of what compares answers, and the last step of it: table, files, exit code."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer

from headrace.deploy.commands.output import write, write_json
from headrace.deploy.console import fail, note
from headrace.deploy.dead_letter_text import printable
from headrace.deploy.replaying.report import Gate, Report, row_json
from headrace.deploy.replaying.report_text import report_text
from headrace.deploy.replaying.trial import Trial

Workers = Annotated[
    int, typer.Option(min=0, max=64, help="Worker processes to start; 0: they are yours.")
]


def _namespace_id(text: str) -> str:
    if not re.fullmatch("[a-zA-Z0-9]{1,32}", text):
        raise typer.BadParameter(f"{printable(text)!r}: write at most 32 letters and digits")
    return text


NamespaceId = Annotated[
    str | None,
    typer.Option(
        "--id",
        parser=_namespace_id,
        metavar="ID",
        help="Part of the names of topics, group and keys; default at random.",
    ),
]
Silence = Annotated[
    float, typer.Option(min=1, max=86_400, help="Give up when nothing came for so many seconds.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Leave topics, group and keys for a look.")]
CheckDrift = Annotated[
    bool,
    typer.Option(
        help="Ask the model, in float32, whether answers part at a near tie; else they are "
        "different."
    ),
]
AllowDrift = Annotated[
    float, typer.Option(min=0, max=1, help="Share of compared answers that may drift.")
]
AllowDifferent = Annotated[
    float, typer.Option(min=0, max=1, help="Share of compared answers that may be different.")
]
MinCompared = Annotated[int, typer.Option(min=0, help="Fewer compared answers do not pass.")]
PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the report: a png, svg or pdf.")
]
ReportFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write all rows, one JSON object a line.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a report goes."""

    plot: Path | None
    rows: Path | None
    as_json: bool


def show(trial: Trial, gate: Gate, outputs: Outputs) -> int:
    """Print and write the report; returns the exit code. Raises: OSError, PlotError."""
    report = Report(trial.rows, gate, engine=trial.engine, interrupted=trial.interrupted)
    if outputs.rows is not None:
        lines = (orjson.dumps(row_json(row, texts=True)) + b"\n" for row in report.rows)
        outputs.rows.write_bytes(b"".join(lines))
    if outputs.as_json:
        run = {
            "namespace": trial.prefix,
            "model": trial.model,
            "duplicates": trial.num_duplicates,
            "wall_s": round(trial.wall_s, 3),
        }
        write_json({**report.as_json(), **run})
    else:
        write(report_text(report))
    if outputs.plot is not None:
        from headrace.deploy.replaying.report_plot import plot_report

        plot_report(report, outputs.plot)
    if report.problem is not None:
        fail(report.problem)
        return 1
    note("passed")
    return 0
