"""How the gRPC service is served: limits, keepalive, TLS, health, reflection, start and stop."""

import asyncio

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.consumers.context import Gateway
from headrace.consumers.grpc_doors import MAX_IN_ALL, Doors
from headrace.consumers.grpc_service import GenerationService
from headrace.consumers.server import FRAME_OVERHEAD_BYTES, SHUTDOWN_TIMEOUT_S
from headrace.consumers.tls import TlsFiles
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.proto.headrace.v1.generation_pb2_grpc import add_GenerationServicer_to_server
from headrace.schemas.tasks import OwnedTask

SERVICE = pb.DESCRIPTOR.services_by_name["Generation"].full_name
_ALL = ("", SERVICE)
"""The names that health is asked of: the server as a whole, and the service."""

KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 15_000, 10_000
"""A client that is gone without a word is noticed within 25 s, and no proxy cuts an idle call."""

MIN_CLIENT_PING_MS = 5_000
"""Clients that ping more often than this are sent away."""

HEALTH_INTERVAL_S = 0.5


class GrpcServer:
    """The service on a port of its own, beside HTTP in the same process.

    `start` and `stop` frame its life; between them one task keeps health at what `readyz` says.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._service = GenerationService(gateway)
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[Doors(gateway.keys)],
            options=_options(gateway),
            maximum_concurrent_rpcs=MAX_IN_ALL,
        )
        self._watch = OwnedTask("grpc.health")

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Listen; returns the port, which was free if `port` is 0.

        Raises: OSError where the port is taken.
        """
        add_GenerationServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bound = self._bind(address, tls)
        await self._tell_health()
        await self._server.start()
        self._watch.start(self._watch_health())
        return bound

    async def stop(self) -> None:
        """No new calls; streams end with UNAVAILABLE, and the rest after a grace. Safe twice."""
        try:
            await self._watch.stop()
        finally:
            await self._health.enter_graceful_shutdown()
            self._service.end_all()
            await self._server.stop(SHUTDOWN_TIMEOUT_S)

    def _bind(self, address: str, tls: TlsFiles | None) -> int:
        try:
            if tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, _credentials(tls))
        except RuntimeError as problem:
            raise OSError(f"cannot listen on {address} for gRPC") from problem

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            await self._tell_health()

    async def _tell_health(self) -> None:
        statuses = health_pb2.HealthCheckResponse
        ready = self._gateway.log.ready
        for name in _ALL:
            await self._health.set(name, statuses.SERVING if ready else statuses.NOT_SERVING)


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Those of the files, as they are when a client connects."""
    used = tls.pair

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        if tls.pair is used:
            return None
        used = tls.pair
        return grpc.ssl_server_certificate_configuration([used])

    first = grpc.ssl_server_certificate_configuration([used])
    return grpc.dynamic_ssl_server_credentials(first, renewed)  # type: ignore[arg-type] # or None


def _options(gateway: Gateway) -> list[tuple[str, int]]:
    settings = gateway.settings
    return [
        ("grpc.so_reuseport", 0),  # two gateways on one port would share its calls in silence
        ("grpc.max_receive_message_length", settings.max_request_bytes + FRAME_OVERHEAD_BYTES),
        ("grpc.max_send_message_length", settings.max_response_bytes + FRAME_OVERHEAD_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # a burst beyond these, 1,000 as grpc has it, would end as CANCELLED, which tells nothing
        ("grpc.server.max_pending_requests", MAX_IN_ALL),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_IN_ALL),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    ]
