"""What the products of the video model in bfloat16 change, against an oracle in float32."""

import statistics

import numpy as np
import torch

from test.oracle.compare import WORST, deviations
from test.oracle.configurations import INSTRUCTIONS, observations, oracle_of
from tr_vam_ros.vam import VideoActionPolicy

# Measured over 16 seeds of the small model, two replans each. Root mean square error of the
# features, relative: median 0.0095, worst 0.0133 (steps of bfloat16 are 0.004 to 0.008 apart).
FEATURES = 0.03
# Largest difference in the actions, in deviations: median 0.005, worst 0.04, and 0.14 in another
# episode (a head of 16 columns magnifies). Temporal Ratio, relative: median 0.002, worst 0.008.
MEDIAN_ACTION, WORST_ACTION, RATIO = 0.02, 0.4, 0.03
SEEDS = range(4)


def policy_and_oracle(config, seed):
    """A policy in bfloat16, and an oracle of the same weights."""
    policy, exact = (
        VideoActionPolicy.from_config(config, seed=seed, guidance='flat', precision=precision)
        for precision in ('bfloat16', 'float32')
    )
    oracle = oracle_of(exact)
    for model in (policy, oracle):
        model.reset_episode(INSTRUCTIONS[0], 'episode')
    return policy, oracle


def test_bfloat16_stays_within_its_measured_distance(small_config):
    actions = []
    for seed in SEEDS:
        policy, oracle = policy_and_oracle(small_config, seed)
        for image, proprio in observations(small_config, 2):
            expected = oracle.replan(image, proprio)
            found = deviations(policy.replan(image, proprio), expected, small_config)
            actions.append(found['actions'])
            assert found['temporal_ratio'] < RATIO
    assert WORST < statistics.median(actions) < MEDIAN_ACTION  # the products are of bfloat16
    assert max(actions) < WORST_ACTION


def test_features_of_bfloat16_stay_within_their_measured_distance(small_config):
    shape = (1, small_config.vae.z_dim, small_config.video.frames, *small_config.latent_size)
    image, _ = observations(small_config, 1)[0]
    for seed in SEEDS:
        policy, oracle = policy_and_oracle(small_config, seed)
        with torch.inference_mode():
            observation, context = oracle.video.encode(image), policy.text(INSTRUCTIONS[0])
            noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
            ours = policy.backbone.rollout(observation, noise, context)[0].numpy()
            expected = oracle.video.features(observation, noise, context).numpy()
        error = np.sqrt(np.square(ours - expected).mean() / np.square(expected).mean())
        assert WORST < error < FEATURES
