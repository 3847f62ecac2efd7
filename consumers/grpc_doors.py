"""Who may hold how many gRPC calls open, and for how long without a word.

Every call passes here before its message is read. grpc itself knows one limit, for all together:
without these a stranger's health watches, or one tenant's, would shut everybody out.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from headrace.consumers.api_keys import ApiKeys
from headrace.consumers.auth import bearer
from headrace.consumers.grpc_errors import code_of, trailing_of
from headrace.consumers.open_calls import OpenCalls
from headrace.schemas.errors import HeadraceError

MAX_CALLS = 2_000
"""Of `Generation` at once, twice what may be generated: others read. One tenant of several may have
half.
"""

MAX_CHECKS, MAX_WATCHES, MAX_REFLECTIONS = 500, 100, 20
"""Of strangers at once: health is asked, and watched, without a key."""

MAX_IN_ALL = 2 * MAX_CALLS
"""grpc's own limit: never reached but by calls that are being refused."""

KEYED_MESSAGE_S, MESSAGE_S = 30.0, 5.0
"""For a call's message to come, with a key and without."""

REFLECTION_S = 60.0

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
"""None: there is no such method."""
Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[AsyncIterator[Any], Context], Awaitable[None]]
Metadata = Iterable[tuple[str, str | bytes]]


def tenant_in(metadata: Metadata | None, keys: ApiKeys) -> str:
    """The caller's tenant. Raises: RequestError `unauthorized`."""
    found = dict(metadata or ()).get("authorization", b"")
    text = found.decode("latin-1") if isinstance(found, bytes) else found
    return keys.tenant_of(bearer(text))


class Doors(grpc.aio.ServerInterceptor):
    """Admits calls: those of `Generation` by the key's tenant, the rest as strangers."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        share = MAX_CALLS if keys.keyless else MAX_CALLS // 2
        calls = OpenCalls("gRPC calls", max_open=MAX_CALLS, max_per_tenant=share)
        self._keyed = _Door(calls, KEYED_MESSAGE_S)
        self._strangers = {
            f"/{health.SERVICE_NAME}/Check": _Door(_places("health checks", MAX_CHECKS), MESSAGE_S),
            f"/{health.SERVICE_NAME}/Watch": _Door(
                _places("health watches", MAX_WATCHES), MESSAGE_S
            ),
            f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": _Door(
                _places("reflections", MAX_REFLECTIONS), MESSAGE_S, REFLECTION_S
            ),
        }

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        """See grpc."""
        handler: Any = await continuation(details)  # Any: grpc's types know of threads only
        if handler is None:
            return None
        door = self._strangers.get(details.method)

        async def serve(requests: AsyncIterator[Any], context: Context) -> None:
            if door is not None:
                await door.pass_through(handler, "", requests, context)
                return
            tenant = tenant_in(details.invocation_metadata, self._keys)
            await self._keyed.pass_through(handler, tenant, requests, context)

        return grpc.stream_stream_rpc_method_handler(
            _told(serve), handler.request_deserializer, handler.response_serializer
        )


def _places(what: str, max_open: int) -> OpenCalls:
    """Of strangers, who all count as one."""
    return OpenCalls(what, max_open=max_open, max_per_tenant=max_open)


def _told(serve: Behaviour) -> Behaviour:
    """`serve`, whose errors become the call's status."""

    async def tell(requests: AsyncIterator[Any], context: Context) -> None:
        try:
            try:
                await serve(requests, context)
            except HeadraceError as problem:
                await context.abort(code_of(problem), str(problem), trailing_of(problem))
        except grpc.aio.InternalError:  # nothing can be sent: grpc would log it as a crash
            raise asyncio.CancelledError("the client has left") from None

    return tell


@dataclass(frozen=True, slots=True)
class _Door:
    """What calls of one kind share: places, and the time for the message and for the whole."""

    places: OpenCalls
    message_s: float
    whole_s: float | None = None

    async def pass_through(
        self, handler: Any, caller: str, requests: AsyncIterator[Any], context: Context
    ) -> None:
        """Serve a call of `handler`, of any kind, as the stream that all are on the wire.

        Raises: RateLimitedError where no place is free.
        """
        self.places.take(caller)
        try:
            async with asyncio.timeout(self.whole_s):
                await self._serve(handler, requests, context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "this call was open too long")
        finally:
            self.places.give_back(caller)

    async def _serve(self, handler: Any, requests: AsyncIterator[Any], context: Context) -> None:
        if handler.stream_stream is not None:
            async for answer in handler.stream_stream(requests, context):
                await context.write(answer)
            return
        request = await _message(requests, context, self.message_s)
        if handler.unary_unary is not None:
            await context.write(await handler.unary_unary(request, context))
        else:
            await handler.unary_stream(request, context)


async def _message(requests: AsyncIterator[Any], context: Context, message_s: float) -> Any:
    try:
        async with asyncio.timeout(message_s):
            return await anext(requests)
    except TimeoutError:
        text = f"no message came within {message_s:g} s"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
    except StopAsyncIteration:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message is needed")
    except DecodeError as problem:
        text = f"the message cannot be read: {problem}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
