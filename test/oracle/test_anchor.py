"""What the transformer is given in every pass of every branch (App. A.2, spec section 1)."""

import inspect
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional

from test.oracle.compare import TYPICAL
from test.oracle.configurations import INSTRUCTIONS, make_policy, observations, oracle_of
from test.oracle.naive_video import resized
from test.oracle.unipc import solver_sigmas


@pytest.fixture
def spied(small_config, request):
    """A policy that guides, its oracle, and the arguments of the transformer in one replan."""
    policy = make_policy(small_config, guidance='flat', precision=request.param)
    oracle = oracle_of(policy)
    calls = []
    signature = inspect.signature(policy.backbone.transformer.forward)
    policy.backbone.transformer.register_forward_pre_hook(
        lambda _module, args, kwargs: calls.append(signature.bind(*args, **kwargs).arguments),
        with_kwargs=True,
    )
    for model in (policy, oracle):
        model.reset_episode(INSTRUCTIONS[0], 'episode')
    image, proprio = observations(small_config, 1)[0]
    policy.replan(image, proprio)
    with torch.no_grad():
        observation = policy.backbone.encode(image)
    return policy, oracle, observation, calls


@pytest.mark.parametrize('spied', ['float32', 'bfloat16'], indirect=True)
def test_frame_0_is_clean_in_every_pass_of_every_branch(spied, small_config):
    policy, oracle, observation, calls = spied
    video = small_config.video
    passes = Counter()
    sigmas = solver_sigmas(oracle.video.grid)[: video.extract_index + 1]
    for call in calls:
        sample, timestep = call['hidden_states'], call['timestep']
        batch, _, frames, height, width = sample.shape
        assert (height, width) == small_config.latent_size
        assert torch.equal(sample[:, :, :1], observation.expand(batch, -1, -1, -1, -1))
        assert (sample[:, :, 1:] - observation).abs().amax((1, 3, 4)).min() > 0.1
        mask = call['condition_mask'].expand(batch, -1, frames, height, width)
        assert torch.equal(mask, oracle.video.masks(frames).expand_as(mask))
        assert timestep.shape == (batch, 1, frames, 1, 1)
        assert timestep[:, :, 0].unique().tolist() == [np.float32(video.anchor_timestep)]
        assert len(timestep[:, :, 1:].unique()) == 1
        context = call['encoder_hidden_states']
        for row in range(batch):
            branch = 'null' if torch.equal(context[row, 0], policy.text.null()[0, 0]) else 'text'
            passes[frames, branch, float(timestep[row, 0, -1])] += 1
    assert passes == {
        (frames, branch, sigma): 1
        for frames, branch in (
            (video.frames, 'text'), (video.frames, 'null'), (video.plan_frames, 'text')
        )
        for sigma in sigmas
    }


def test_the_padding_mask_marks_cells_wholly_outside_the_image(small_config):
    """13x26 pixels, 4 a cell, 3 cells a patch: 7 of 9 columns hold a part of the image."""
    masks = oracle_of(make_policy(small_config)).video.masks(frames=2)
    outside = torch.tensor([0.0] * 7 + [1.0] * 2)
    assert torch.equal(masks[0, 1], outside.expand(2, 4, 9))
    assert torch.equal(masks[0, 0], torch.tensor([1.0, 0.0])[:, None, None].expand(2, 4, 9))


@pytest.mark.parametrize('changes', [
    {},
    {'image': {'encode_height': 7, 'encode_width': 15}},
    {'image': {'encode_height': 19, 'encode_width': 29}},
    {'image': {'height': 16, 'width': 20}, 'video': {'pad': 'latent'}},
    {'image': {'encode_height': 12, 'encode_width': 20}, 'video': {'pad': 'latent'}},
])
def test_the_observation_latent_equals_the_oracle(small_config, changes):
    config = small_config.changed(changes)
    policy = make_policy(config)
    for image, _ in observations(config, 2):
        with torch.no_grad():
            found = policy.backbone.encode(image)
            expected = oracle_of(policy).video.encode(image)
        assert found.shape == expected.shape == (1, 4, 1, *config.latent_size)
        assert (found - expected).abs().max() < TYPICAL


@pytest.mark.parametrize('size', [(7, 15), (19, 29), (13, 26), (1, 1), (26, 13)])
def test_the_resize_is_bilinear_with_antialiasing(size):
    pixels = torch.rand(3, 13, 26, generator=torch.Generator().manual_seed(0)).double()
    found = resized(resized(pixels, -2, size[0]), -1, size[1])
    expected = functional.interpolate(
        pixels[None], size, mode='bilinear', align_corners=False, antialias=True
    )[0]
    assert (found - expected).abs().max() < 1e-9


@pytest.mark.parametrize('block', [1, 2, 3])
def test_a_pass_that_stops_after_block_k_equals_a_full_one(small_config, block):
    config = small_config.changed({'video': {'feature_block': block}})
    policy = make_policy(config)
    oracle = oracle_of(policy)
    image, _ = observations(config, 1)[0]
    runs = Counter()
    for index, module in enumerate(policy.backbone.transformer.transformer_blocks):
        module.register_forward_hook(lambda *_, index=index: runs.update([index + 1]))
    noise = torch.randn(1, 4, config.video.plan_frames, *config.latent_size)
    with torch.no_grad():
        observation, context = policy.backbone.encode(image), policy.text(INSTRUCTIONS[0])
        found = policy.backbone.rollout(observation, noise, context)[0]
        ours = dict(runs)
        expected = oracle.video.features(observation, noise, context)
    passes = config.video.extract_index + 1
    assert ours == {k: passes - (k > block) for k in (1, 2, 3)}
    assert (found - expected).abs().max() < TYPICAL * expected.abs().max()
