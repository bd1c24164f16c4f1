import copy
import dataclasses
import math

import numpy as np
import pytest
import torch

from tr_vam_ros.vam.random_weights import initialise_backbone, seeded
from tr_vam_ros.vam.video_backbone import VideoBackbone

# The grid up to extraction, from spec section 1: sigma = 5u / (1 + 4u), u even from 1 to s_min.
S_MIN = 0.005 / 1.004
SIGMAS = tuple(5 * u / (1 + 4 * u) for u in (1 - i * (1 - S_MIN) / 5 for i in range(3)))


def make_backbone(config):
    with seeded(0):
        backbone = VideoBackbone(config).eval()
        initialise_backbone(backbone, config.image.height, config.image.width)
    return backbone


@pytest.fixture(scope='module')
def backbone(config):
    return make_backbone(config)


@pytest.fixture(scope='module')
def scene(config, backbone, images):
    """observation, noise of 3 frames, context of two branches."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        observation = backbone.encode(images[0])
    noise = torch.randn(1, 16, 3, *config.latent_size, generator=generator)
    context = torch.randn(2, 4, config.transformer.text_embed_dim, generator=generator)
    return observation, noise, context


def spy_on_calls(backbone):
    calls = []
    handle = backbone.transformer.register_forward_pre_hook(
        lambda _module, _args, kwargs: calls.append(kwargs), with_kwargs=True
    )
    return calls, handle


@torch.no_grad()
def test_every_transformer_call_sees_the_anchor(config, backbone, scene):
    observation, noise, context = scene
    calls, handle = spy_on_calls(backbone)
    backbone.rollout(observation, noise, context)
    handle.remove()
    assert len(calls) == 3
    for call, sigma in zip(calls, SIGMAS):
        for latent, timestep, mask in zip(
            call['hidden_states'], call['timestep'], call['condition_mask']
        ):
            assert torch.equal(latent[:, :1], observation[0])
            assert not torch.equal(latent[:, 1:2], observation[0])
            expected = torch.tensor([1e-4, sigma, sigma])
            torch.testing.assert_close(timestep.flatten(), expected, atol=2e-6, rtol=0)
            anchor, padding = mask
            assert (anchor[0] == 1).all() and (anchor[1:] == 0).all()
            # 168 of 192 rows are image: 21 of 24 latent rows.
            assert (padding[:, :21] == 0).all() and (padding[:, 21:] == 1).all()


@torch.no_grad()
def test_the_rollout_is_unipc_written_out(backbone, scene, monkeypatch):
    observation, noise, context = scene

    def x0_prediction(latent, sigma):
        velocity = backbone.velocity(latent, observation, torch.tensor(sigma), context)
        velocity = torch.cat([(noise[:, :, :1] - observation).expand_as(velocity[:, :, :1]),
                              velocity[:, :, 1:]], dim=2)
        return latent - sigma * velocity

    def log_snr(sigma):
        return math.log((1 - sigma) / sigma)

    # diffusers starts 1e-6 below 1, in float32, so that the logarithm is finite.
    s0, s1, s2 = float(np.float32(1 - 1e-6)), *SIGMAS[1:]
    x0 = noise.expand(2, -1, -1, -1, -1)
    m0 = x0_prediction(x0, s0)
    step = log_snr(s1) - log_snr(s0)
    x1 = s1 / s0 * x0 - (1 - s1) * math.expm1(-step) * m0  # UniP-1
    m1 = x0_prediction(x1, s1)
    x1 = x1 - (1 - s1) * math.expm1(-step) * 0.5 * (m1 - m0)  # UniC-1
    step = log_snr(s2) - log_snr(s1)
    slope = (m0 - m1) / ((log_snr(s0) - log_snr(s1)) / step)
    x2 = s2 / s1 * x1 - (1 - s2) * math.expm1(-step) * (m1 + 0.5 * slope)  # UniP-2

    seen = []
    monkeypatch.setattr(backbone, 'features', lambda latent, *_args: seen.append(latent))
    backbone.rollout(observation, noise, context)
    torch.testing.assert_close(seen[0], x2, atol=1e-4, rtol=1e-4)
    # Anchor (iii): frame 0 travels straight from the noise to the observation.
    line = (1 - s2) * observation + s2 * noise[:, :, :1]
    torch.testing.assert_close(seen[0][:, :, :1], line.expand(2, -1, -1, -1, -1),
                               atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_features_equal_those_of_a_full_pass_and_of_a_truncated_model(backbone, scene):
    observation, noise, context = scene
    sigma = torch.tensor(0.88)
    features = backbone.features(noise.expand(2, -1, -1, -1, -1), observation, sigma, context)
    assert features.shape == (2, 3, 4, 21, 128)

    def last_output(model, block):
        outputs = []
        handle = block.register_forward_hook(lambda _m, _i, output: outputs.append(output.clone()))
        model.velocity(noise.expand(2, -1, -1, -1, -1), observation, sigma, context)
        handle.remove()
        return outputs[0]

    full = last_output(backbone, backbone.transformer.transformer_blocks[2])
    truncated = copy.deepcopy(backbone)
    truncated.transformer.transformer_blocks = truncated.transformer.transformer_blocks[:3]
    cut = last_output(truncated, truncated.transformer.transformer_blocks[-1])
    assert torch.equal(features.flatten(1, 3), full)
    assert torch.equal(features.flatten(1, 3), cut)


@torch.no_grad()
def test_later_blocks_do_not_run_at_extraction_and_no_hook_stays(backbone, scene):
    observation, noise, context = scene
    ran = []
    handle = backbone.transformer.transformer_blocks[3].register_forward_hook(
        lambda *_args: ran.append(1)
    )
    backbone.rollout(observation, noise, context)
    handle.remove()
    assert len(ran) == 2  # the two full passes, not the third
    assert not any(b._forward_hooks for b in backbone.transformer.transformer_blocks)


@torch.no_grad()
def test_a_hook_is_removed_when_the_pass_fails(backbone, scene):
    observation, noise, context = scene
    with pytest.raises(RuntimeError):
        backbone.features(noise, observation, torch.tensor(0.88), context[..., :5])
    assert not any(b._forward_hooks for b in backbone.transformer.transformer_blocks)


@torch.no_grad()
def test_a_batch_of_branches_equals_each_branch_alone(backbone, scene):
    observation, noise, context = scene
    together = backbone.rollout(observation, noise, context)
    for branch in range(2):
        alone = backbone.rollout(observation, noise, context[branch : branch + 1])
        torch.testing.assert_close(together[branch : branch + 1], alone, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_latents_have_unit_scale_and_show_the_image(config, backbone, images):
    first, second = (backbone.encode(image) for image in images)
    assert first.shape == (1, 16, 1, 24, 84)
    assert 0.5 < first.std() < 2.0
    assert (first - second).std() > 0.5
    assert torch.equal(first, backbone.encode(images[0]))


@torch.no_grad()
def test_only_one_frame_need_be_encoded(backbone, images):
    """Frame 0's latent does not depend on later frames: the VAE is causal."""
    pixels = torch.from_numpy(images[0]).permute(2, 0, 1)[None, :, None].float() / 127.5 - 1
    pixels = torch.nn.functional.pad(pixels, (0, 0, 0, 24))
    video = torch.cat([pixels, torch.rand(1, 3, 4, 192, 672)], dim=2)
    latent = backbone.vae.encode(video).latent_dist.mode()[:, :, :1]
    alone = backbone.encode_raw(torch.from_numpy(images[0]))
    torch.testing.assert_close(latent, alone, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_padding_the_latent_instead_of_the_pixels(config, images):
    backbone = make_backbone(
        dataclasses.replace(config, video=dataclasses.replace(config.video, pad='latent'))
    )
    latent = backbone.encode(images[0])
    assert latent.shape == (1, 16, 1, 24, 84)
    assert (latent[..., 21:, :] == 0).all() and (latent[..., :21, :] != 0).any()


def test_the_transformer_takes_both_masks_as_channels_and_projected_text(backbone):
    """No torchvision, no second projection; the patch embedding has the 2B checkpoint's layout."""
    transformer = backbone.transformer
    assert not transformer.config.concat_padding_mask
    assert transformer.patch_embed.proj.weight.shape == (128, 18 * 6 * 4)
    assert not hasattr(transformer, 'crossattn_proj')
    assert transformer.learnable_pos_embed is None


def test_wan_statistics_stand_until_other_weights_bring_their_own(config):
    backbone = VideoBackbone(config)
    np.testing.assert_allclose(backbone.latents_mean.flatten()[:2], [-0.7571, -0.7089])
    assert {'latents_mean', 'latents_std'} <= set(backbone.state_dict())
