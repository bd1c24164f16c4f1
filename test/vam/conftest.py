"""What the tests of the video-action model share: the tiny preset, observations, policies."""

import functools

import numpy as np
import pytest

from tr_vam_ros.vam import VamConfig, VideoActionPolicy


@pytest.fixture(scope='session')
def config():
    return VamConfig.from_yaml('tiny_yam')


@pytest.fixture(scope='session')
def home(config):
    return np.array(config.statistics.proprio.mean, dtype=np.float32)


@pytest.fixture(scope='session')
def images():
    """Two pictures of coarse patches, uint8 (168, 672, 3)."""
    cells = np.random.default_rng(0).integers(0, 256, (2, 7, 28, 3)).astype(np.uint8)
    cells[1] //= 3  # darker as well as different
    return cells.repeat(24, axis=1).repeat(24, axis=2)


@pytest.fixture(scope='session')
def make_policy(config):
    """Policies by guidance and seed, made once; each call begins a new episode."""
    made = functools.cache(
        lambda guidance, seed: VideoActionPolicy.from_config(config, seed=seed, guidance=guidance)
    )

    def make(guidance='off', seed=0, instruction='put the red block into the bin', key='episode'):
        policy = made(guidance, seed)
        policy.reset_episode(instruction, key)
        return policy

    return make
