"""Names of a replay and of a shadow: none of them is the live pipeline's."""

import pytest

from headrace.deploy.replaying.namespace import Namespace
from headrace.schemas.settings import Settings

LIVE = Settings(topic_prefix="live", group="workers", traces="otlp")


def test_a_replay_has_all_names_of_its_own() -> None:
    """Topics, group, Redis keys."""
    settings = Namespace.new(LIVE, "replay", "r1").settings
    assert settings.topics.requests == "live.replay-r1.requests"
    assert settings.topics.responses == "live.replay-r1.responses"
    assert settings.group == "live.replay-r1"
    assert settings.keys.fence(0) == "live.replay-r1:fence:0"
    assert not settings.answers_apart
    assert settings.traces == "off"


def test_a_shadow_reads_live_and_writes_its_own() -> None:
    """It takes requests and control records from where they are."""
    settings = Namespace.new(LIVE, "shadow", "s1").settings
    assert settings.topics.co_partitioned == (
        *("live.requests", "live.shadow-s1.responses", "live.control"),
    )
    assert settings.topics.dlq == "live.shadow-s1.dlq"
    assert settings.group == "live.shadow-s1"
    assert settings.keys.fence(0) == "live.shadow-s1:fence:0"
    assert settings.answers_apart


@pytest.mark.parametrize("kind", ["replay", "shadow"])
def test_only_own_topics_are_ever_deleted(kind: str) -> None:
    """A shadow's requests are the live ones."""
    names = Namespace(LIVE, kind, "x").own_topics  # type: ignore[arg-type]
    assert names
    assert all(name.startswith(f"live.{kind}-x.") for name in names)


def test_two_do_not_meet() -> None:
    """Without an id of somebody's choice."""
    assert Namespace.new(LIVE, "replay").prefix != Namespace.new(LIVE, "replay").prefix


def test_a_shadow_of_a_shadow_stays_apart() -> None:
    """An answer prefix of the live settings gives way to the namespace's."""
    live = Settings(topic_prefix="live", answer_prefix="elsewhere")
    assert Namespace.new(live, "replay", "r").settings.topics.dlq == "live.replay-r.dlq"
