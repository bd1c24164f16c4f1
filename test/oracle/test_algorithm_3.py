"""The lazy, cached and batched policy against Algorithm 3 run eagerly by another model."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings

from test.oracle.compare import SCALES, SCHEDULES, TYPICAL, WORST, deviations, two_episodes
from test.oracle.configurations import (
    INSTRUCTIONS,
    configurations,
    make_policy,
    observations,
    oracle_of,
)
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.config import BRANCH_NOISES, NULL_TEXTS

OPTIONS = {'suffix', 'all', 'bidirectional', 'causal', 'pixels', 'latent', *NULL_TEXTS,
           *BRANCH_NOISES}


@pytest.mark.timeout(240)
def test_every_number_of_every_schedule_equals_eager_algorithm_3():
    errors: list[float] = []
    scales: list[float] = []  # of the adaptive schedule
    options = set()

    @settings(max_examples=14, derandomize=True, deadline=None, database=None)
    @given(configurations())
    def check(config: VamConfig) -> None:
        options.update({
            config.head.adarms_scope, config.head.action_attention, config.video.pad,
            config.guidance.null_text, config.guidance.branch_noise,
        })
        for schedule, replan, expected in two_episodes(config, tuple(SCHEDULES)):
            found = deviations(replan, expected, config)
            worst = max(found, key=found.get)
            assert found[worst] < WORST, f'{schedule}, {worst}: off by {found[worst]:.1e}'
            assert set(replan.layer_attention) == set(expected.layer_attention)
            assert replan.warning == ''
            errors.extend(found.values())
            if schedule == 'adaptive':
                scales.append(replan.scale)

    check()
    assert statistics.median(errors) < TYPICAL / 10
    assert np.quantile(errors, 0.95) < TYPICAL
    assert options == OPTIONS
    assert 0.1 < sum(scale > 0 for scale in scales) / len(scales) < 0.9


def test_replay_counts_replans_over_the_whole_life_of_the_policy(small_config):
    scales = [replan.scale for _, replan, _ in two_episodes(small_config, ('replay',))]
    assert scales == [*SCALES, *SCALES[:2]]


def test_replay_past_its_end_is_an_error_in_both(small_config):
    policy = make_policy(small_config, guidance='replay', replay_scales=SCALES[:1])
    image, proprio = observations(small_config, 1)[0]
    for model, error in ((policy, InputError), (oracle_of(policy), IndexError)):
        model.reset_episode(INSTRUCTIONS[0], 'first')
        model.replan(image, proprio)
        model.reset_episode(INSTRUCTIONS[0], 'second')
        with pytest.raises(error):
            model.replan(image, proprio)


def test_a_branch_that_flat_guidance_skips_changes_no_number(small_config):
    config = small_config.changed({'guidance': {'plan_weight': 0.0}})
    for _, replan, expected in two_episodes(config, ('flat',)):
        assert replan.branches == ('conditional', 'null')  # the oracle ran all three
        assert max(deviations(replan, expected, config).values()) < WORST


def test_branches_that_adaptive_guidance_skips_change_no_number(small_config):
    branches = set()
    for _, replan, expected in two_episodes(small_config, ('adaptive',)):
        branches.add(replan.branches)
        assert max(deviations(replan, expected, small_config).values()) < WORST
    assert branches == {('conditional',), ('conditional', 'null', 'plan')}
