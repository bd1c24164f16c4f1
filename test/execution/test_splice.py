import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.retiming import MAX_STRETCH, plan_rows
from tr_vam_ros.execution.splice import fade_out, plan_splice
from tr_vam_ros.execution.timeline import SECOND, Timeline

V, A = yam.velocity_limits(), yam.acceleration_limits()
PERIOD = yam.ROW_PERIOD


def path(seed: int, seconds: np.ndarray, speed: float = 0.8) -> np.ndarray:
    """A smooth path (n, 14) through HOME at 0, up to `speed` rad/s; the grippers stand."""
    random = np.random.default_rng(seed)
    rate = random.uniform(0.5, 2.5, yam.DOF)
    phase = random.uniform(0, np.pi, yam.DOF)
    wave = np.sin(rate * seconds[:, None] + phase) - np.sin(phase)
    return yam.HOME + np.where(yam.GRIPPERS, 0.0, speed / rate * wave)


def running(seed: int, speed: float = 0.8) -> tuple[Timeline, int]:
    """A chunk of 50 rows under way, and the time of its row 30."""
    rows = path(seed, PERIOD * np.arange(1, 51), speed)
    motion = plan_rows(yam.HOME.copy(), rows, PERIOD, V, A)
    times = np.round(motion.times * SECOND).astype(np.int64)
    timeline = Timeline(
        np.concatenate([[0], times]),
        np.concatenate([yam.HOME[None], motion.positions]),
        np.concatenate([np.zeros((1, yam.DOF)), motion.velocities]),
    )
    return timeline, int(times[29])


def splice(seed: int, offset: float = 0.0, shift: float = 0.3, speed: float = 0.8):
    """The same path again, `shift` rows out of step and `offset` rad off."""
    old, from_ns = running(seed, speed)
    ahead = np.arange(1, 33) - shift
    rows = path(seed, PERIOD * (30 + ahead), speed) + np.where(yam.GRIPPERS, 0, offset)
    return old, from_ns, plan_splice(old, from_ns, 1.0, ahead, rows, PERIOD, V, A), rows


def curve(old: Timeline, from_ns: int, motion) -> Timeline:
    times = from_ns + np.round(motion.times * SECOND).astype(np.int64)
    return old.continued(from_ns, from_ns, times, motion.positions, motion.velocities)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(-0.1, 0.1), st.floats(0.0, 0.49))
def test_position_and_velocity_are_continuous_and_every_cap_is_kept(seed, offset, shift):
    old, from_ns, motion, _ = splice(seed, offset, shift)
    new = curve(old, from_ns, motion)
    for time_ns in (from_ns - 1, from_ns, from_ns + 1):
        for ours, theirs in zip(new.evaluate(time_ns), old.evaluate(time_ns)):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    velocity, acceleration = new.peaks()
    assert (velocity <= V * (1 + 1e-9)).all() and (acceleration <= A * (1 + 1e-9)).all()


def test_a_chunk_that_agrees_goes_on_along_the_same_path_at_the_same_pace():
    old, from_ns, motion, rows = splice(seed=3)
    np.testing.assert_allclose(motion.positions[:15], rows[:15], atol=1e-3)
    np.testing.assert_allclose(motion.times[:15], PERIOD * motion.passed[:15], atol=1e-9)
    assert motion.stretch == 1.0 and len(motion.times) == len(rows)
    np.testing.assert_array_equal(motion.velocities[-1], 0)


def test_a_chunk_that_disagrees_is_followed_exactly_after_nine_rows():
    _, _, motion, rows = splice(seed=3, offset=0.05)
    share = np.abs(motion.positions - rows)[:, 0] / 0.05
    assert share[0] > 0.95 and (np.diff(share[:9]) < 0).all()
    np.testing.assert_allclose(motion.positions[9:], rows[9:], atol=1e-12)


def test_a_disagreement_that_nine_rows_cannot_take_fades_longer_or_slower():
    short, long = (splice(seed=3, offset=offset, speed=1.3)[2] for offset in (0.01, 0.19))
    assert short.stretch == 1.0 and long.stretch <= MAX_STRETCH
    slower = long.stretch > 1.0
    longer = np.abs(long.positions[9] - splice(seed=3, offset=0.19, speed=1.3)[3][9]).max() > 1e-3
    assert slower or longer


def test_rows_that_stay_too_fast_end_the_motion_before_them():
    old, from_ns = running(seed=5)
    ahead = np.arange(1.0, 33.0)
    rows = path(5, PERIOD * (30 + ahead))
    rows[20:] += np.where(yam.GRIPPERS, 0, 0.5)
    motion = plan_splice(old, from_ns, 1.0, ahead, rows, PERIOD, V, A)
    assert 5 < len(motion.times) <= 20
    np.testing.assert_allclose(motion.positions[-1], rows[len(motion.times) - 1], atol=1e-9)


def test_too_few_rows_to_come_to_rest_on_are_refused():
    old, from_ns = running(seed=5)
    ahead = np.arange(1.0, 4.0)
    rows = path(5, PERIOD * (30 + ahead))
    with pytest.raises(InputError, match='too few to come to rest'):
        plan_splice(old, from_ns, 1.0, ahead, rows, PERIOD, V, A)


def test_the_fade_begins_and_ends_without_speed_and_acceleration():
    u = np.linspace(-0.2, 1.2, 14001)
    value = fade_out(u)
    assert value[0] == 1.0 and value[-1] == 0.0 and (np.diff(value) <= 0).all()
    slope = np.gradient(value, u)
    for edge in (0.0, 1.0):
        near = np.abs(u - edge) < 2e-4
        assert np.abs(slope[near]).max() < 1e-4
        assert np.abs(np.gradient(slope, u)[near]).max() < 2e-2
