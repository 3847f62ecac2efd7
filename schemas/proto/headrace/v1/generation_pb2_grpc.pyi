"""What of the generated service is used here, typed; the generator writes no types for it."""

from collections.abc import Awaitable
from typing import Any

import grpc.aio

from headrace.schemas.proto.headrace.v1.generation_pb2 import (
    CancelRequest,
    CancelResponse,
    StreamRequest,
    StreamResponse,
)

class GenerationStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Stream: grpc.aio.UnaryStreamMultiCallable[StreamRequest, StreamResponse]
    Cancel: grpc.aio.UnaryUnaryMultiCallable[CancelRequest, CancelResponse]

class GenerationServicer:
    def Stream(
        self,
        request: StreamRequest,
        context: grpc.aio.ServicerContext[StreamRequest, StreamResponse],
    ) -> Awaitable[None]: ...
    def Cancel(
        self,
        request: CancelRequest,
        context: grpc.aio.ServicerContext[CancelRequest, CancelResponse],
    ) -> Awaitable[CancelResponse]: ...

def add_GenerationServicer_to_server(servicer: GenerationServicer, server: Any) -> None: ...
