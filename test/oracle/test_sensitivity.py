"""The oracle disagrees with the policy as soon as the two are not the same model."""

import math

import pytest
import torch

from test.oracle import naive_head, naive_video, unipc
from test.oracle.compare import SEEN, WORST, deviations
from test.oracle.configurations import INSTRUCTIONS, make_policy, observations, oracle_of

LATENT_PADDED = {'image': {'height': 16, 'width': 20}}


@pytest.fixture(scope='module')
def guided(small_config):
    """A policy, an observation, and what the policy makes of it with flat guidance."""
    policy = make_policy(small_config, guidance='flat')
    observation, replan = first_replan(policy)
    assert max(disagreement(oracle_of(policy), observation, replan).values()) < WORST
    return policy, observation, replan


def first_replan(policy):
    """((image, proprio), replan) of a new episode."""
    observation = observations(policy.config, 1)[0]
    policy.reset_episode(INSTRUCTIONS[0], 'episode')
    return observation, policy.replan(*observation)


def disagreement(oracle, observation, replan):
    """By name, how far the oracle's first replan of the episode is from the policy's."""
    oracle.reset_episode(INSTRUCTIONS[0], 'episode')
    return deviations(replan, oracle.replan(*observation), oracle.config)


@pytest.mark.parametrize('section, changes, name', [
    ('head', {'tr_layer': 3}, 'temporal_ratio'),
    ('head', {'tr_layer': 1}, 'frame_attention'),
    ('head', {'action_attention': 'causal'}, 'actions'),
    ('head', {'adarms_scope': 'all'}, 'actions'),
    ('head', {'euler_steps': 5}, 'actions'),
    ('head', {'proprio_clip': 5.0}, 'actions'),
    ('guidance', {'null_text': 'zeros_after_projection'}, 'actions'),
    ('guidance', {'null_text': 'empty_prompt'}, 'actions'),
    ('guidance', {'branch_noise': 'independent'}, 'actions'),
    ('guidance', {'language_weight': 0.0}, 'language_weight'),
    ('guidance', {'plan_weight': 0.0}, 'plan_weight'),
    ('video', {'plan_frames': 4}, 'actions'),
    ('video', {'extract_index': 2}, 'temporal_ratio'),
    ('video', {'steps': 5}, 'temporal_ratio'),
    ('video', {'shift': 4.0}, 'temporal_ratio'),
    ('video', {'feature_block': 3}, 'temporal_ratio'),
    ('video', {'anchor_timestep': 0.1}, 'actions'),
    ('image', {'encode_height': 14, 'encode_width': 27}, 'actions'),
])
def test_an_option_that_differs_is_seen(guided, section, changes, name):
    policy, *made = guided
    oracle = oracle_of(policy, policy.config.changed({section: changes}))
    assert disagreement(oracle, *made)[name] > SEEN


def test_where_the_image_is_padded_is_seen(small_config):
    policy = make_policy(small_config.changed(LATENT_PADDED))
    padded = small_config.changed({**LATENT_PADDED, 'video': {'pad': 'latent'}})
    assert disagreement(oracle_of(policy, padded), *first_replan(policy))['actions'] > SEEN


def test_another_cap_is_seen_where_guidance_is_adaptive(small_config):
    policy = make_policy(small_config, guidance='adaptive')
    oracle = oracle_of(policy, small_config.changed({'guidance': {'cap': 0.3}}))
    for model in (policy, oracle):
        model.reset_episode(INSTRUCTIONS[0], 'episode')
    for image, proprio in observations(small_config, 2):
        found = deviations(policy.replan(image, proprio), oracle.replan(image, proprio),
                           small_config)
    assert found['scale'] > SEEN and found['actions'] > SEEN


def exact_gelu(values):
    return values * (1 + torch.erf(values / math.sqrt(2))) / 2


@pytest.mark.parametrize('module, name, value', [
    (naive_head, 'ROPE_BASE', 1000.0),
    (naive_head, 'LONGEST_PERIOD', 5.0),
    (naive_head, 'SHORTEST_PERIOD', 4.1e-3),
    (naive_head, 'TAG_EPSILON', 1e-1),
    (naive_head, 'NORM_EPSILON', 1e-2),
    (naive_head, 'gelu', exact_gelu),
    (naive_head, 'silu', torch.relu),
    (naive_head, 'additive_mask', lambda kinds, _: torch.zeros(len(kinds), len(kinds))),
    (unipc, 'ORDER', 1),
    (unipc, 'LOWEST_NOISE', 0.002),
    (naive_video, 'zero_padded', lambda frames, height, width: torch.nn.functional.pad(
        frames, (0, width - frames.shape[-1], 0, height - frames.shape[-2]), value=0.5)),
])
def test_a_constant_or_a_rule_that_differs_is_seen(guided, monkeypatch, module, name, value):
    policy, *made = guided
    monkeypatch.setattr(module, name, value)
    assert max(disagreement(oracle_of(policy), *made).values()) > SEEN


def test_every_weight_of_the_head_counts(guided):
    policy, (image, proprio), _ = guided
    config, weights = policy.config, policy.head.state_dict()
    oracle = oracle_of(policy)
    oracle.reset_episode(INSTRUCTIONS[0], 'episode')
    features = oracle.features(image)['conditional']
    arguments = (
        features, oracle.video.grid[config.video.extract_index], oracle.normalised_proprio(proprio),
        oracle.noise('action', (config.head.horizon, config.head.action_dim)), torch.tensor(0.7),
    )
    velocity, _ = oracle.head.velocity(*arguments)
    for name, weight in weights.items():
        changed = {**weights, name: weight + 0.2 * weight.sign()}
        found, _ = naive_head.NaiveHead(config.head, changed).velocity(*arguments)
        assert (found - velocity).abs().max() > SEEN, name
