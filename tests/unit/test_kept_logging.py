"""What a command does to logging ends with its test."""

import logging

import pytest
import structlog

from headrace.deploy.logging import set_up_logging
from headrace.schemas.settings import Settings
from tests.kept_logging import kept_logging

LOG = structlog.get_logger("tests.kept_logging")


def test_a_command_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    """Neither its levels nor its handlers, nor its structlog in loggers used meanwhile."""
    with kept_logging():
        set_up_logging(Settings(), errors_only=True)
        assert logging.getLogger("uvicorn").level == logging.CRITICAL
        LOG.warning("goes to stderr")
    assert logging.getLogger("uvicorn").level == logging.NOTSET
    logging.getLogger("uvicorn.error").error("is seen")
    assert "is seen" in caplog.text
    with structlog.testing.capture_logs() as found:
        LOG.warning("is captured")
    assert [line["event"] for line in found] == ["is captured"]
