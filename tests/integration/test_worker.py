"""One real worker on real Kafka and Redis: conversations, refusals, cancels, poison."""

from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.odd_headers import send_odd
from tests.oracle import Oracle
from tests.pipeline import Pipeline
from tests.schemas_of_answers import SCHEMAS, closing_bias, is_valid

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def greedy(text: str, max_tokens: int = 24, **more: Any) -> dict[str, Any]:
    return {"messages": user(text), "temperature": 0, "max_tokens": max_tokens, **more}


async def test_keyless_request_is_answered_with_the_models_own_tokens(
    served: Pipeline, oracle: Oracle
) -> None:
    """The smallest request that kcat can send gets the text that model.generate gives."""
    reply = await served.answer(greedy("hi"))
    assert reply.text == oracle.answer(user("hi"), 24)
    assert reply.last["usage"]["completion_tokens"] == 24
    assert [event["sequence_number"] for event in reply.events] == list(range(len(reply.events)))


async def test_six_appended_turns_give_the_tokens_of_the_whole_conversation(
    served: Pipeline, oracle: Oracle
) -> None:
    """Each turn's ids equal model.generate on all ids so far: nothing is tokenised again."""
    ids: list[int] = []
    for turn in range(6):
        body = greedy(f"question {turn}", 10, return_token_ids=True, turn=turn)
        reply = await served.answer(body, key="s1-2")
        prompt_ids = reply.events[0]["prompt_token_ids"]
        made = [i for event in reply.events for i in event["choices"][0]["token_ids"]]
        assert prompt_ids[: len(ids)] == ids
        assert made == oracle.generate(prompt_ids, 10)
        ids = prompt_ids + made


async def test_turns_of_a_session_that_come_at_once_are_answered_in_order(
    served: Pipeline,
) -> None:
    """Two turns in one engine batch would not see each other: the second waits for the first."""
    first = await served.ask(greedy("one", 40), key="s1-3")
    second = await served.ask(greedy("two", 5, turn=1), key="s1-3")
    await served.finished([first, second])
    assert served.order.index(first) < served.order.index(second)
    assert served.replies[second].finish_reason == "length"


async def test_refused_requests_fail_alone_and_poison_goes_to_the_dead_letters(
    served: Pipeline, oracle: Oracle
) -> None:
    """Bad bytes, wrong types and NaN each end with one failed event; the good ones are answered."""
    poison = [b"{", b"\xff\xfe\x00", b"null", b"[]", b'"x"', b"\xef\xbb\xbf{}", b"[" * 5000, b""]
    refused = [
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
        b'{"request_id":1,"messages":"x"}',
        b'{"messages":[]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"hi"}],"logit_bias":{"99999999":5}}',
        b'{"messages":[{"role":"user","content":"hi"}],"model":"other"}',
    ]
    good, bad = [], []
    for number, value in enumerate([*poison, *refused]):
        bad.append(await served.ask(value, key=f"bad{number}"))
        good.append(await served.ask(greedy("hi", 4), key=f"good{number}"))
    await served.ask(None, key="s1-4")  # a tombstone
    await served.ask(None, key=b"")  # and one that names no session
    await served.finished([*good, *bad])
    codes = [served.replies[name].last["error"]["code"] for name in bad]
    assert codes[: len(poison)] == ["invalid_json"] * len(poison)
    assert codes[len(poison) :] == [
        "invalid_value",
        "invalid_value",
        "invalid_value",
        "invalid_text",
        "invalid_value",
        "model_not_found",
    ]
    assert {served.replies[name].text for name in good} == {oracle.answer(user("hi"), 4)}
    letters = await dead_letters(served)
    assert sorted(letter.value for letter in letters) == sorted(poison)
    await served.all_committed()


async def test_answers_follow_their_schema_and_a_bad_one_is_refused_alone(
    served: Pipeline, oracle: Oracle
) -> None:
    """Two answers by schema, one refusal, and neighbours that get the model's own tokens."""

    def held_to(schema: dict[str, Any]) -> dict[str, Any]:
        return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}

    nested, bias = SCHEMAS["nested"], closing_bias(oracle.tokenizer)
    drawn = {"temperature": 1, "logit_bias": {str(i): bias[i] for i in bias}, **held_to(nested)}
    first = await served.ask(greedy("hi", 24), key="s1-11")
    good = [
        await served.ask(greedy("hi", 400, **drawn, seed=seed), key=f"s2-11-{seed}")
        for seed in range(2)
    ]
    bad = await served.ask(greedy("hi", **held_to({"type": "thing"})), key="s3-11")
    second = await served.ask(greedy("hi", 24), key="s4-11")
    await served.finished([first, *good, bad, second])
    for name in good:
        assert served.replies[name].finish_reason == "stop"
        assert is_valid(served.replies[name].text, nested)
    assert served.replies[good[0]].text != served.replies[good[1]].text
    error = served.replies[bad].last["error"]
    assert (error["code"], error["param"]) == (
        "invalid_value",
        "response_format.json_schema.schema",
    )
    expected = oracle.answer(user("hi"), 24)
    assert [served.replies[name].text for name in (first, second)] == [expected] * 2


