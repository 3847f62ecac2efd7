"""The cost gate: fetch what is cheaper to fetch, by what was measured."""

import pytest

from headrace.models.kv.gate import PROBE_INTERVAL_S, CostGate, ProbeTimer

SMALL_FP32 = 46_080  # bytes a token
LARGE_FP16 = 131_072


@pytest.mark.parametrize(
    ("prefill_tokens_per_s", "bandwidth_bytes_per_s", "bytes_per_token", "expected"),
    [
        (1_500, 1e9, SMALL_FP32, True),
        (5_000, 1e9, SMALL_FP32, True),
        (1_500, 30e6, SMALL_FP32, False),
        (20_000, 1.25e9, LARGE_FP16, False),
        (20_000, 12e9, LARGE_FP16, True),
    ],
    ids=["CPU", "fast CPU", "CPU, slow network", "H100, 10 Gbit/s", "H100, 100 Gbit/s"],
)
def test_fetching_pays_where_the_network_beats_the_device(
    prefill_tokens_per_s: float,
    bandwidth_bytes_per_s: float,
    bytes_per_token: int,
    expected: bool,
) -> None:
    """1,000 tokens: SmolLM2-135M in float32, an 8B model in float16."""
    gate = CostGate(
        prefill_tokens_per_s=prefill_tokens_per_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s
    )
    assert expected == gate.pays(1_000, 1_000 * bytes_per_token)


def test_the_latency_decides_for_short_prompts() -> None:
    """A round trip of 50 ms is not worth 32 tokens."""
    gate = CostGate(prefill_tokens_per_s=1_500, latency_s=0.05)
    assert not gate.pays(32, 32 * SMALL_FP32)
    assert gate.pays(1_000, 1_000 * SMALL_FP32)


def test_the_first_measurement_replaces_the_start_value() -> None:
    """A start value that is far off must not decide for long."""
    gate = CostGate()
    gate.prefilled(1_000, 1_000 / 20_000)
    assert not gate.pays(1_000, 1_000 * LARGE_FP16)


def test_a_slow_network_closes_the_gate_and_a_fast_one_opens_it() -> None:
    """One sample of a fast network is enough: a probe comes seldom."""
    gate = CostGate(prefill_tokens_per_s=1_500)
    for _ in range(10):
        gate.moved(1_474_560, 0.5)
    assert not gate.pays(1_000, 1_000 * SMALL_FP32)
    gate.moved(1_474_560, 0.0015)
    assert gate.pays(1_000, 1_000 * SMALL_FP32)


def test_a_cold_prompt_measures_the_latency() -> None:
    """No block came: the time is the round trip's."""
    gate = CostGate(prefill_tokens_per_s=1_500)
    gate.moved(0, 0.2)
    assert not gate.pays(128, 128 * SMALL_FP32)


def test_small_samples_do_not_count() -> None:
    """A prompt of 5 tokens measures the step, a block of 4 KB the round trip."""
    gate = CostGate()
    assert gate.pays(1_000, 1_000 * SMALL_FP32)
    gate.prefilled(5, 0.000_001)
    gate.moved(4_096, 10.0)
    gate.moved(10**9, 0.0)
    assert gate.pays(1_000, 1_000 * SMALL_FP32)


def test_a_probe_is_due_at_once_and_then_now_and_then() -> None:
    """So a gate that said no can say yes again."""
    probe = ProbeTimer()
    times_s = [100.0, 100.1, 100 + PROBE_INTERVAL_S - 1, 100 + PROBE_INTERVAL_S, 131.0]
    assert [probe.take(now_s) for now_s in times_s] == [True, False, False, True, False]
