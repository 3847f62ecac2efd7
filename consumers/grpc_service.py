"""`headrace.v1.Generation`: the gateway's calls over gRPC, on the same core as HTTP.

Knows nothing of ports and certificates. What a client sees of errors is in `generation.proto`.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import grpc
import structlog

from headrace.consumers.context import Gateway
from headrace.consumers.generation import Generation, cancel
from headrace.consumers.grpc_doors import tenant_in
from headrace.consumers.grpc_errors import code_of, is_resumable, trailing_of
from headrace.consumers.grpc_wire import body_of, response_of
from headrace.consumers.log_event import LogEvent
from headrace.consumers.request_feed import RequestFeed
from headrace.consumers.requests_api import first_event
from headrace.consumers.submission import prepare, usable_id
from headrace.consumers.subscription import SlowReaderError
from headrace.schemas.errors import ErrorCode, HeadraceError, RequestError, UnavailableError
from headrace.schemas.headers import trace_headers
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.proto.headrace.v1.generation_pb2_grpc import GenerationServicer

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

_log = structlog.get_logger(__name__)


class _Stoppable(Protocol):
    def fail(self, error: HeadraceError) -> None:
        """End the reading with `error`."""


class GenerationService(GenerationServicer):
    """Serves calls until `end_all`.

    Cancel: of a handler, which is how grpc tells that the client has left or that the deadline is
    over: the generation is cancelled, as `Generation` does it.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open: set[_Stoppable] = set()

    async def Stream(self, request: pb.StreamRequest, context: Context) -> None:
        """See `generation.proto`."""
        stream = _Stream(context, self._gateway)
        await self._answered("Stream", context, self._stream(request, stream), stream)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        """See `generation.proto`."""
        return await self._answered("Cancel", context, self._cancel(request, context))

    def end_all(self) -> None:
        """End every stream with UNAVAILABLE; what they generate goes on, to be read elsewhere."""
        for one in self._open:
            one.fail(UnavailableError("this gateway", 0.0, "stops; resume at another"))

    async def _answered(
        self,
        method: str,
        context: Context,
        work: Coroutine[Any, Any, T],
        stream: "_Stream | None" = None,
    ) -> T:
        """Do `work`; what it raises becomes the call's status."""
        code = grpc.StatusCode.CANCELLED
        try:
            result = await work
        except HeadraceError as problem:
            code = code_of(problem)
            cursor = stream.cursor if stream is not None else None
            trailing = trailing_of(problem, cursor=cursor)
            await context.abort(code, str(problem), trailing)
        except grpc.aio.InternalError:  # the client has left
            raise
        except Exception:  # a bug of ours: grpc would tell its text to the client
            _log.exception("grpc.crashed", method=method)
            code = grpc.StatusCode.INTERNAL
            await context.abort(code, "the gateway failed")
        else:
            code = grpc.StatusCode.OK
            return result
        finally:
            self._gateway.metrics.grpc_calls.labels(method, code.name).inc()

    async def _cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        tenant = self._tenant_of(context)
        request_id = usable_id(request.request_id, "request_id")
        session_id = usable_id(request.session_id or request_id, "session_id")
        await cancel(self._gateway, request_id, session_id, tenant=tenant)
        return pb.CancelResponse()

    async def _stream(self, request: pb.StreamRequest, stream: "_Stream") -> None:
        tenant = self._tenant_of(stream.context)
        which = request.WhichOneof("call")
        if which == "generate":
            await self._generate(request.generate, stream, tenant)
        elif which == "resume":
            await self._resume(request.resume, stream, tenant)
        else:
            raise RequestError(ErrorCode.INVALID_VALUE, "generate or resume is needed", "call")

    async def _generate(self, request: pb.GenerateRequest, stream: "_Stream", tenant: str) -> None:
        call = prepare(body_of(request), tenant=tenant)
        trace = trace_headers(_metadata(stream.context))
        generation = Generation(self._gateway, call, tenant=tenant, trace=trace)
        async with generation:
            try:
                with self._ended_by_stop(generation):
                    await stream.accept(call.request_id, call.session_id)
                    while not generation.finished:
                        found = await generation.next()
                        if found is not None:
                            await stream.send(found[0])
            except HeadraceError as problem:
                if is_resumable(problem):
                    generation.keep()
                raise

    async def _resume(self, request: pb.ResumeRequest, stream: "_Stream", tenant: str) -> None:
        place = request.WhichOneof("place")
        if request.starting_after < -1:
            raise RequestError(ErrorCode.INVALID_VALUE, "must be at least -1", "starting_after")
        feed = RequestFeed(
            self._gateway.log,
            tenant=tenant,
            request_id=usable_id(request.request_id, "request_id"),
            session_id=usable_id(request.session_id, "session_id") if request.session_id else None,
            starting_after=request.starting_after if place == "starting_after" else None,
            cursor=request.cursor if place == "cursor" else None,
        )
        async with feed:
            with self._ended_by_stop(feed):
                await stream.context.send_initial_metadata(())  # the client is connected
                found = await first_event(self._gateway, feed)
                while True:
                    if found is not None:
                        await stream.send(found[0])
                    if feed.finished:
                        return
                    found = await feed.next(self._gateway.bounds.heartbeat_s)

    @contextmanager
    def _ended_by_stop(self, one: _Stoppable) -> Iterator[None]:
        self._open.add(one)
        try:
            yield
        finally:
            self._open.discard(one)

    def _tenant_of(self, context: Context) -> str:
        return tenant_in(context.invocation_metadata(), self._gateway.keys)


class _Stream:
    """The sending side of one call, and the place up to which its client was sent events."""

    def __init__(self, context: Context, gateway: Gateway) -> None:
        self.context = context
        self.cursor: str | None = None
        self._gateway = gateway

    async def accept(self, request_id: str, session_id: str) -> None:
        """Tell the names. Raises: SlowReaderError."""
        await self._write(
            pb.StreamResponse(accepted=pb.Accepted(), request_id=request_id, session_id=session_id)
        )

    async def send(self, event: LogEvent) -> None:
        """Hand an event on; waits for the client's flow control. Raises: SlowReaderError."""
        await self._write(response_of(event))
        self.cursor = event.cursor
        self._gateway.metrics.events_sent.labels("grpc").inc()

    async def _write(self, message: pb.StreamResponse) -> None:
        try:
            async with asyncio.timeout(self._gateway.bounds.send_s):
                await self.context.write(message)
        except TimeoutError as problem:
            self._gateway.metrics.slow_readers.inc()
            raise SlowReaderError(self.cursor) from problem


def _metadata(context: Context) -> list[tuple[str, bytes]]:
    found = context.invocation_metadata() or ()
    return [(key, it.encode() if isinstance(it, str) else it) for key, it in found]