async def dead_letters(served: Pipeline) -> list[Any]:
    """Everything in the dead-letter topic."""
    topic = served.settings.topics.dlq
    consumer = AIOKafkaConsumer(
        topic, **served.settings.kafka_options(), auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        ends = await consumer.end_offsets(list(consumer.assignment()))
        records: list[Any] = []
        while len(records) < sum(ends.values()):
            found = await consumer.getmany(timeout_ms=500)
            records += [record for batch in found.values() for record in batch]
    finally:
        await consumer.stop()
    return records


async def test_a_second_record_with_the_same_request_id_is_not_answered(
    served: Pipeline,
) -> None:
    """The first record counts, whatever the second one holds."""
    (worker,) = served.workers
    await served.ask(greedy("one", 4, request_id="r1"), key="s1-7")
    await served.ask(greedy("two", 9, request_id="r1"), key="s1-7")
    await served.ask(b'{"request_id":"r1","messages":3}', key="s1-7")
    await served.finished(["r1"])
    await served.all_committed()
    assert served.replies["r1"].last["usage"]["completion_tokens"] == 4
    assert served.replies["r1"].num_dropped == 0
    assert await worker.metric("headrace_request_duplicates_total") == 2


async def test_a_deleted_session_is_forgotten_in_order_with_its_requests(
    served: Pipeline,
) -> None:
    """A tombstone between two turns: the turn behind it starts a new conversation."""
    first = await served.ask(greedy("one", 4), key="s1-8")
    await served.ask(None, key="s1-8")
    second = await served.ask(greedy("two", 4, turn=0), key="s1-8")
    wrong = await served.ask(greedy("three", 4, turn=0), key="s1-8")
    await served.finished([first, second, wrong])
    assert served.replies[second].finish_reason == "length"
    assert served.replies[wrong].last["error"]["code"] == "session_out_of_sync"


async def test_expired_requests_fail_without_being_started(served: Pipeline) -> None:
    """A request older than its ttl_ms is not computed."""
    reply = await served.answer(
        greedy("hi", 4, ttl_ms=1), key="s1-9", timestamp_ms=1_700_000_000_000
    )
    assert reply.last["error"]["code"] == "expired"


async def test_aborted_transactions_are_not_answered_and_do_not_block_commits(
    served: Pipeline,
) -> None:
    """Requests are read read_committed; a marker at a partition's end leaves no work behind."""
    producer = AIOKafkaProducer(
        **served.settings.kafka_options(), transactional_id=served.settings.topic_prefix
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        value = b'{"request_id":"aborted","messages":[{"role":"user","content":"hi"}]}'
        await producer.send_and_wait(served.settings.topics.requests, value, key=b"s1-10")
        await producer.abort_transaction()
    finally:
        await producer.stop()
    await served.answer(greedy("hi", 4, request_id="good"), key="s1-10")
    assert "aborted" not in served.replies
    await served.all_committed()


async def test_compressed_records_of_any_codec_are_read(served: Pipeline) -> None:
    """Java and librdkafka clients compress; a codec that cannot be read would end every worker."""
    for codec in ("gzip", "lz4", "snappy", "zstd"):
        producer = AIOKafkaProducer(**served.settings.kafka_options(), compression_type=codec)
        await producer.start()
        try:
            value = orjson.dumps(greedy("hi", 2, request_id=f"codec-{codec}"))
            topic = served.settings.topics.requests
            await producer.send_and_wait(topic, value, key=codec.encode())
        finally:
            await producer.stop()
        await served.finished([f"codec-{codec}"])
        assert served.replies[f"codec-{codec}"].finish_reason == "length"


async def test_a_header_name_of_any_bytes_stops_nobody(served: Pipeline) -> None:
    """Requests with one, and their neighbours in the batch, are answered; committed behind them."""
    bodies = [orjson.dumps(greedy("hi", 2, request_id=f"odd-{place}")) for place in range(3)]
    topic = served.settings.topics.requests
    await send_odd(served.producer, topic, 0, bodies, odd={1})
    await served.finished([f"odd-{place}" for place in range(3)])
    assert {served.replies[f"odd-{place}"].finish_reason for place in range(3)} == {"length"}
    await served.all_committed()


async def test_records_near_the_size_limit_are_answered_or_dead_lettered(
    served: Pipeline,
) -> None:
    """A dead letter has more headers than its original, and must still fit its topic."""
    settings = served.settings
    room = settings.max_record_bytes - 200
    producer = AIOKafkaProducer(**settings.kafka_options(), max_request_size=2 * room)
    await producer.start()
    try:
        garbage = await producer.send_and_wait(settings.topics.requests, b"x" * room, key=b"big")
        packed = AIOKafkaProducer(
            **settings.kafka_options(), max_request_size=8 * room, compression_type="gzip"
        )
        await packed.start()
        try:
            bomb = await packed.send_and_wait(settings.topics.requests, b"x" * 5 * room, key=b"z")
        finally:
            await packed.stop()
        value = orjson.dumps(greedy("hi", 2, request_id="bags"))
        bags = [("baggage", b"a" * (room - len(value) - 100))]
        await producer.send_and_wait(settings.topics.requests, value, key=b"b", headers=bags)
    finally:
        await producer.stop()
    names = [f"{sent.topic}-{sent.partition}-{sent.offset}" for sent in (garbage, bomb)]
    await served.finished([*names, "bags"])
    codes = [served.replies[name].last["error"]["code"] for name in names]
    assert codes == ["invalid_json", "invalid_json"]
    assert served.replies["bags"].finish_reason == "length"
