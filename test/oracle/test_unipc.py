"""The solver in closed form against the scheduler that the policy uses."""

import numpy as np
import pytest
import torch
from diffusers import UniPCMultistepScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from test.oracle import unipc
from test.oracle.compare import TYPICAL
from test.oracle.configurations import INSTRUCTIONS, make_policy, observations, oracle_of
from test.oracle.unipc import denoise, sigma_grid, solver_sigmas

PAPER_GRID = [1.0, 0.9527, 0.8832, 0.7714, 0.5616, 0.0244]  # 6 steps, shift 5 (spec section 1)
SHAPE = (1, 3, 2, 4, 5)


def scheduler_of(grid):
    scheduler = UniPCMultistepScheduler(
        prediction_type='flow_prediction', use_flow_sigmas=True, flow_shift=1
    )
    scheduler.set_timesteps(sigmas=np.array(grid))
    return scheduler


def scheduled(velocity, noise, grid):
    """Samples before each call and at the end, by diffusers."""
    scheduler = scheduler_of(grid)
    samples = [noise]
    for index, timestep in enumerate(scheduler.timesteps):
        output = velocity(samples[-1], float(scheduler.sigmas[index]))
        samples.append(scheduler.step(output, timestep, samples[-1]).prev_sample)
    return samples


def bent(sample, sigma):
    """A velocity that is no straight line: it turns with sigma and with its neighbours."""
    return torch.tanh(sample.roll(1, -1) * (1 + sigma)) - sample * sigma**2 + 0.3


def normal(shape=SHAPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_the_grid_is_the_one_of_the_paper():
    assert sigma_grid(6, 5.0) == pytest.approx(PAPER_GRID, abs=1e-4)


@given(st.integers(1, 12), st.floats(1.0, 8.0))
@settings(max_examples=30, derandomize=True, deadline=None, database=None)
def test_a_whole_rollout_equals_the_scheduler_at_every_step(steps, shift):
    grid = sigma_grid(steps, shift)
    noise = normal()
    assert solver_sigmas(grid) == pytest.approx(scheduler_of(grid).sigmas.tolist(), abs=0, rel=1e-6)
    for stop, expected in enumerate(scheduled(bent, noise, grid)):
        found = denoise(lambda x, sigma: bent(x, sigma), noise.double(), grid, stop)
        assert (found - expected).abs().max() < TYPICAL


def test_a_first_order_solver_would_be_seen(monkeypatch):
    grid = sigma_grid(6, 5.0)
    expected = scheduled(bent, normal(), grid)
    monkeypatch.setattr(unipc, 'ORDER', 1)
    found = [denoise(bent, normal().double(), grid, stop) for stop in range(len(expected))]
    differ = [(x - y).abs().max() > 100 * TYPICAL for x, y in zip(found, expected)]
    assert differ == [False, False] + [True] * 5  # the first step has no past


def test_a_straight_path_is_followed_exactly():
    """x = (1 - sigma) x0 + sigma eps has velocity eps - x0: any number of steps is exact."""
    noise, clean = normal().double(), normal().double().flip(0, 1, 2, 3, 4)
    grid = sigma_grid(6, 5.0)
    for stop, sigma in enumerate(solver_sigmas(grid)):
        found = denoise(lambda x, sigma: noise - clean, noise, grid, stop)
        assert (found - ((1 - sigma) * clean + sigma * noise)).abs().max() < TYPICAL


def test_a_video_denoised_to_the_end_equals_the_scheduler_and_begins_with_the_image(small_config):
    policy = make_policy(small_config)
    video = oracle_of(policy).video
    image, _ = observations(small_config, 1)[0]
    noise = normal((1, small_config.vae.z_dim, small_config.video.frames,
                    *small_config.latent_size))
    with torch.no_grad():
        observation, context = video.encode(image), policy.text(INSTRUCTIONS[0])

        def velocity(sample, sigma):
            output = video.network(sample, sigma, observation, context)
            output[:, :, :1] = noise[:, :, :1] - observation
            return output

        expected = scheduled(velocity, noise, video.grid)
        for stop, sample in enumerate(expected):
            found = video.denoised(observation, noise, context, stop)
            assert (found - sample).abs().max() < TYPICAL * sample.abs().max()
    assert (found[:, :, :1] - observation).abs().max() < TYPICAL
    assert (found[:, :, 1:] - observation).abs().mean() > 0.1
