import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import GuidanceConfig
from tr_vam_ros.vam.guidance import adaptive_scale, guidance_weights

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
    flat = guidance_weights('flat', config)
    assert (flat.scale, flat.language_weight, flat.plan_weight) == (1.0, 0.1, 0.3)
    adaptive = guidance_weights('adaptive', config, tr=6.0, baseline=4.0)
    assert (adaptive.scale, adaptive.language_weight) == (0.5, 0.05)
    assert adaptive.plan_weight == pytest.approx(0.15)
    off = guidance_weights('off', config, tr=6.0, baseline=4.0)
    assert (off.scale, off.language_weight, off.plan_weight) == (0.0, 0.0, 0.0)


def test_unknown_schedule_names_the_known_ones():
    with pytest.raises(InputError, match='off, flat, adaptive'):
        guidance_weights('on', GuidanceConfig())
