"""From repetitions to figures, limits and tables."""

import pytest

from benchmarks.bench_memory import Reading, growth_mb
from benchmarks.lib.child import Run
from benchmarks.lib.cpu_time import busy_ticks, process_ticks
from benchmarks.lib.figures import best_of_phases, figures, percentile
from benchmarks.lib.linear_steps import LinearStep, decode_steps, model_shapes, prefill_steps
from benchmarks.lib.process import Repetition
from benchmarks.lib.report import format_table, number


def repetition(wall_s: float, *, others_s: float = 0.0) -> Repetition:
    run = Run(wall_s, 100, [[0.1, 0.2, 0.4], [0.3, 0.4, 0.5]])
    return Repetition(run, wall_s, others_s)


def test_disturbed_repetitions_do_not_count() -> None:
    """The best figure is not one that came about while others computed, or were starved."""
    found = figures([repetition(1.0), repetition(0.5, others_s=9.0), repetition(2.0)])
    assert (found.tok_s_best, found.tok_s_median) == (100.0, 75.0)
    assert (found.repetitions, found.repetitions_dropped, found.disturbed) == (2, 1, False)


def test_figures_of_disturbed_repetitions_say_so() -> None:
    """Where no repetition was left alone there are figures all the same, and they are marked."""
    found = figures([repetition(1.0, others_s=9.0)])
    assert (found.tok_s_best, found.disturbed) == (100.0, True)


def test_latencies_are_of_requests_and_of_gaps() -> None:
    """The first token's median is over the requests, the gaps are between tokens of one request."""
    found = figures([repetition(1.0)])
    assert found.first_token_ms == pytest.approx(200)
    assert found.between_tokens_ms_p50 == pytest.approx(100)
    assert found.between_tokens_ms_p99 == pytest.approx(200)


def test_engines_that_say_no_times_have_no_latencies() -> None:
    """No made-up zeros."""
    found = figures([Repetition(Run(1.0, 64), 1.0, 0.0)])
    assert found.first_token_ms is None
    assert found.between_tokens_ms_p99 is None


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (50, 2.0), (51, 3.0), (75, 3.0), (99, 4.0), (100, 4.0)]
)
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    """The smallest value that is not below so many percent of all."""
    assert value == percentile([4.0, 2.0, 1.0, 3.0], percent)


def test_a_percentile_of_nothing_is_an_error() -> None:
    """There is no such value."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_the_kinds_of_the_limit_are_of_their_best_phases() -> None:
    """Prefill and decode may have been best in different repetitions."""
    details = [
        {
            "plain_prefill_s": 1.0,
            "plain_decode_s": 3.0,
            "packed_prefill_s": 4.0,
            "packed_decode_s": 1.0,
        },
        {
            "plain_prefill_s": 2.0,
            "plain_decode_s": 1.0,
            "packed_prefill_s": 1.0,
            "packed_decode_s": 3.0,
        },
    ]
    runs = [Run(1.0, 64, detail=detail) for detail in details]
    found = best_of_phases([Repetition(run, 1.0, 0.0) for run in runs], 64)
    assert found == {"plain": 32.0, "packed": 32.0}


def test_prefill_steps_cut_the_prompts_at_the_budget() -> None:
    """All rows are computed once, and each prompt's logits where its last token is."""
    assert [LinearStep(100, 2), LinearStep(35, 1)] == prefill_steps(3, 45, 100)
    assert [LinearStep(45, 1)] == prefill_steps(1, 45, 512)
    steps = prefill_steps(64, 45, 512)
    assert (sum(s.rows for s in steps), sum(s.logits_rows for s in steps)) == (64 * 45, 64)
    assert [step.rows for step in steps] == [512] * 5 + [320]


def test_the_first_token_comes_from_the_prefill() -> None:
    """64 new tokens need 63 decode steps."""
    assert [LinearStep(8, 8)] * 63 == decode_steps(8, 64)


def test_shapes_have_all_weights_of_the_model() -> None:
    """SmolLM2-135M's matrices sum up to its parameters, norms and embedding apart."""
    shapes = model_shapes(
        hidden=576,
        intermediate=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab=49_152,
    )
    layer = sum(one.out_features * one.in_features for one in shapes.layer)
    norms = 61 * 576
    tied_head = shapes.head.out_features * shapes.head.in_features
    assert 30 * layer + tied_head + norms == 134_515_008


def test_others_are_all_but_idle() -> None:
    """Idle and waiting for the disk is not work; stolen time is; guests are in user time."""
    stat = "cpu  100 10 20 5000 300 1 2 7 50 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert busy_ticks(stat) == 140


def test_a_process_name_may_hold_anything() -> None:
    """Brackets and spaces in a name do not shift the fields."""
    fields = "S 17 1 1 0 -1 4 0 0 0 0 11 22 33 44 20 0"
    assert process_ticks(f"42 (a) b (c)) {fields}") == (17, 110)


def test_tables_are_markdown_with_aligned_columns() -> None:
    """The first column to the left, figures to the right."""
    expected = """\
| engine   |  1 |    64 |
| -------- | -: | ----: |
| headrace | 60 | 1,234 |
| x        |  - |     7 |"""
    rows = [["headrace", "60", number(1234.4)], ["x", number(None), number(7.0)]]
    assert expected == format_table(["engine", "1", "64"], rows)


def test_growth_is_counted_after_the_warm_up() -> None:
    """What the first fifth of the requests adds is caches that fill, not growth."""
    sizes = {0: 100.0, 200: 150.0, 400: 160.0, 1000: 162.0, 2000: 161.0}
    assert growth_mb([Reading(n, size, 0.0) for n, size in sizes.items()]) == 1.0
