"""The speed of a worker, from counters."""

import pytest

from headrace.deploy.autoscale.speed import GUESS_TOK_S, Counters, SpeedMeter

FULL = 16


def run(meter: SpeedMeter, speeds: list[float], *, rows: float, seconds: int = 60) -> None:
    """Workers that generate at these speeds for a while, read each second."""
    for second in range(seconds + 1):
        meter.see(
            float(second),
            {name: Counters(speed * second, 0.0, rows) for name, speed in enumerate(speeds)},
        )


def test_a_guess_until_something_was_measured() -> None:
    """Workers that have nothing to do say nothing about their speed."""
    meter = SpeedMeter(FULL)
    run(meter, [0.0, 0.0], rows=0)
    assert (meter.speed_tok_s, meter.is_measured) == (GUESS_TOK_S, False)


def test_the_total_divided_by_the_busy() -> None:
    """Of three workers one is idle; the rate is that of all together."""
    meter = SpeedMeter(FULL)
    for second in range(61):
        busy = {
            name: Counters(s * second, 0.0, FULL) for name, s in {"a": 500.0, "b": 300.0}.items()
        }
        meter.see(float(second), {**busy, "idle": Counters(0.0, 0.0, 0.0)})
    assert meter.speed_tok_s == pytest.approx(400.0)
    assert meter.rate_tok_s == pytest.approx(800.0)


def test_few_rows_are_not_held_against_a_worker() -> None:
    """One row of sixteen at 50 tokens a second: a full batch would do four times as much."""
    meter = SpeedMeter(FULL)
    run(meter, [50.0], rows=1)
    assert meter.speed_tok_s == pytest.approx(200.0)


def test_a_speed_that_falls_is_followed() -> None:
    """A second worker takes half of the cores: each of them is half as fast."""
    meter = SpeedMeter(FULL)
    run(meter, [600.0], rows=FULL)
    for second in range(61, 181):
        tokens = 600.0 * 60 + 300.0 * (second - 60)
        more = {0: Counters(tokens, 0.0, FULL), 1: Counters(300.0 * (second - 60), 0.0, FULL)}
        meter.see(float(second), more)
    assert meter.speed_tok_s == pytest.approx(300.0, rel=0.01)


def test_prompts_count_less_what_was_found_of_them() -> None:
    """Found tokens are counted before their prompts: never less than nothing."""
    meter = SpeedMeter(FULL)
    for second in range(61):
        meter.see(float(second), {"a": Counters(100.0 * second, 50.0 * second, FULL)})
    assert meter.speed_tok_s == pytest.approx(150.0)
    meter = SpeedMeter(FULL)
    for second in range(61):
        meter.see(float(second), {"a": Counters(100.0 * second, -900.0 * second, FULL)})
    assert meter.speed_tok_s == pytest.approx(100.0)


def test_a_process_that_is_new_starts_from_its_own_counters() -> None:
    """Its predecessor's tokens are neither taken back nor counted again."""
    meter = SpeedMeter(FULL)
    run(meter, [400.0], rows=FULL)
    meter.see(61.0, {"next": Counters(0.0, 0.0, FULL)})
    meter.see(62.0, {"next": Counters(400.0, 0.0, FULL)})
    assert meter.speed_tok_s == pytest.approx(400.0)
