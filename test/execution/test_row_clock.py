import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tr_vam_ros.execution.row_clock import RowClock
from tr_vam_ros.execution.timeline import SECOND

PERIOD = 1 / 30


def running(start_ns: int, count: int = 50) -> RowClock:
    clock = RowClock(0)
    rows = np.arange(1, count + 1)
    clock.continue_from(start_ns, start_ns + np.round(rows * PERIOD * SECOND).astype(np.int64), rows)
    return clock


def test_it_stands_while_the_arms_stand():
    clock = running(SECOND)
    assert clock.at(0) == clock.at(SECOND) == 0
    assert clock.at(10 * SECOND) == 50
    assert clock.speed(SECOND // 2, PERIOD) == clock.speed(5 * SECOND, PERIOD) == 0


@given(st.floats(0.1, 1.5))
def test_at_the_policys_own_pace_a_row_passes_each_period(seconds):
    clock = running(SECOND)
    time_ns = SECOND + int(seconds * SECOND)
    assert clock.at(time_ns) == pytest.approx(seconds / PERIOD, abs=1e-5)
    assert clock.when(seconds / PERIOD) == pytest.approx(time_ns, abs=100)
    assert clock.speed(time_ns, PERIOD) == pytest.approx(1.0, abs=1e-6)


def test_what_was_planned_after_a_hand_over_is_replaced_what_was_before_stays():
    clock = running(0)
    at = 20.5 * PERIOD * SECOND
    clock.continue_from(int(at), np.array([int(at) + SECOND]), np.array([3.0]))
    assert clock.at(int(at)) == pytest.approx(20.5, abs=1e-5)
    assert clock.at(int(at / 2)) == pytest.approx(10.25, abs=1e-5)
    assert clock.at(int(at) + SECOND // 2) == pytest.approx(22.0, abs=1e-5)
    assert clock.at(100 * SECOND) == pytest.approx(23.5, abs=1e-5)
    assert clock.speed(int(at) + SECOND // 2, PERIOD) == pytest.approx(0.1, abs=1e-5)


def test_a_row_that_is_never_executed_is_due_when_the_clock_ends():
    assert running(SECOND).when(80.0) == SECOND + round(50 * PERIOD * SECOND)


def test_a_day_of_chunks_keeps_a_minute_of_memory():
    clock, now = RowClock(0), 0
    for _ in range(3000):
        times = now + np.round(np.arange(1, 51) * PERIOD * SECOND).astype(np.int64)
        clock.continue_from(now, times, np.arange(1.0, 51.0))
        now = int(times[29])
    assert clock.at(now) == pytest.approx(30 * 3000, abs=1e-3)
    assert clock.at(now - 10 * SECOND) == pytest.approx(30 * 3000 - 300, abs=1e-3)
    assert len(clock._times) < 2500
