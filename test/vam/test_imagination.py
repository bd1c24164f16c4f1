import copy

import numpy as np
import pytest
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.imagination import decode, imagine, video_frames
from tr_vam_ros.vam.random_weights import initialise_backbone, seeded
from tr_vam_ros.vam.video_backbone import VideoBackbone

# A small picture whose sides are no whole patches: 40 rows are 5 latent cells of 8, padded to 6.
SMALL = VamConfig.from_yaml('tiny_yam').changed({'image': {'height': 40, 'width': 96}})
HEIGHT, WIDTH = 40, 96


def make_backbone(config=SMALL):
    with seeded(0):
        backbone = VideoBackbone(config).eval()
        initialise_backbone(backbone, config.image.height, config.image.width)
    return backbone


@pytest.fixture(scope='module')
def backbone():
    return make_backbone()


@pytest.fixture(scope='module')
def image():
    cells = np.random.default_rng(0).integers(0, 256, (5, 12, 3)).astype(np.uint8)
    return cells.repeat(8, axis=0).repeat(8, axis=1)


def draw(frames, config=SMALL, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(1, 16, frames, *config.latent_size, generator=generator)
    return noise, torch.randn(1, 4, 128, generator=generator)


def pictures(vae_output):
    """[-1, 1] (1, 3, t, h, w) to uint8, the long way round."""
    scaled = vae_output[0].double().numpy().transpose(1, 2, 3, 0) * 127.5 + 127.5
    return np.clip(np.round(scaled), 0, 255).astype(np.uint8)


def assert_same_pictures(first, second):
    """But for the rounding of a few values."""
    assert first.shape == second.shape and first.dtype == second.dtype == np.uint8
    difference = np.abs(first.astype(int) - second)
    assert difference.max() <= 1 and difference.mean() < 0.02


@torch.no_grad()
def denoised_by_diffusers(backbone, image, noise, context):
    """The loop of diffusers' Cosmos2_5_PredictBasePipeline, as it stands there, one branch."""
    from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

    _, _, frames, height, width = noise.shape
    u = np.linspace(1, 0.005 / 1.004, 6)
    scheduler = UniPCMultistepScheduler(
        prediction_type='flow_prediction', use_flow_sigmas=True, flow_shift=1
    )
    scheduler.set_timesteps(sigmas=5 * u / (1 + 4 * u))
    cond_indicator = torch.zeros(1, 1, frames, 1, 1)
    cond_indicator[:, :, 0] = 1
    cond_mask = cond_indicator.expand(-1, -1, -1, height, width)
    padding = torch.zeros(1, 1, frames, height, width)
    padding[..., 5:, :] = 1
    cond_latent = torch.zeros_like(noise)
    cond_latent[:, :, :1] = backbone.encode(image)
    latents = noise
    gt_velocity = (latents - cond_latent) * cond_mask
    for i, t in enumerate(scheduler.timesteps):
        in_timestep = cond_indicator * 0.0001 + (1 - cond_indicator) * scheduler.sigmas[i]
        noise_pred = backbone.transformer(
            hidden_states=cond_mask * cond_latent + (1 - cond_mask) * latents,
            condition_mask=torch.cat([cond_mask, padding], 1),
            timestep=in_timestep,
            encoder_hidden_states=context,
            return_dict=False,
        )[0]
        noise_pred = gt_velocity + noise_pred * (1 - cond_mask)
        latents = scheduler.step(noise_pred, t, latents, return_dict=False)[0]
    return latents


@torch.no_grad()
def test_the_video_is_that_of_diffusers_own_denoising_loop(backbone, image):
    noise, context = draw(3)
    latent = denoised_by_diffusers(backbone, image, noise, context)
    latent = latent * backbone.latents_std + backbone.latents_mean
    expected = pictures(backbone.vae.decode(latent, return_dict=False)[0][..., :HEIGHT, :WIDTH])
    video = imagine(backbone, image, context, 3, noise)
    assert_same_pictures(video, expected)
    assert video.shape == (9, HEIGHT, WIDTH, 3)
    assert np.abs(video[4].astype(int) - video[0]).mean() > 3  # it does not stand still


@torch.no_grad()
def test_a_model_that_sees_no_motion_leaves_its_noise_and_the_observation(
    backbone, image, monkeypatch
):
    """dx/dsigma = 0 has one solution, and frame 0 has its own."""
    noise, context = draw(3)
    still = copy.copy(backbone)
    monkeypatch.setattr(still, 'velocity', lambda latent, *_args: torch.zeros_like(latent))
    observation = backbone.encode(image)
    expected = torch.cat([observation, noise[:, :, 1:]], dim=2)
    *_, (latent, sigma) = still.denoise(observation, noise, context)
    assert sigma == 0
    torch.testing.assert_close(latent, expected, atol=1e-4, rtol=1e-4)
    assert_same_pictures(imagine(still, image, context, 3, noise), decode(backbone, expected))


@torch.no_grad()
@pytest.mark.parametrize('pad', ['pixels', 'latent'])
def test_the_first_picture_is_the_vae_s_reconstruction_of_the_image(image, pad):
    config = SMALL.changed({'video': {'pad': pad}})
    backbone = make_backbone(config)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None, :, None] / 127.5 - 1
    if pad == 'pixels':
        pixels = torch.nn.functional.pad(pixels, (0, 0, 0, 8))  # 40 to 48 rows
    latent = backbone.vae.encode(pixels).latent_dist.mode()
    reconstruction = backbone.vae.decode(latent, return_dict=False)[0][..., :HEIGHT, :WIDTH]
    noise, context = draw(2, config)
    for frames in (1, 2):
        video = imagine(backbone, image, context, frames, noise)
        assert_same_pictures(video[:1], pictures(reconstruction))


