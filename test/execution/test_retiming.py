import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.retiming import (
    MAX_STRETCH,
    TAIL,
    plan_brake,
    plan_ramp,
    plan_rows,
    profile,
)
from tr_vam_ros.execution.timeline import segment_peaks

V, A = yam.velocity_limits(), yam.acceleration_limits()


def speed_profile(time: float, duration: float) -> float:
    """Architecture, "Row timing": 0 to 1 over the first 0.3 s and 1 to 0 over the last."""
    return min(1.0, time / TAIL, max(0.0, (duration - time) / TAIL))


def from_rest(count: int) -> tuple[np.ndarray, np.ndarray]:
    along = np.arange(1, count + 1) * yam.ROW_PERIOD
    return profile(along, along[-1], 0.0, 1.0)


def test_thirty_rows_take_1_3_seconds():
    times, speeds = from_rest(30)
    assert times[-1] == pytest.approx(1.3)
    assert speeds[-1] == 0


@pytest.mark.parametrize('count', [1, 3, 9, 10, 30, 50])
def test_rows_are_reached_when_the_speed_profile_says(count):
    times, speeds = from_rest(count)
    duration = times[-1]
    solution = solve_ivp(
        lambda t, s: [speed_profile(t, duration)], (0, duration), [0.0], t_eval=times,
        max_step=1e-3, rtol=1e-9,
    )
    np.testing.assert_allclose(
        solution.y[0], np.arange(1, count + 1) * yam.ROW_PERIOD, atol=2e-6
    )
    np.testing.assert_allclose(speeds, [speed_profile(t, duration) for t in times], atol=1e-9)


def smooth_rows(amplitude: float) -> tuple[np.ndarray, np.ndarray]:
    time = np.arange(0, 31) * yam.ROW_PERIOD
    path = yam.HOME + amplitude * (1 - np.cos(np.pi * time / 2))[:, None] * ~yam.GRIPPERS
    return path[0], path[1:]


def test_a_gentle_chunk_keeps_its_own_timing_and_every_row():
    start, rows = smooth_rows(0.3)
    motion = plan_rows(start, rows, yam.ROW_PERIOD, V, A)
    assert (motion.stretch, motion.rows) == (1.0, 30)
    assert motion.duration == pytest.approx(1.3)
    np.testing.assert_array_equal(motion.positions, rows)
    np.testing.assert_array_equal(motion.velocities[-1], 0)


def test_a_fast_chunk_is_slowed_down_until_it_keeps_the_velocity_cap():
    start, rows = smooth_rows(1.2)  # up to 1.9 rad/s
    motion = plan_rows(start, rows, yam.ROW_PERIOD, V, A)
    assert 1.0 < motion.stretch <= MAX_STRETCH and motion.rows == 30
    np.testing.assert_array_equal(motion.positions, rows)


def test_a_chunk_that_twice_the_time_does_not_save_is_cut_short():
    start, rows = smooth_rows(0.3)
    rows[12] += np.where(yam.GRIPPERS, 0, 0.4)
    motion = plan_rows(start, rows, yam.ROW_PERIOD, V, A)
    assert 0 < motion.rows < 13
    np.testing.assert_array_equal(motion.positions, rows[: motion.rows])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.0001, 0.3), st.integers(1, 30))
def test_no_motion_ever_exceeds_a_cap(seed, size, count):
    random = np.random.default_rng(seed)
    rows = yam.HOME + size * random.normal(size=(count, yam.DOF))
    motion = plan_rows(yam.HOME.copy(), rows, yam.ROW_PERIOD, V, A)
    times = np.concatenate([[0], motion.times])
    path = np.concatenate([yam.HOME[None], motion.positions])
    rates = np.concatenate([np.zeros((1, yam.DOF)), motion.velocities])
    velocity, acceleration = segment_peaks(np.diff(times), path, rates)
    assert (velocity <= V * (1 + 1e-9)).all()
    assert (acceleration <= A * (1 + 1e-9)).all()


def test_a_ramp_takes_at_least_its_shortest_time_and_keeps_the_caps():
    goal = yam.HOME + np.where(yam.GRIPPERS, 0, 1.5)
    short = plan_ramp(yam.HOME, yam.HOME + 0.001, 1.0, V, A)
    long = plan_ramp(yam.HOME, goal, 1.0, V, A)
    assert short.duration == 1.0
    assert long.duration == pytest.approx(1.5 * 1.5 / yam.MAX_JOINT_VELOCITY)


@given(st.floats(0.05, 1.5))
def test_braking_takes_the_speed_over_the_acceleration_cap(speed):
    velocity = np.where(yam.GRIPPERS, 0, speed)
    brake = plan_brake(yam.HOME, velocity, A)
    assert brake.duration == pytest.approx(speed / yam.MAX_JOINT_ACCELERATION)
    travel = (brake.positions[0] - yam.HOME)[0]
    assert travel == pytest.approx(speed**2 / (2 * yam.MAX_JOINT_ACCELERATION))
    _, acceleration = segment_peaks(
        np.array([brake.duration]),
        np.stack([yam.HOME, brake.positions[0]]),
        np.stack([velocity, np.zeros(yam.DOF)]),
    )
    assert (acceleration <= A * (1 + 1e-6)).all()


def test_braking_at_rest_is_a_hold_of_a_tenth_of_a_second():
    brake = plan_brake(yam.HOME, np.zeros(yam.DOF), A)
    assert brake.duration == pytest.approx(0.1)
    np.testing.assert_array_equal(brake.positions[0], yam.HOME)
