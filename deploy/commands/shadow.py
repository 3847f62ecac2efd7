"""`headrace shadow`: live requests answered by another model too, and compared."""

from typing import Annotated

import typer

from headrace.deploy.commands.options import examples, with_settings
from headrace.deploy.commands.replay import REPLAY_FLAGS, run_until_signal
from headrace.deploy.commands.report_flags import (
    AllowDifferent,
    AllowDrift,
    CheckDrift,
    Json,
    Keep,
    MinCompared,
    NamespaceId,
    Outputs,
    PlotFile,
    ReportFile,
    Silence,
    Workers,
    show,
)
from headrace.deploy.console import note
from headrace.deploy.dead_letter_text import printable
from headrace.deploy.replaying.interruption import GRACE_S, Interruption
from headrace.deploy.replaying.report import Gate
from headrace.deploy.replaying.selection import span_s
from headrace.deploy.replaying.shadowing import ShadowOptions
from headrace.deploy.replaying.shadowing import shadow as run_shadow
from headrace.schemas.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _span(text: str) -> float:
    found = span_s(text)
    if not found:
        raise typer.BadParameter(
            f"{printable(text)!r} is no span of time: write 90s, 30m, 1h or 7d"
        )
    return float(found)


@app.command(
    epilog=examples(
        "headrace shadow --model ./candidate --for 10m",
        "headrace shadow --model ./candidate --requests 500 --report rows.jsonl --plot shadow.png",
    )
)
@with_settings(*REPLAY_FLAGS, errors_only=True)
def shadow(
    settings: Settings,
    for_s: Annotated[
        float | None,
        typer.Option("--for", parser=_span, metavar="SPAN", help="End after this: 90s, 30m, 1h."),
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="End after so many requests.")] = None,
    workers: Workers = 1,
    shadow_id: NamespaceId = None,
    timeout: Silence = 120.0,
    keep: Keep = False,
    check_drift: CheckDrift = True,
    allow_drift: AllowDrift = 0.0,
    allow_different: AllowDifferent = 0.0,
    min_compared: MinCompared = 1,
    plot: PlotFile = None,
    report: ReportFile = None,
    as_json: Json = False,
) -> int:
    """Answer live requests a second time, with workers, group, topics and Redis keys of their own,
    and compare with the live answers, token by token.

    Begins with the next request; clients notice nothing. Exit code 1 if the answers differ by more
    than is allowed. Ctrl-C reports what there is, cleans up, and exits with 1; once more, it only
    cleans up.
    """
    if for_s is None and requests is None:
        raise typer.BadParameter("say when it ends: --for 10m or --requests 500")
    options = ShadowOptions(
        id=shadow_id,
        for_s=for_s,
        num_requests=requests,
        num_workers=workers,
        silence_s=timeout,
        checks_drift=check_drift,
        keep=keep,
    )
    interruption = Interruption()

    def interrupt() -> bool:
        if not interruption.ask():
            return False
        note(f"stopping: answers under way have {GRACE_S:g} s (Ctrl-C once more: no report)")
        return True

    trial = run_until_signal(run_shadow(settings, options, interruption), interrupt)
    gate = Gate(allow_drift, allow_different, min_compared)
    return show(trial, gate, Outputs(plot, report, as_json))
