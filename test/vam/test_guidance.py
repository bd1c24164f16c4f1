import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import GuidanceConfig
from tr_vam_ros.vam.guidance import (
    GuidanceSchedule,
    GuidanceWeights,
    adaptive_scale,
    guidance_weights,
)

ANYTHING = st.floats(allow_nan=True, allow_infinity=True)
MEASURED = st.floats(1e-6, 1e6)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_scale_is_finite_and_within_the_cap_for_every_input(tr, baseline, cap):
    scale = adaptive_scale(tr, baseline, cap)
    assert math.isfinite(scale)
    assert 0.0 <= scale
    assert scale == 0.0 or scale <= cap


@given(MEASURED, MEASURED)
def test_scale_is_algorithm_3_line_20(tr, baseline):
    expected = tr / baseline - 1
    expected = 0.0 if expected < 0 else 2.0 if expected > 2 else expected
    assert adaptive_scale(tr, baseline) == pytest.approx(expected, abs=1e-12)


@given(MEASURED, MEASURED, MEASURED)
def test_more_attention_on_the_future_never_means_less_guidance(low, high, baseline):
    low, high = sorted((low, high))
    assert adaptive_scale(low, baseline) <= adaptive_scale(high, baseline)


@pytest.mark.parametrize('baseline', [0.0, -1.0, 9.9e-7, math.nan, math.inf, -math.inf])
def test_an_unusable_baseline_means_no_guidance(baseline):
    assert adaptive_scale(5.0, baseline) == 0.0


def test_boundaries():
    assert adaptive_scale(4.0, 4.0) == 0.0
    assert adaptive_scale(6.0, 4.0) == 0.5
    assert adaptive_scale(40.0, 4.0) == 2.0
    assert adaptive_scale(math.inf, 4.0) == 2.0
    assert adaptive_scale(math.nan, 4.0) == 0.0
    assert adaptive_scale(2e-6, 1e-6) == pytest.approx(1.0)


def test_weights_are_the_base_weights_times_the_scale():
    config = GuidanceConfig(language_weight=0.1, plan_weight=0.3)
    weights = guidance_weights(0.5, config)
    assert (weights.scale, weights.language_weight) == (0.5, 0.05)
    assert weights.plan_weight == pytest.approx(0.15)
    assert guidance_weights(0.0, config) == GuidanceWeights(0.0, 0.0, 0.0)


@pytest.mark.parametrize('scale', [-0.1, math.nan, math.inf])
def test_a_scale_that_is_no_strength_is_an_input_error(scale):
    with pytest.raises(InputError, match='finite number of 0 or more'):
        guidance_weights(scale, GuidanceConfig())
    with pytest.raises(InputError, match='finite numbers of 0 or more'):
        GuidanceSchedule('replay', (0.5, scale))


def test_only_adaptive_waits_for_the_temporal_ratio():
    assert GuidanceSchedule('adaptive').known_scale(3) is None
    assert GuidanceSchedule('off').known_scale(3) == 0.0
    assert GuidanceSchedule('flat').known_scale(3) == 1.0


def test_a_replay_gives_the_recorded_scales_in_order_and_ends_with_an_error():
    schedule = GuidanceSchedule('replay', (0.5, 0.0, 1.5))
    assert [schedule.known_scale(i) for i in range(3)] == [0.5, 0.0, 1.5]
    with pytest.raises(InputError, match="replan 4, but the replay holds 3.*on_end 'repeat'"):
        schedule.known_scale(3)


def test_a_repeated_replay_begins_again():
    schedule = GuidanceSchedule('replay', (0.5, 0.0), on_end='repeat')
    assert [schedule.known_scale(i) for i in range(5)] == [0.5, 0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize('arguments, message', [
    (('always',), 'off, flat, adaptive, replay'),
    (('replay',), 'needs one or more'),
    (('flat', (1.0,)), 'other schedules take none'),
    (('replay', (1.0,), 'stop'), 'error, repeat'),
])
def test_a_bad_schedule_is_an_input_error_that_says_what_there_is(arguments, message):
    with pytest.raises(InputError, match=message):
        GuidanceSchedule(*arguments)