@torch.no_grad()
def test_the_first_17_pictures_do_not_depend_on_later_latent_frames(backbone):
    latent, _ = draw(7)
    assert_same_pictures(decode(backbone, latent)[:17], decode(backbone, latent[:, :, :5]))


@torch.no_grad()
@pytest.mark.parametrize('frames, count', [(1, 1), (2, 5), (5, 17), (24, 93)])
def test_n_latent_frames_are_4_n_minus_3_pictures(backbone, frames, count):
    assert video_frames(backbone, frames) == count
    if frames <= 2:
        assert len(decode(backbone, draw(frames)[0])) == count


def test_text_and_noise_show_in_the_video_and_a_repetition_is_equal(backbone, image):
    noise, context = draw(2)
    video = imagine(backbone, image, context, 2, noise)
    assert np.array_equal(video, imagine(backbone, image, context, 2, noise))
    other_text = imagine(backbone, image, -context, 2, noise)
    other_noise = imagine(backbone, image, context, 2, draw(2, seed=1)[0])
    for other in (other_text, other_noise):
        assert_same_pictures(other[:1], video[:1])
        assert np.abs(other[1:].astype(int) - video[1:]).mean() > 0.5


def test_the_first_frames_of_longer_noise_are_used_and_progress_is_told(backbone, image):
    noise, context = draw(6)
    told = []
    video = imagine(
        backbone, image, context, 2, noise, lambda done, of: told.append((done, of))
    )
    assert np.array_equal(video, imagine(backbone, image, context, 2, noise[:, :, :2]))
    assert told == [(done, 6) for done in range(7)]


def test_a_model_that_sees_a_smaller_image_imagines_at_that_size(backbone):
    config = VamConfig.from_yaml('tiny_libero')
    backbone = make_backbone(config)
    noise, context = draw(1, config)
    image = np.full((224, 448, 3), 90, np.uint8)
    assert imagine(backbone, image, context, 1, noise).shape == (1, 128, 256, 3)


@pytest.mark.parametrize('frames', [0, -1, 4, 200])
def test_frames_beyond_noise_or_model_are_an_input_error(backbone, image, frames):
    noise, context = draw(3)
    with pytest.raises(InputError, match=f'frames {frames}: expected 1 to 3'):
        imagine(backbone, image, context, frames, noise)
