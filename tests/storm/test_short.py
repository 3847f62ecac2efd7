"""A short storm: two real gateways, one of them killed, and every text complete."""

from pathlib import Path

import pytest

from headrace.schemas.settings import Settings
from tests.storm.run import Plan, Storm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


async def test_clients_that_drop_at_once_all_get_their_texts(
    kafka_bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Fifty clients, three rounds, the second one with a gateway killed; the whole storm is
    `python -m tests.storm`.
    """
    settings = Settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    plan = Plan(seed=7, num_clients=50, num_rounds=3, num_words=12, round_s=1.5)
    outcome = await Storm(plan, settings, tmp_path, print).run()
    assert outcome.problems == [], f"logs: {tmp_path}"
    assert outcome.num_complete == 150
    assert outcome.kills == [False, True, False]
