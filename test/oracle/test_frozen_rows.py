"""Rows that are already under way steer the chunk as real-time chunking says."""

from random import Random

import numpy as np
import pytest

from test.oracle.compare import SEEN, WORST, deviation
from test.oracle.configurations import (
    INSTRUCTIONS,
    make_policy,
    observations,
    oracle_of,
    random_configuration,
)
from tr_vam_ros.errors import InputError


def steered(config, weight: float = 5.0):
    return config.changed({'guidance': {'frozen_rows_weight': weight}})


def frozen_rows(config, count: int, seed: int = 0) -> np.ndarray:
    action = config.statistics.action
    generator = np.random.default_rng(seed)
    return generator.normal(action.mean, action.std, (count, config.head.action_dim))


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize('guidance', ['off', 'flat'])
def test_steering_equals_the_formula_written_out(seed, guidance):
    config = steered(random_configuration(Random(seed)), weight=[0.5, 5.0][seed % 2])
    policy = make_policy(config, guidance=guidance)
    oracle = oracle_of(policy)
    rows = frozen_rows(config, 1 + seed % config.head.horizon, seed)
    (image, proprio), = observations(config, 1, seed)
    for model in (policy, oracle):
        model.reset_episode(INSTRUCTIONS[0], 'episode')
    replan = policy.replan(image, proprio, frozen_rows=rows)
    expected = oracle.replan(image, proprio, frozen_rows=rows)
    assert deviation(replan.actions, expected.actions) < WORST
    assert replan.temporal_ratio == pytest.approx(expected.temporal_ratio, rel=WORST)


def chunks(config, rows, **options):
    policy = make_policy(config, **options)
    policy.reset_episode(INSTRUCTIONS[0], 'episode')
    (image, proprio), = observations(config, 1)
    return policy.replan(image, proprio, frozen_rows=rows).actions


def test_steered_chunks_come_closer_to_the_frozen_rows(small_config):
    config = small_config.changed({'head': {'euler_steps': 10}})
    rows = frozen_rows(config, 2)
    free = chunks(steered(config, 0.0), rows)
    pulled = chunks(steered(config, 5.0), rows)
    std = np.array(config.statistics.action.std)

    def error(actions):
        return np.abs((actions[:2] - rows) / std).mean()

    assert error(pulled) < 0.7 * error(free)


def test_without_rows_or_without_weight_nothing_changes(small_config):
    rows = frozen_rows(small_config, 2)
    free = chunks(small_config, None)
    np.testing.assert_array_equal(chunks(small_config, rows), free)  # the weight is 0 by default
    np.testing.assert_array_equal(chunks(steered(small_config), rows[:0]), free)
    np.testing.assert_array_equal(chunks(steered(small_config), None), free)
    assert deviation(chunks(steered(small_config), rows), free) > SEEN


@pytest.mark.parametrize('change, words', [
    (lambda rows: rows[:, :-1], 'expected float'),
    (lambda rows: np.repeat(rows, 20, axis=0), 'at most'),
    (lambda rows: np.full_like(rows, np.nan), 'not finite'),
    (lambda rows: rows.astype(np.int64), 'expected float'),
])
def test_rows_that_are_no_chunk_are_refused(small_config, change, words):
    rows = frozen_rows(small_config, 2)
    with pytest.raises(InputError, match=words):
        chunks(steered(small_config), change(rows))
