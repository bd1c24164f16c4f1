import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicHermiteSpline

from tr_vam_ros.execution.timeline import ELAPSED_NS, SECOND, Timeline, segment_peaks


def wavy(seed: int = 0, knots: int = 8) -> Timeline:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.integers(20_000_000, 150_000_000, knots)).astype(np.int64) + SECOND
    positions = random.normal(size=(knots, 3))
    velocities = random.normal(size=(knots, 3))
    velocities[0] = velocities[-1] = 0
    return Timeline(times, positions, velocities)


def spline_of(timeline: Timeline) -> CubicHermiteSpline:
    return CubicHermiteSpline(timeline.times / SECOND, timeline.positions, timeline.velocities)


@given(st.integers(0, 50), st.floats(0, 1))
def test_it_is_the_cubic_hermite_spline_through_its_knots(seed, where):
    timeline = wavy(seed)
    time_ns = int(timeline.times[0] + where * (timeline.end_ns - timeline.times[0]))
    position, velocity = timeline.evaluate(time_ns)
    spline = spline_of(timeline)
    np.testing.assert_allclose(position, spline(time_ns / SECOND), atol=1e-6)
    np.testing.assert_allclose(velocity, spline(time_ns / SECOND, 1), atol=1e-4)


def test_it_stands_still_before_the_first_and_after_the_last_knot():
    timeline = wavy()
    for time_ns, knot in ((0, 0), (timeline.end_ns + SECOND, -1)):
        position, velocity = timeline.evaluate(time_ns)
        np.testing.assert_array_equal(position, timeline.positions[knot])
        np.testing.assert_array_equal(velocity, 0)


@given(st.integers(0, 30), st.floats(-0.5, 1.5), st.floats(-0.1, 0.5))
def test_continuing_it_changes_nothing_that_came_before(seed, where, ahead):
    timeline = wavy(seed)
    span = timeline.end_ns - int(timeline.times[0])
    from_ns = int(timeline.times[0] + where * span)
    now_ns = from_ns - int(ahead * SECOND)
    new = timeline.continued(
        now_ns, from_ns, np.array([from_ns + SECOND]), np.ones((1, 3)), np.zeros((1, 3))
    )
    oldest_ns = min(now_ns, from_ns) - ELAPSED_NS
    assert new.times[0] <= oldest_ns
    np.testing.assert_array_equal(new.final_position, 1)
    for time_ns in np.linspace(oldest_ns, from_ns, 9).astype(int):
        for got, wanted in zip(new.evaluate(time_ns), timeline.evaluate(time_ns)):
            np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_a_curve_that_does_not_end_at_rest_is_refused():
    with pytest.raises(ValueError, match='at rest'):
        Timeline(np.array([0, 1]), np.zeros((2, 3)), np.ones((2, 3)))


def test_knots_must_follow_each_other():
    with pytest.raises(ValueError, match='increasing'):
        Timeline(np.array([5, 5]), np.zeros((2, 3)), np.zeros((2, 3)))


@given(st.integers(0, 50))
def test_peaks_are_those_of_a_dense_sampling(seed):
    timeline = wavy(seed)
    velocity, acceleration = timeline.peaks()
    spline = spline_of(timeline)
    dense = np.concatenate(
        [np.linspace(a, b, 400) for a, b in zip(timeline.times[:-1], timeline.times[1:])]
    )
    sampled = np.abs(spline(dense / SECOND, 1)).max(axis=0)
    assert (velocity >= sampled - 1e-6).all()
    np.testing.assert_allclose(velocity, sampled, rtol=2e-3)
    sampled = np.abs(spline(dense / SECOND, 2)).max(axis=0)
    np.testing.assert_allclose(acceleration, sampled, rtol=2e-2)


def test_a_single_knot_has_no_peaks():
    velocity, acceleration = segment_peaks(np.zeros(0), np.zeros((1, 3)), np.zeros((1, 3)))
    assert not velocity.any() and not acceleration.any()
