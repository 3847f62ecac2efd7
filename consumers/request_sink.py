"""What the gateway needs of whoever writes requests to Kafka; implemented in
`headrace.producers`.
"""

from collections.abc import Sequence
from typing import Any, Protocol


class RequestSink(Protocol):
    """Writes request and control records. The caller of `build_app` starts and stops it."""

    async def submit(
        self,
        body: dict[str, Any],
        *,
        tenant: str,
        session_id: str,
        trace: Sequence[tuple[str, bytes]],
    ) -> object:
        """Write a request; returns once the brokers have it. What it returns does not matter.

        Raises: UnavailableError, then it may or may not be written (the same request id may be sent
            again).
        """

    async def cancel(self, request_id: str, *, session_id: str, tenant: str) -> object:
        """Write a cancel; returns once the brokers have it. Raises: UnavailableError."""

    async def delete_session(self, session_id: str, *, tenant: str) -> object:
        """Have a conversation forgotten; returns once the brokers have the record.

        Raises: UnavailableError.
        """
