"""How far a replan is from what the oracle says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from test.oracle.configurations import INSTRUCTIONS, make_policy, observations, oracle_of
from test.oracle.naive_model import NaiveReplan
from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.replan import Replan

# The policy is in float32, the oracle's head and solver in float64. Heads of large random weights
# magnify rounding now and then: over 4,400 replans of 220 random models the median of all
# differences was 6e-8, 95 % stayed below 1.7e-6, and the worst was 6e-5 (of actions).
TYPICAL, WORST = 1e-5, 2e-4
# A change of the model is seen where it moves a number by more than rounding ever does.
SEEN = 1e-3
SCALES = (0.5, 0.0, 2.5)  # to replay: fewer than there are replans
SCHEDULES = {
    'off': {},
    'flat': {},
    'adaptive': {},
    'replay': {'replay_scales': SCALES, 'on_end': 'repeat'},
}
REPLANS_OF_AN_EPISODE = (3, 2)


def deviation(ours: float | np.ndarray, oracle: float | np.ndarray) -> float:
    """Largest difference of two numbers or arrays, relative to what is larger than 1."""
    oracle = np.asarray(oracle)
    return float(np.max(np.abs(ours - oracle)) / max(1.0, np.abs(oracle).max()))


def deviations(replan: Replan, expected: NaiveReplan, config: VamConfig) -> dict[str, float]:
    """By name; actions in deviations, so that a robot's units do not count."""
    action = config.statistics.action
    found = {
        'actions': deviation((replan.actions - action.mean) / np.array(action.std), expected.chunk),
        'temporal_ratio': abs(replan.temporal_ratio / expected.temporal_ratio - 1),
        'baseline': abs(replan.baseline / expected.baseline - 1),
    }
    for name in ('scale', 'language_weight', 'plan_weight', 'frame_attention'):
        found[name] = deviation(getattr(replan, name), getattr(expected, name))
    for layer, mass in replan.layer_attention.items():
        found[f'layer_attention[{layer}]'] = deviation(mass, expected.layer_attention[layer])
    return found


def two_episodes(
    config: VamConfig, schedules: tuple[str, ...], seed: int = 0
) -> Iterator[tuple[str, Replan, NaiveReplan]]:
    """Of each schedule every replan of two episodes, and what the oracle says."""
    policies = {
        name: make_policy(config, seed=seed, guidance=name, **SCHEDULES[name])
        for name in schedules
    }
    oracles = {name: oracle_of(policy) for name, policy in policies.items()}
    layers = tuple(range(1, config.head.layers + 1))
    for episode, count in enumerate(REPLANS_OF_AN_EPISODE):
        for model in (*policies.values(), *oracles.values()):
            model.reset_episode(INSTRUCTIONS[episode], f'episode {episode}')
        for image, proprio in observations(config, count, seed=episode):
            features = oracles[schedules[0]].features(image)
            for name in schedules:
                ours = policies[name].replan(image, proprio, layers=layers)
                yield name, ours, oracles[name].replan(image, proprio, features)
