"""The sigma grid of video denoising and its solver (paper App. A.2, spec section 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tr_vam_ros.errors import InputError

if TYPE_CHECKING:
    from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

# Smallest unshifted sigma of the 1000-step training schedule that FlowUniPC comes from.
_SMALLEST_SIGMA = 0.001


def sigma_grid(steps: int = 6, shift: float = 5.0) -> np.ndarray:
    """Noise levels at which the transformer is evaluated, descending from 1, float64 (steps,).

    The shift acts twice, as in Cosmos-Predict2.5: on the end of the grid and on the grid.
    Defaults give 1, .9527, .8832, .7714, .5616, .0244 (paper App. A.2).
    Raises InputError for steps < 1 or a shift that is not positive and finite.
    """
    if steps < 1:
        raise InputError(f'sigma grid: got {steps} steps, expected 1 or more')
    if not (np.isfinite(shift) and shift > 0):
        raise InputError(f'sigma grid: got shift {shift}, expected a finite number above 0')
    grid = np.linspace(1.0, _shifted(_SMALLEST_SIGMA, shift), steps, dtype=np.float64)
    return _shifted(grid, shift)


def _shifted(sigma, shift: float):
    return shift * sigma / (1 + (shift - 1) * sigma)


def unipc_scheduler(grid: np.ndarray) -> UniPCMultistepScheduler:
    """A UniPC solver over `grid`; it carries the state of one rollout: make one per rollout.

    `flow_shift=1`, because the grid is shifted already. Read `scheduler.sigmas[i]`:
    `timesteps` are truncated to integers.
    """
    # Imported here: diffusers takes seconds, and `sigma_grid` needs none of it.
    from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

    scheduler = UniPCMultistepScheduler(
        prediction_type='flow_prediction', use_flow_sigmas=True, flow_shift=1
    )
    # A copy: set_timesteps lowers the first sigma by 1e-6 in place.
    scheduler.set_timesteps(sigmas=grid.copy())
    return scheduler
