"""`headrace dlq` as a program, on letters in a real topic."""

import asyncio
import json
import os
import pty
import sys
import time
from asyncio.subprocess import PIPE
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from headrace.deploy.topics import ensure_topics
from headrace.schemas.settings import Settings, child_environment, load_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MINUTE_MS = 60_000


@pytest.fixture
async def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Settings with topics of this test's own."""
    settings = load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)
    await ensure_topics(settings, partitions=3)
    return settings


async def put(settings: Settings, *letters: tuple[bytes | None, bytes | None, str, str]) -> None:
    """Dead letters in partition 1: (key, value, reason, topic); each a second after the other."""
    producer = AIOKafkaProducer(**settings.kafka_options())
    start_ms = int(time.time() * 1000) - 2 * MINUTE_MS  # an older one is retention's
    await producer.start()
    try:
        for number, (key, value, reason, topic) in enumerate(letters):
            about = {
                "reason": reason,
                "error": "it \x1b[2Jbroke",
                "topic": topic,
                "partition": "1",
                "offset": str(number),
                "timestamp": "1700000000000",
                "attempts": "1",
            }
            headers = [(f"headrace-dlq-{name}", text.encode()) for name, text in about.items()]
            await producer.send_and_wait(
                settings.topics.dlq,
                value,
                key=key,
                partition=1,
                timestamp_ms=start_ms + 1000 * number,
                headers=headers,
            )
    finally:
        await producer.stop()


