"""`send`, `tail`, `cancel`, `sessions` and `topics` with a scripted worker on a real broker."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from headrace.deploy.topics import ensure_topics
from headrace.schemas.control import Cancel, DeleteSession, decode_control
from headrace.schemas.errors import ErrorCode, RequestError
from headrace.schemas.event import Completion, Event, EventWriter, Timings, Usage
from headrace.schemas.request import DecodedRequest, Record, decode_request
from headrace.schemas.settings import Settings, child_environment, load_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

ATTEMPT = 1_796_000_000_123
DONE = Completion("stop", Usage(5, 3), Timings(decode_ms=100.0, ttft_ms=20.0), 7, {})
Script = Callable[[DecodedRequest], list[Event]]


def writer(request: DecodedRequest, attempt: int = ATTEMPT) -> EventWriter:
    """Builds the events of an answer to `request`."""
    return EventWriter(request.request_id, request.session_id, attempt, 1_796_000_000, "m", "fp")


def says_hello(request: DecodedRequest) -> list[Event]:
    """Three chunks, one of them twice, as after a resume."""
    events = writer(request)
    first, second = events.chunk(0, "Hel"), events.chunk(1, "lo, wörld")
    return [first, second, second, events.chunk(2, "!", completion=DONE)]


def says_nothing(request: DecodedRequest) -> list[Event]:
    """As when no worker runs."""
    return []


def begins(request: DecodedRequest) -> list[Event]:
    """A first chunk; the rest never comes by itself."""
    return [writer(request).chunk(0, "Once upon")]


def loses_its_journal(request: DecodedRequest) -> list[Event]:
    """A second, larger attempt says the whole text again."""
    again = writer(request, ATTEMPT + 1)
    return [
        writer(request).chunk(0, "Hel"),
        again.chunk(0, "Hello"),
        writer(request).chunk(1, "STALE"),
        again.chunk(1, "!", completion=DONE),
    ]


def refuses(request: DecodedRequest) -> list[Event]:
    """One failed event."""
    error = RequestError(ErrorCode.MODEL_NOT_FOUND, "no model nix", "model")
    return [writer(request).failed(0, error)]


@dataclass
class ScriptedWorker:
    """Answers each request by a script; a cancel ends it with `cancelled`."""

    settings: Settings
    script: Script
    requests: list[DecodedRequest] = field(default_factory=list)
    control: list[Cancel | DeleteSession] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
        """Until it is cancelled."""
        async for found in consumer:
            if found.topic == self.settings.topics.control:
                order = decode_control(found.value)
                self.control.append(order)
                events = self.on_control(order)
            else:
                request = decode_request(as_record(found))
                self.requests.append(request)
                events = self.script(request)
            for event in events:
                await producer.send_and_wait(
                    self.settings.topics.responses,
                    event.value,
                    found.key,
                    found.partition,
                    headers=[item for item in found.headers if item[0] == "headrace-tenant"],
                )
            self.heard.set()

    def on_control(self, order: Cancel | DeleteSession) -> list[Event]:
        """The last event of a generation that began, if `order` cancels one."""
        for request in self.requests:
            if isinstance(order, Cancel) and order.request_id == request.request_id:
                cancelled = Completion("cancelled", DONE.usage, DONE.timings, 7, {})
                return [writer(request).chunk(1, "", completion=cancelled)]
        return []


def as_record(found: object) -> Record:
    """A consumed record as the schemas take it."""
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return Record(*(getattr(found, name) for name in names))


@asynccontextmanager
async def working(settings: Settings, script: Script) -> AsyncIterator[ScriptedWorker]:
    """A scripted worker that reads both topics from their ends on."""
    topics = settings.topics
    await ensure_topics(settings, partitions=3)
    consumer = AIOKafkaConsumer(**settings.kafka_options(), auto_offset_reset="earliest")
    producer = AIOKafkaProducer(**settings.kafka_options())
    await consumer.start()
    await producer.start()
    worker = ScriptedWorker(settings, script)
    try:
        consumer.assign(
            [
                TopicPartition(t, p)
                for t in topics.co_partitioned
                for p in range(3)
                if t != topics.responses
            ]
        )
        task = asyncio.create_task(worker.run(consumer, producer))
        yield worker
        task.cancel()
        await asyncio.wait({task})
    finally:
        await consumer.stop()
        await producer.stop()


@pytest.fixture
def settings(kafka_bootstrap: str, topic_prefix: str) -> Settings:
    """Settings with topics of this test's own."""
    return load_settings(kafka=kafka_bootstrap, topic_prefix=topic_prefix)


