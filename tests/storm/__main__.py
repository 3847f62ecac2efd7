"""`python -m tests.storm`: a thousand clients come back at the same moment, again and again."""

import asyncio
import json
import logging
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from headrace.deploy.embedded_kafka import EmbeddedKafka
from headrace.schemas.settings import Settings
from tests.storm.run import Outcome, Plan, Storm, percentile

MAX_PROBLEMS_SHOWN = 20

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    seed: Annotated[int, typer.Option(help="what the storm is drawn from")] = 1,
    clients: Annotated[int, typer.Option(min=1, help="sockets, each with its answer")] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="times that all of them drop")] = 20,
    words: Annotated[int, typer.Option(min=4, help="events of an answer at most")] = 24,
    seconds: Annotated[float, typer.Option(min=1, help="that the answers of a round take")] = 10.0,
    gateways: Annotated[int, typer.Option(min=1, help="gateway processes")] = 2,
    broker: Annotated[bool, typer.Option(help="kill the broker in some rounds, too")] = False,
) -> None:
    """All clients drop at once, in mid-answer, and resume at any gateway; some gateways are killed.

    Exit code 1 if a text is not complete, or an event came twice, or too late.
    """
    plan = Plan(seed, clients, rounds, words, seconds, gateways)
    folder = Path(tempfile.mkdtemp(prefix="headrace-storm-"))
    logging.basicConfig(filename=folder / "clients.log", format="%(asctime)s %(name)s %(message)s")
    kafka = EmbeddedKafka(folder / "kafka")
    kafka.start()

    def restart() -> None:
        kafka.kill()
        kafka.start()

    try:
        settings = Settings(kafka=kafka.bootstrap)
        storm = Storm(plan, settings, folder, print_now, restart_kafka=restart if broker else None)
        outcome = asyncio.run(storm.run())
    finally:
        kafka.stop()
    for problem in outcome.problems[:MAX_PROBLEMS_SHOWN]:
        print(problem)
    print(json.dumps(summary(plan, outcome)))
    print(f"logs: {folder}")
    raise typer.Exit(1 if outcome.problems else 0)


def print_now(line: str) -> None:
    print(line, flush=True)


def summary(plan: Plan, outcome: Outcome) -> dict[str, object]:
    """The whole storm in one JSON line."""

    def spread(values: list[float]) -> dict[str, float]:
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        return {name: round(percentile(values, share), 3) for name, share in shares.items()}

    rounds = list(zip(outcome.times, outcome.kills, strict=True))
    return {
        "seed": plan.seed,
        "clients": plan.num_clients,
        "rounds": plan.num_rounds,
        "complete": outcome.num_complete,
        "problems": len(outcome.problems),
        "retries": outcome.num_retries,
        "live_again_s": spread([it.live_s for times, killed in rounds for it in times]),
        "caught_up_s": spread([it.caught_up_s for times, killed in rounds for it in times]),
        "caught_up_after_kill_s": spread(
            [it.caught_up_s for times, killed in rounds if killed for it in times]
        ),
        "gateway_mb": [round(max(column)) for column in zip(*outcome.memory_mb, strict=True)],
    }


if __name__ == "__main__":
    app()
