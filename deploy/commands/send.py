"""`headrace send`: ask, and print the answer as it comes.

Owns the question's life from here: produced, followed, cancelled by Ctrl-C, given up in silence.
"""

import asyncio
import signal
import sys
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer

from headrace.consumers.response_log import ResponseLog
from headrace.deploy.commands.options import KAFKA, examples, with_settings
from headrace.deploy.commands.output import ReplyText, failure_text, statistics, write_json
from headrace.deploy.console import fail, note, stderr_console, stderr_is_terminal
from headrace.producers.request_producer import RequestProducer
from headrace.schemas.errors import HeadraceError
from headrace.schemas.reply import ReplyReader, Seen
from headrace.schemas.request import DEFAULT_TENANT
from headrace.schemas.request_id import new_request_id
from headrace.schemas.settings import Settings

DEFAULT_SILENCE_S = 300.0
CANCEL_WAIT_S = 10.0
"""After Ctrl-C, for the last event: workers answer a cancel within 2 s."""

SPINNER_AFTER_S = 1.5

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class NoReplyError(HeadraceError):
    """The answer did not come, or not all of it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it is produced, and where its answer is looked for."""

    body: dict[str, Any]
    session_id: str
    tenant: str
    request_id: str = field(default_factory=new_request_id)


@app.command(
    epilog=examples(
        'headrace send "What is the capital of France?"',
        'headrace send "And of Italy?" --session s1 --max-tokens 50 --temperature 0',
        "cat letter.txt | headrace send - --system 'Sum it up in a sentence.' --json",
    )
)
@with_settings(*KAFKA, "max_request_bytes", errors_only=True)
def send(
    settings: Settings,
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    session: Annotated[
        str | None, typer.Option(help="The conversation it belongs to; default a new one.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer; default 256.")] = None,
    temperature: Annotated[float, typer.Option(help="0 to 2; 0 is greedy.")] = 0.0,
    top_p: Annotated[float | None, typer.Option(help="Above 0, to 1.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message before it.")] = None,
    context: Annotated[
        Literal["append", "replace"] | None,
        typer.Option(help="Go on with the stored conversation, or begin it anew."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Alias; default the worker's.")] = None,
    stream: Annotated[bool, typer.Option(help="Print as it comes, or in one piece.")] = True,
    tenant: Annotated[str, typer.Option(help="Whose conversation it is.")] = DEFAULT_TENANT,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="<seconds>", help="Give up after this long without an event."
        ),
    ] = DEFAULT_SILENCE_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line.")] = False,
) -> int:
    """Ask, and print the answer as it comes. Ctrl-C cancels it."""
    message = sys.stdin.read() if text == "-" else text
    if not message.strip():
        raise typer.BadParameter("the message is empty", param_hint="TEXT")
    messages = [{"role": "user", "content": message}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": stop or None,
        "context": context,
        "model": model,
    }
    body = {name: value for name, value in options.items() if value is not None}
    session_id = session or f"cli-{uuid.uuid4().hex[:12]}"
    question = Question({"messages": messages, "stream": stream, **body}, session_id, tenant)
    return asyncio.run(ask(settings, question, silence_s=timeout, as_json=as_json))


async def ask(
    settings: Settings, question: Question, *, silence_s: float, as_json: bool = False
) -> int:
    """Produce `question` and print its events; returns the exit code.

    Raises: RequestError (refused before it is produced), UnavailableError, NoReplyError.
    Cancel: the request goes on; only SIGINT and SIGTERM cancel it.
    """
    async with AsyncExitStack() as stack:
        producer, log = RequestProducer(settings, source="headrace/cli"), ResponseLog(settings)
        for part in (producer, log):
            stack.push_async_callback(part.stop)
            await part.start()
        events = await stack.enter_async_context(
            log.follow(
                tenant=question.tenant,
                session_id=question.session_id,
                request_id=question.request_id,
            )
        )
        reply = _Reply(question, producer, silence_s=silence_s, as_json=as_json)
        await producer.submit(
            {**question.body, "request_id": question.request_id},
            tenant=question.tenant,
            session_id=question.session_id,
        )
        last = await reply.follow(events)
    return _conclude(question, last, as_json=as_json, interrupted=reply.interrupted)


class _Reply:
    """Follows one answer, within a bounded silence, and cancels it on a signal."""

    def __init__(
        self, question: Question, producer: RequestProducer, *, silence_s: float, as_json: bool
    ) -> None:
        self.interrupted = False
        self._question, self._producer = question, producer
        self._silence_s, self._as_json = silence_s, as_json
        self._reader, self._text = ReplyReader(), ReplyText()
        self._signal = asyncio.Event()

    async def follow(self, events: Any) -> dict[str, Any]:
        """Print until the last event, and return it. Raises: NoReplyError, UnavailableError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signal.set)
        spinner = _Spinner()
        try:
            async with asyncio.timeout(self._silence_s) as silence, asyncio.TaskGroup() as tasks:
                cancelling = tasks.create_task(self._cancel_on_signal(silence), name="send.cancel")
                async for found in events:
                    spinner.stop()
                    if not self.interrupted:
                        silence.reschedule(loop.time() + self._silence_s)
                    self._show(found.event)
                    if self._reader.finished:
                        cancelling.cancel()
                        return dict(found.event)
        except TimeoutError:
            raise NoReplyError(self._silence_text()) from None
        finally:
            spinner.stop()
            self._text.end_line()
        raise NoReplyError("the response log ended before the answer did")

    def _show(self, event: dict[str, Any]) -> None:
        seen = self._reader.see(event)
        if seen is Seen.GAP:
            raise NoReplyError("events of this answer are missing from the response log")
        if seen is Seen.OLD:
            return
        if self._as_json:
            write_json(event)
        else:
            self._text.show(event, restarted=seen is Seen.RESTART)

    async def _cancel_on_signal(self, silence: asyncio.Timeout) -> None:
        """The first signal cancels and bounds the wait for the end; the second ends the wait."""
        loop = asyncio.get_running_loop()
        await self._signal.wait()
        self.interrupted = True
        self._signal.clear()
        silence.reschedule(loop.time() + CANCEL_WAIT_S)
        question = self._question
        await self._producer.cancel(
            question.request_id, session_id=question.session_id, tenant=question.tenant
        )
        await self._signal.wait()
        silence.reschedule(loop.time())

    def _silence_text(self) -> str:
        if self.interrupted:
            return "cancelled; its last event did not come in time"
        question = self._question
        undo = f"headrace cancel {question.request_id} --session {question.session_id}"
        return (
            f"no event for {self._silence_s:g} s: is a worker running? "
            f"The request stays queued; to take it back: {undo}"
        )


class _Spinner:
    """`waiting for a worker` on a terminal's stderr, if nothing comes for a while."""

    def __init__(self) -> None:
        self._status: Any = None
        self._later: asyncio.TimerHandle | None = None
        if stderr_is_terminal():
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(SPINNER_AFTER_S, self._start)

    def _start(self) -> None:
        self._status = stderr_console().status("waiting for a worker")
        self._status.start()

    def stop(self) -> None:
        """Take it away. Safe to call twice."""
        if self._later is not None:
            self._later.cancel()
        if self._status is not None:
            self._status.stop()
        self._later = self._status = None


def _conclude(question: Question, last: dict[str, Any], *, as_json: bool, interrupted: bool) -> int:
    if (failure := failure_text(last)) is not None:
        fail(failure)
        return 1
    if stderr_is_terminal() and not as_json:
        note(f"{statistics(last)} · session {question.session_id}")
    return 1 if interrupted else 0