async def headrace(settings: Settings, *args: str) -> Process:
    """Start the command line as a user would."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", *args),
        env=child_environment(kafka=settings.kafka, topic_prefix=settings.topic_prefix),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )


async def run(settings: Settings, *args: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run to the end: exit code, standard output, standard error."""
    process = await headrace(settings, *args)
    out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_send_prints_the_text_once_and_ends_the_line(settings: Settings) -> None:
    """A repeated event is dropped; nothing else stands on either stream when piped."""
    async with working(settings, says_hello) as worker:
        assert await run(settings, "send", "hi") == (0, "Hello, wörld!\n", "")
    (request,) = worker.requests
    assert request.request is not None
    assert request.request.messages is not None
    assert request.request.messages[0].text == "hi"
    assert request.named_session


async def test_send_hands_its_options_on(settings: Settings) -> None:
    """Each flag arrives in the request under its contract name."""
    flags = "--session s1 --max-tokens 7 --temperature 0 --seed -3 --top-p 0.5 --stop END"
    flags += " --system Short. --context replace --no-stream --tenant acme"
    async with working(settings, says_hello) as worker:
        await run(settings, "send", "-", *flags.split(), stdin=b"from stdin\n")
    (found,) = worker.requests
    request = found.request
    assert request is not None
    assert request.messages is not None
    assert (found.session_id, found.tenant) == ("s1", "acme")
    assert [(m.role, m.text) for m in request.messages] == [
        ("system", "Short."),
        ("user", "from stdin\n"),
    ]
    assert (request.max_tokens, request.temperature, request.seed) == (7, 0, -3)
    assert (request.top_p, request.stop, request.context) == (0.5, ["END"], "replace")
    assert request.stream is False


