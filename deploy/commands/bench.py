"""`headrace bench`: put a load on a pipeline, and tell how it does."""

import asyncio
import math
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.deploy.bench.command import BenchOptions, run_bench
from headrace.deploy.bench.load import Load
from headrace.deploy.bench.report import FIGURES
from headrace.deploy.bench.thresholds import Threshold, ThresholdError, parse_threshold
from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.commands.output import write_json
from headrace.producers.load_shapes import BUILT_IN, Shape, ShapesError, read_shapes, shapes_schema
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.settings import Settings

DEFAULT_DURATION_S = 60.0
MAX_IN_FLIGHT, MAX_IN_FLIGHT_HTTP = 10_000, 900
"""The gateway follows 1,000 generations at once."""

_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
SPAN = "SPAN"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _span(text: str) -> float:
    """Seconds in `text`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no span of time: write 500ms, 90s, 10m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def _threshold(text: str) -> Threshold:
    try:
        return parse_threshold(text, FIGURES)
    except ThresholdError as problem:
        raise typer.BadParameter(str(problem)) from problem


def _print_schema(value: bool) -> None:
    if value:
        write_json(shapes_schema())
        raise typer.Exit


def _positive(name: str) -> Callable[[float | None], float | None]:
    def check(value: float | None) -> float | None:
        if value is not None and not 0 < value < math.inf:  # nor NaN
            raise typer.BadParameter(f"must be above 0 and finite, not {value:g}", param_hint=name)
        return value

    return check


@app.command(
    epilog=examples(
        "headrace bench",
        "headrace bench --rate 5 --duration 2m --warm-up 20s --plot load.png",
        "headrace bench --shape one-shot --requests 500 --json --fail-if 'ttft_p99>2'",
        "headrace bench --from yesterday.jsonl.zst --speed 2",
        "headrace bench --http http://127.0.0.1:8080 --shapes shapes.json",
    )
)
@with_settings(*KAFKA, "max_request_bytes", errors_only=True)
def bench(
    settings: Settings,
    rate: Annotated[
        float,
        typer.Option(
            metavar="<per second>", help="New sessions a second.", callback=_positive("--rate")
        ),
    ] = 1.0,
    arrivals: Annotated[
        Literal["poisson", "constant"], typer.Option(help="How sessions are spaced.")
    ] = "poisson",
    shape: Annotated[
        Literal["chat", "long-prompt", "one-shot"] | None,
        typer.Option(help="What a session looks like; default chat."),
    ] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Shapes of sessions, as JSON (docs/load.md)."),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Ask what a `headrace dump` holds, at its pace."
        ),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            metavar="<times>", help="Of --from: 2 is twice as fast.", callback=_positive("--speed")
        ),
    ] = 1.0,
    duration: Annotated[
        float | None,
        typer.Option(
            parser=_span,
            metavar=SPAN,
            help="Send for so long after the warm-up; default 60s.",
            callback=_positive("--duration"),
        ),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many requests after the warm-up.")
    ] = None,
    warm_up: Annotated[
        float,
        typer.Option(parser=_span, metavar=SPAN, help="Requests due before this do not count."),
    ] = "0s",  # type: ignore[assignment]
    seed: Annotated[
        int | None,
        typer.Option(help="The same seed asks the same at the same times; default a new one."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask through this gateway, not through Kafka."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the key for --http.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose sessions they are.")] = DEFAULT_TENANT,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With so many open, what is due is not sent, and counts as failed (not_sent); "
            f"default {MAX_IN_FLIGHT}, with --http {MAX_IN_FLIGHT_HTTP}.",
        ),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(
            parser=_span, metavar=SPAN, help="How long to wait for answers after the last request."
        ),
    ] = "60s",  # type: ignore[assignment]
    fail_if: Annotated[
        list[Threshold] | None,
        typer.Option(
            parser=_threshold,
            metavar="LIMIT",
            help="Exit with 1 if a figure is beyond this, as ttft_p99>2 (seconds).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON line for each request.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the run (.png, .svg, .pdf).")
    ] = None,
    print_schema: Annotated[
        bool,
        typer.Option(
            "--shapes-schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the JSON schema of a shapes file.",
        ),
    ] = False,
) -> int:
    """Put a load on a pipeline and measure it: an open loop, which never waits for answers before
    it sends, with latency from when a request was due.

    Exit code 1: an answer was wrong, lost or not finished, none came, or a limit was passed.
    Ctrl-C stops sending, cancels what runs, reports what there is, and exits with 1; once more, it
    waits for nothing.
    """
    if http is not None and tenant != DEFAULT_TENANT:
        raise typer.BadParameter(
            "the gateway's key says it (--api-key-file)", param_hint="--tenant"
        )
    load = Load(
        rate_per_s=rate,
        spacing=arrivals,
        shapes=_shapes(shape, shapes, recording),
        recording=recording,
        speed=speed,
        duration_s=_duration(duration, requests, recording),
        max_requests=requests,
        warm_up_s=warm_up,
        seed=secrets.randbelow(2**31) if seed is None else seed,
    )
    options = BenchOptions(
        load=load,
        http=http,
        api_key=_key(api_key_file, http),
        tenant=tenant,
        max_in_flight=max_in_flight or (MAX_IN_FLIGHT_HTTP if http else MAX_IN_FLIGHT),
        drain_timeout_s=drain_timeout,
        thresholds=tuple(fail_if or ()),
        as_json=as_json,
        out=out,
        plot=plot,
    )
    return asyncio.run(run_bench(settings, options))


def _shapes(name: str | None, path: Path | None, recording: Path | None) -> list[Shape]:
    given = [
        flag
        for flag, value in (("--shape", name), ("--shapes", path), ("--from", recording))
        if value
    ]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)}: only one of them says what is asked")
    if path is None:
        return [BUILT_IN[name or "chat"]]
    try:
        return read_shapes(path)
    except ShapesError as problem:
        raise typer.BadParameter(str(problem), param_hint="--shapes") from problem


def _duration(duration: float | None, requests: int | None, recording: Path | None) -> float | None:
    if duration is None and requests is None and recording is None:
        return DEFAULT_DURATION_S
    return duration


def _key(path: Path | None, http: str | None) -> str | None:
    if path is None:
        return None
    if http is None:
        raise typer.BadParameter("a key is needed with --http only", param_hint="--api-key-file")
    return path.read_text("utf-8").strip()
