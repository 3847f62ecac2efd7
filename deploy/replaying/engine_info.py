"""What answers now: model, number format and batch size, as the workers of a replay tell them.

Knows the metric that says it, and nothing of what is done with it.
"""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from headrace.deploy.http_get import get_text
from headrace.schemas.metrics import PREFIX
from headrace.schemas.settings import Settings

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the workers of a replay run."""

    model: str
    dtype: str
    max_batch_size: int

    def __str__(self) -> str:
        return f"{self.model} {self.dtype} batch {self.max_batch_size}"


def read_engine_info(settings: Settings, port: int) -> EngineInfo:
    """What the worker with this metrics port runs; where it does not say so, what it was told to.

    Blocks for at most TIMEOUT_S for each part of the answer: for a thread.
    """
    labels = _build_labels(port)
    return EngineInfo(
        labels.get("model", settings.model),
        labels.get("dtype", settings.dtype),
        settings.max_batch_size,
    )


def build_labels(text: str) -> dict[str, str]:
    """Those of `headrace_build_info`. Raises: ValueError for text that is no exposition."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{PREFIX}build_info":
                return dict(sample.labels)
    return {}


def _build_labels(port: int) -> dict[str, str]:
    text = get_text("127.0.0.1", port, "/metrics", timeout_s=TIMEOUT_S)
    try:
        return build_labels(text or "")
    except ValueError:
        return {}  # the settings say it then
