"""Requests that are answered to be compared: replayed ones, and all of a shadow's."""

from dataclasses import replace

from headrace.schemas.replay import Origin, replay_headers
from headrace.schemas.request import Record, decode_request
from headrace.schemas.settings import Settings
from headrace.streams.intake import Intake
from headrace.streams.preparation import prepare
from headrace.streams.session_store import SessionRecord
from tests.unit.streams.pipeline import Pipeline, pipeline

ORIGIN = Origin("requests", 0, 7, 1_700_000_000_000)
HEADERS = replay_headers("r", ORIGIN)


def replayed(p: Pipeline, request_id: str, **fields: object) -> Record:
    return replace(p.record(request_id, **fields), headers=HEADERS)  # type: ignore[arg-type]


async def test_a_replayed_request_is_answered_with_tokens_under_any_model_name() -> None:
    """The names of its recording are not those of the model that is tried out."""
    async with pipeline() as p:
        await p.take(replayed(p, "r1", model="large"))
        await p.say("r1", "a", finish=True)
        await p.finished("r1")
        (event,) = p.publisher.of("r1")
        assert event["choices"][0]["token_ids"]
        assert event["prompt_token_ids"]
        assert event["model"] == "tiny"


async def test_any_other_request_must_name_the_model_that_is_served() -> None:
    """And gets its tokens only if it asks for them."""
    async with pipeline() as p:
        await p.send("r1", model="large")
        await p.finished("r1")
        assert p.publisher.of("r1")[-1]["error"]["code"] == "model_not_found"
        await p.send("r2", session="s2")
        await p.say("r2", "a", finish=True)
        await p.finished("r2")
        assert "token_ids" not in p.publisher.of("r2")[-1]["choices"][0]


async def test_a_shadow_answers_every_request_to_be_compared() -> None:
    """Live records have no headers of a replay."""
    async with pipeline() as p:
        p.intake = Intake(
            p.parts, p.ledger, p.deliveries, p.tasks, max_open=p.max_open, for_comparison=True
        )
        await p.send("r1", model="large")
        await p.say("r1", "a", finish=True)
        await p.finished("r1")
        assert p.publisher.of("r1")[-1]["choices"][0]["token_ids"]


async def test_the_default_seed_is_that_of_the_original() -> None:
    """Wherever and whenever the record is read again; another original has another."""
    async with pipeline() as p:
        seeds: list[int] = []
        for origin in (ORIGIN, ORIGIN, replace(ORIGIN, offset=8)):
            headers = replay_headers(f"r{len(seeds)}", origin)
            record = Record("copy", 3, len(seeds), len(seeds), None, b'{"prompt":"hi"}', headers)
            decoded = decode_request(record)
            seeds.append(prepare(decoded, SessionRecord(), p.parts.model, now_s=0).seed)
        original = Record("requests", 0, 7, 1_700_000_000_000, None, b'{"prompt":"hi"}', ())
        live = prepare(decode_request(original), SessionRecord(), p.parts.model, now_s=0)
        assert seeds[:2] == [live.seed, live.seed]
        assert seeds[2] != live.seed


def test_a_worker_answers_apart_only_under_another_prefix() -> None:
    """Its own prefix named twice changes nothing."""
    assert not Settings().answers_apart
    assert not Settings(answer_prefix="headrace").answers_apart
    apart = Settings(answer_prefix="other")
    assert apart.answers_apart
    assert (apart.topics.requests, apart.topics.control) == (
        "headrace.requests",
        "headrace.control",
    )
    assert (apart.topics.responses, apart.topics.dlq) == ("other.responses", "other.dlq")
    assert apart.keys.fence(1) == "other:fence:1"