async def test_send_json_prints_each_event_as_a_line(settings: Settings) -> None:
    """What a program reads: the events of contract §3, each once."""
    async with working(settings, says_hello):
        code, out, _ = await run(settings, "send", "hi", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    assert events[-1]["usage"]["completion_tokens"] == 3


async def test_send_prints_a_restarted_answer_again(settings: Settings) -> None:
    """A larger attempt: the text so far is void, said on stderr; the old attempt is ignored."""
    async with working(settings, loses_its_journal):
        code, out, err = await run(settings, "send", "hi")
    assert (code, out) == (0, "Hel\nHello!\n")
    assert "again from its beginning" in err


async def test_send_reports_a_failed_answer(settings: Settings) -> None:
    """One line with code, message and field; exit code 1."""
    async with working(settings, refuses):
        code, out, err = await run(settings, "send", "hi", "--model", "nix")
    assert (code, out) == (1, "")
    assert err == "headrace: model_not_found: no model nix (model)\n"


async def test_send_gives_up_after_a_silence(settings: Settings) -> None:
    """No worker: a hint, and how to take the request back."""
    async with working(settings, says_nothing):
        code, out, err = await run(settings, "send", "hi", "--timeout", "1")
    assert (code, out) == (1, "")
    assert "is a worker running?" in err
    assert len(err.splitlines()) == 1


async def test_send_refuses_a_bad_value_as_wrong_usage(settings: Settings) -> None:
    """By the contract's checks, before anything is produced."""
    async with working(settings, says_hello) as worker:
        code, _, err = await run(settings, "send", "hi", "--temperature", "9")
    assert code == 2
    assert err.startswith("headrace: temperature: ")
    assert worker.requests == []


async def test_ctrl_c_cancels_and_shows_the_end(settings: Settings) -> None:
    """A cancel record goes out, and the last event is waited for; exit code 1."""
    async with working(settings, begins) as worker:
        process = await headrace(settings, "send", "tell me a story", "--session", "s1")
        assert process.stdout is not None
        assert await process.stdout.readexactly(9) == b"Once upon"
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (1, b"\n", b"")
    (order,) = worker.control
    assert order == Cancel(request_id=worker.requests[0].request_id, session_id="s1")


async def test_without_topics_send_says_how_to_create_them(settings: Settings) -> None:
    """One line, no traceback."""
    code, out, err = await run(settings, "send", "hi")
    assert (code, out) == (1, "")
    assert "headrace topics create" in err
    assert len(err.splitlines()) == 1


async def test_cancel_and_delete_produce_control_records(settings: Settings) -> None:
    """Both are done when the broker has the record."""
    async with working(settings, says_nothing) as worker:
        cancelled = await run(settings, "cancel", "r1", "--session", "s1")
        assert cancelled == (0, "", "asked to cancel r1 in session s1\n")
        deleted = await run(settings, "sessions", "delete", "s1", "--tenant", "acme")
        assert deleted == (0, "", "asked to delete session s1\n")
        async with asyncio.timeout(10):
            while len(worker.control) < 2:
                worker.heard.clear()
                await worker.heard.wait()
    assert worker.control == [
        Cancel(request_id="r1", session_id="s1"),
        DeleteSession(session_id="s1", tenant="acme"),
    ]


@pytest.mark.parametrize("flags", [(), ("--session", "s1")], ids=["all", "one session"])
async def test_tail_follows_until_ctrl_c(settings: Settings, flags: tuple[str, ...]) -> None:
    """From the start: what was answered before; repeats are not shown; exit code 0."""
    async with working(settings, says_hello):
        await run(settings, "send", "hi", "--session", "s1")
        process = await headrace(settings, "tail", "--json", "--from-start", *flags)
        assert process.stdout is not None
        lines = [json.loads(await process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert [event["sequence_number"] for event in lines] == [0, 1, 2]
    assert (process.returncode, out, err) == (0, b"", b"")


async def test_tail_shows_text_by_request(settings: Settings) -> None:
    """A heading for each answer, its text, and its figures."""
    async with working(settings, says_hello):
        await run(settings, "send", "hi", "--session", "s1")
        process = await headrace(settings, "tail", "--from-start")
        assert process.stdout is not None
        lines = [(await process.stdout.readline()).decode() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert lines[0].startswith("── s1 req_")
    assert lines[1] == "Hello, wörld!\n"
    assert lines[2] == "   3 tokens · 20.0 tok/s · first token after 20 ms · stop\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    "command",
    [("send", "hi", "--json"), ("send", "hi"), ("tail", "--from-start", "--json")],
    ids=" ".join,
)
async def test_a_reader_that_has_enough_ends_it_quietly(
    settings: Settings, command: tuple[str, ...]
) -> None:
    """`headrace … | head -1`: exit code 0 and no message, though more events come."""
    async with working(settings, says_hello):
        await run(settings, "send", "hi")
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", '{ "$@"; echo "rc $?" >&2; } | head -c 1', "sh"),
            *(sys.executable, "-m", "headrace.deploy.cli", *command),
            env=child_environment(kafka=settings.kafka, topic_prefix=settings.topic_prefix),
            stdout=PIPE,
            stderr=PIPE,
        )
        while command[0] == "tail" and process.returncode is None:
            await run(settings, "send", "hi")  # it hears of the closed pipe when it writes
        out, err = await process.communicate()
    assert (len(out), err) == (1, b"rc 0\n")


@pytest.mark.parametrize("flags", [(), ("--session", "s1")], ids=["all", "one session"])
async def test_tail_says_which_kafka_is_not_there(flags: tuple[str, ...]) -> None:
    """One line with the address and what to do; no bound that it did not wait for."""
    code, out, err = await run(load_settings(kafka="127.0.0.1:1"), "tail", *flags)
    assert (code, out) == (1, "")
    assert err == (
        "headrace: Kafka at 127.0.0.1:1 cannot be reached: is it running? "
        "(`headrace up` starts one; --kafka / HEADRACE_KAFKA)\n"
    )


async def test_numbers_of_topics_that_differ_are_said(settings: Settings) -> None:
    """They are left as they are, and that is no failure."""
    await ensure_topics(settings, partitions=3)
    code, out, err = await run(settings, "topics", "create", "--partitions", "4")
    assert code == 0
    assert f"left {settings.topics.requests} as it is" in out
    assert f"{settings.topics.requests} has 3 partitions, not 4" in err.splitlines()


@pytest.mark.parametrize("command", [("topics", "create"), ("topics", "check")])
async def test_topics_commands(settings: Settings, command: tuple[str, ...]) -> None:
    """`check` fails until `create` has run; both speak JSON when asked."""
    code, out, _ = await run(settings, "topics", "check", "--json")
    assert code == 1
    assert len(json.loads(out)["differences"]) == 4
    code, out, _ = await run(settings, "topics", "create", "--partitions", "3", "--json")
    assert code == 0
    assert len(json.loads(out)["created"]) == 4
    assert (await run(settings, *command))[0] == 0
