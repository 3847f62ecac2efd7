"""A worker's counters, read from its `/metrics`."""

from prometheus_client.parser import text_string_to_metric_families

from headrace.deploy.autoscale.speed import Counters
from headrace.deploy.http_get import get_text
from headrace.schemas.metrics import PREFIX

TIMEOUT_S = 1.0


def read_counters(host: str, port: int) -> Counters | None:
    """What the worker says now; None where it does not answer in time.

    Blocks for at most TIMEOUT_S for each part of the answer: for a thread.
    """
    text = get_text(host, port, "/metrics", timeout_s=TIMEOUT_S)
    try:
        return None if text is None else counters_in(text)
    except ValueError:
        return None


def counters_in(text: str) -> Counters:
    """The sums over all label values. Raises: ValueError for text that is no exposition."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value

    def of(name: str) -> float:
        return sums.get(PREFIX + name, 0.0)

    return Counters(
        generated=of("generation_tokens_total"),
        computed=of("prompt_tokens_total") - of("prefix_cache_hits_total"),
        rows=of("num_requests_running"),
        waiting=of("num_requests_waiting"),
    )