async def dlq(settings: Settings, *args: str, stdin: Any = PIPE) -> tuple[int, str, str]:
    """Run to the end: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "dlq", *args),
        env=child_environment(kafka=settings.kafka, topic_prefix=settings.topic_prefix),
        stdin=stdin,
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def requests(settings: Settings) -> list[Any]:
    """All that stands in the request topic."""
    consumer = AIOKafkaConsumer(
        settings.topics.requests, **settings.kafka_options(), auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        parts = list(consumer.assignment())
        left = sum((await consumer.end_offsets(parts)).values())
        found: list[Any] = []
        async with asyncio.timeout(20):
            while len(found) < left:
                batches = await consumer.getmany(timeout_ms=200)
                found += [record for batch in batches.values() for record in batch]
    finally:
        await consumer.stop()
    return found


def good(name: str) -> bytes:
    return json.dumps({"request_id": name, "prompt": "x"}).encode()


async def test_nothing_there_is_said(settings: Settings) -> None:
    """On stderr; exit code 0."""
    assert await dlq(settings, "list") == (0, "", "there are no dead letters\n")
    code, out, err = await dlq(settings, "retry", "--all", "--reason", "x")
    assert (code, out, err) == (0, "", "there are no dead letters like these\n")


async def test_list_shows_the_newest_the_oldest_first(settings: Settings) -> None:
    """As a table and as JSON; the rest is counted; no byte steers a terminal."""
    own = settings.topics.requests
    await put(
        settings,
        (None, b"{", "invalid_json", own),
        (b"s1", good("a"), "internal_error", own),
        (b"s\x1b[2J", good("b"), "internal_error", own),
    )
    code, out, err = await dlq(settings, "list", "--limit", "2")
    head, *lines = out.splitlines()
    assert code == 0
    assert head.split() == ["place", "when", "reason", "tries", "session", "request", "id", "error"]
    assert [line.split()[0] for line in lines] == ["1-1", "1-2"]
    assert "internal_error" in lines[0]
    assert "\x1b" not in out
    assert err == "1 older ones are not shown (--limit)\n"
    code, out, _ = await dlq(settings, "list", "--json", "--reason", "invalid_json")
    (found,) = [json.loads(line) for line in out.splitlines()]
    assert (found["place"], found["session"]) == ("1-0", None)
    assert found["request_id"] == f"{own}-1-0"
    assert found["attempts"] == 1
    code, out, _ = await dlq(settings, "list", "--since", "1m")
    assert (code, out) == (0, "")


async def test_show_prints_a_page_or_json(settings: Settings) -> None:
    """And one clear line where there is no such letter."""
    await put(settings, (None, good("a"), "internal_error", settings.topics.requests))
    code, out, err = await dlq(settings, "show", "1-0")
    assert (code, err) == (0, "")
    assert '  "request_id": "a",\n' in out
    assert "key       null\n" in out
    assert "\x1b" not in out
    code, out, _ = await dlq(settings, "show", "1-0", "--json")
    assert json.loads(out)["value"]["text"] == good("a").decode()
    code, out, err = await dlq(settings, "show", "1-7")
    assert (code, out) == (1, "")
    assert err == ("headrace: there is no dead letter 1-7: partition 1 holds offsets 0 to 0 now\n")


async def test_retry_of_places_prints_both_ids_and_does_all_or_nothing(
    settings: Settings,
) -> None:
    """In the order of offsets, whatever the order of words; a place that cannot be stops all."""
    own = settings.topics.requests
    await put(
        settings,
        (b"s1", good("a"), "internal_error", own),
        (b"s1", good("b"), "internal_error", own),
        (b"s1", b"x", "invalid_json", settings.topics.control),
    )
    code, out, err = await dlq(settings, "retry", "1-0", "1-2")
    assert (code, out) == (1, "")
    assert err == (
        f"headrace: 1-2 cannot be retried: it is from topic '{settings.topics.control}', "
        f"requests go to {own}\n"
    )
    assert await requests(settings) == []
    code, out, err = await dlq(settings, "retry", "1-1", "1-0", "1-1")
    assert (code, err) == (0, "")
    assert out == "1-0  a -> a.retry-1-0\n1-1  b -> b.retry-1-1\n"
    sent = await requests(settings)
    assert [record.value for record in sent] == [good("a"), good("b")]
    assert len({record.partition for record in sent}) == 1


async def test_retry_of_all_leaves_out_what_cannot_be_and_says_so(settings: Settings) -> None:
    """Exit code 1 then; a dry run does nothing; what is read is what was there at the start."""
    own = settings.topics.requests
    await put(
        settings,
        (b"s1", good("a"), "internal_error", own),
        (b"s1", b"x", "internal_error", "elsewhere"),
        (b"s1", b"{", "invalid_json", own),
    )
    flags = ("retry", "--all", "--reason", "internal_error")
    code, out, err = await dlq(settings, *flags, "--dry-run")
    assert (code, out) == (1, "1-0  a -> a.retry-1-0\n")
    assert "1 dead letter would be asked again; nothing was done\n" in err
    assert await requests(settings) == []
    code, out, err = await dlq(settings, *flags, "--json")
    assert code == 1
    (found,) = [json.loads(line) for line in out.splitlines()]
    assert (found["request_id"], found["new_request_id"]) == ("a", "a.retry-1-0")
    assert err.splitlines()[0].startswith("headrace: 1-1 cannot be retried: it is from topic")
    assert err.splitlines()[1:] == ["headrace: 1 dead letter could not be asked again"]
    (record,) = await requests(settings)
    assert (record.partition, record.offset) == (found["partition"], found["offset"])


@pytest.mark.parametrize(("answer", "flags", "num_sent"), [("n", (), 0), ("n", ("--yes",), 1)])
async def test_all_is_asked_for_on_a_terminal(
    settings: Settings, answer: str, flags: tuple[str, ...], num_sent: int
) -> None:
    """Exit code 1 where the answer is no; --yes does not ask."""
    await put(settings, (b"s1", good("a"), "internal_error", settings.topics.requests))
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        code, _, err = await dlq(settings, "retry", "--all", *flags, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert code == (0 if num_sent else 1)
    assert ("Ask 1 dead letter again?" in err) == (num_sent == 0)
    assert len(await requests(settings)) == num_sent
