"""The gateway's own Prometheus metrics. Label values are fixed lists; no ids, no client text."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from headrace.consumers.lag_metrics import LagMetrics
from headrace.consumers.lag_watch import LagWatch
from headrace.schemas.metrics import PREFIX

GRPC_METHODS = ("Stream", "Cancel")
LIMITS = ("requests", "tokens", "open")
EVENT_WAYS = ("openai", "sse", "websocket", "grpc")

SLOW_REASONS = ("behind", "stalled", "silent")
"""Too much waited for the client; it took nothing; it left a ping unanswered."""

CLOSE_REASONS = ("client", "shutdown", "revoked", *SLOW_REASONS)
"""Why WebSockets were closed."""

ROUTES = {
    "/v1/chat/completions": "chat_completions",
    "/v1/completions": "completions",
    "/v1/models": "models",
    "/openapi.json": "documents",
    "/healthz": "health",
    "/readyz": "health",
    "/metrics": "metrics",
    "/": "page",
}


def route_of(path: str) -> str:
    """The label of a path: one of a dozen, whatever clients ask for."""
    if path.startswith("/v1/requests/"):
        return {"events": "request_events", "cancel": "request_cancel"}.get(
            path.rsplit("/", 1)[-1], "other"
        )
    if path.startswith("/v1/models/"):
        return "models"
    if path.startswith("/v1/sessions/"):
        return "sessions"
    return "page" if path.startswith("/page/") else ROUTES.get(path, "other")


def close_reason(code: int) -> str:
    """The reason behind a close code that reached us before we closed the socket ourselves."""
    return {1008: "revoked", 1012: "shutdown", 1013: "silent"}.get(code, "client")


class GatewayMetrics:
    """Counters and gauges of one gateway, in the registry that is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # a second series for each counter, which nobody asks for
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self.http_requests = Counter(
            f"{PREFIX}gateway_http_requests",
            "HTTP requests answered",
            ["route", "status"],
            registry=registry,
        )
        self.open_generations = Gauge(
            f"{PREFIX}gateway_open_generations",
            "generations that HTTP calls wait for",
            registry=registry,
        )
        self.sockets = Gauge(
            f"{PREFIX}gateway_websockets", "WebSockets open now", registry=registry
        )
        self.events_sent = Counter(
            f"{PREFIX}gateway_events_sent",
            "events handed to clients",
            ["way"],
            registry=registry,
        )
        for way in EVENT_WAYS:
            self.events_sent.labels(way)
        self.grpc_calls = Counter(
            f"{PREFIX}gateway_grpc_calls",
            "gRPC calls that are over",
            ["method", "code"],
            registry=registry,
        )
        for method in GRPC_METHODS:
            self.grpc_calls.labels(method, "OK")
        self.rate_limited = Counter(
            f"{PREFIX}gateway_rate_limited",
            "calls and sockets refused for now, by the limit that was reached",
            ["limit"],
            registry=registry,
        )
        for limit in LIMITS:
            self.rate_limited.labels(limit)
        self.key_readings = Counter(
            f"{PREFIX}gateway_key_readings",
            "readings of the API keys file that changed the keys, or found it broken",
            ["result"],
            registry=registry,
        )
        for result in ("changed", "failed"):
            self.key_readings.labels(result)
        self.slow_readers = Counter(
            f"{PREFIX}gateway_slow_readers",
            "clients let go because they fell behind",
            registry=registry,
        )
        self.sockets_closed = Counter(
            f"{PREFIX}gateway_websockets_closed",
            "WebSockets that ended",
            ["reason"],
            registry=registry,
        )
        for reason in CLOSE_REASONS:
            self.sockets_closed.labels(reason)
        self.abandoned = Counter(
            f"{PREFIX}gateway_abandoned",
            "generations cancelled because their client left",
            registry=registry,
        )

    def watch_lag(self, watch: LagWatch) -> None:
        """Show the last reading of the lag when scraped."""
        LagMetrics(self.registry, watch)

    def watch_log(
        self, num_subscriptions: Callable[[], float], num_broken: Callable[[], float]
    ) -> None:
        """Read the log's own counts when scraped."""
        Gauge(
            f"{PREFIX}gateway_subscriptions", "readers of the log", registry=self.registry
        ).set_function(num_subscriptions)
        Gauge(
            f"{PREFIX}gateway_broken_events",
            "records of the responses topic that hold no event, since the start",
            registry=self.registry,
        ).set_function(num_broken)

    def watch_past(
        self, num_readers: Callable[[], float], recent_seconds: Callable[[], float]
    ) -> None:
        """Read the figures of the log's past when scraped."""
        Gauge(
            f"{PREFIX}gateway_past_readers",
            "readers for whom the past is read from Kafka",
            registry=self.registry,
        ).set_function(num_readers)
        Gauge(
            f"{PREFIX}gateway_recent_log_seconds",
            "how far back the log in memory reaches, in the partition where that is least",
            registry=self.registry,
        ).set_function(recent_seconds)
