"""How the gateway's application is served: uvicorn with the limits that its behaviour rests on."""

from typing import Any

import uvicorn
from starlette.applications import Starlette

from headrace.consumers.http_protocol import HttpProtocol
from headrace.consumers.socket_protocol import SocketProtocol
from headrace.consumers.tls import TlsFiles
from headrace.schemas.settings import Settings

PING_INTERVAL_S = 20.0
"""Below the 30 s after which some proxies cut an idle WebSocket (cases I6)."""

SHUTDOWN_TIMEOUT_S = 5
"""For streams to end when the gateway stops: their clients resume elsewhere."""

FRAME_OVERHEAD_BYTES = 65_536
"""A frame over the request limit is answered with an error; one over this too closes the socket."""


def build_server(
    app: Starlette, settings: Settings, *, tls: TlsFiles | None = None, **options: Any
) -> uvicorn.Server:
    """A server on `http_host`:`http_port`; `options` override those of `uvicorn.Config`.

    The caller awaits `serve()` in a task of its own and sets `should_exit` to end it.
    """
    config: dict[str, Any] = {
        "host": settings.http_host,
        "port": settings.http_port,
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "http": HttpProtocol,
        "ws": SocketProtocol,
        "ws_ping_interval": PING_INTERVAL_S,
        "ws_ping_timeout": PING_INTERVAL_S,
        "ws_max_size": settings.max_request_bytes + FRAME_OVERHEAD_BYTES,
        "ws_per_message_deflate": False,  # 300 KB and a deflate call per socket and token
        "timeout_graceful_shutdown": SHUTDOWN_TIMEOUT_S,
    }
    if tls is not None:
        config["ssl_context_factory"] = lambda _config, _default: tls.context
    return uvicorn.Server(uvicorn.Config(app, **(config | options)))
