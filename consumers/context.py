"""What every way into the gateway shares: settings, log, sink, keys, admission, bounds, metrics."""

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from headrace.consumers.admission import Admission
from headrace.consumers.api_keys import ApiKeys
from headrace.consumers.auth import bearer
from headrace.consumers.gateway_metrics import GatewayMetrics
from headrace.consumers.origins import check_caller
from headrace.consumers.request_sink import RequestSink
from headrace.consumers.response_log import ResponseLog
from headrace.schemas.settings import Settings


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long the gateway waits, and how much it holds. Tests shorten them."""

    heartbeat_s: float = 15.0
    """Half of the shortest idle timeout that proxies are known to have (30 s)."""

    no_progress_s: float = 120.0
    """Without an event for this long an HTTP call ends: twice what a full queue takes in
    practice.
    """

    send_s: float = 10.0
    """For a client to take what was sent; then it is a slow reader."""

    sink_s: float = 15.0
    """For Kafka to take a request: longer than a leader election."""

    max_open: int = 1_000
    """Generations that one gateway follows for HTTP calls at once; more are `rate_limited`. With
    API keys one tenant has half of them at most.
    """

    max_sockets: int = 20_000
    """WebSockets of one gateway at once, well below 64 Ki file handles; of these, too, one tenant
    has half at most.
    """

    max_feeds: int = 100
    """Subscriptions and generations of one socket at once."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of one gateway process."""

    settings: Settings
    log: ResponseLog
    sink: RequestSink
    keys: ApiKeys
    metrics: GatewayMetrics
    bounds: Bounds
    admission: Admission

    def check_page(self, connection: HTTPConnection) -> None:
        """Refuse foreign browser pages. Raises: RequestError `unauthorized`."""
        headers = connection.headers
        check_caller(
            headers.get("origin"),
            headers.get("host"),
            keyless=self.keys.keyless,
            allowed=self.settings.origins,
        )

    def tenant_of(self, connection: HTTPConnection) -> str:
        """The caller's tenant. Raises: RequestError `unauthorized`."""
        self.check_page(connection)
        return self.keys.tenant_of(bearer(connection.headers.get("authorization")))
