"""How strongly a replan is guided (paper Algorithm 3, spec section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import GUIDANCE_SCHEDULES, GuidanceConfig

if TYPE_CHECKING:
    import torch

# Below this a baseline is no measurement: dividing by it would guide at the cap for ever.
SMALLEST_BASELINE = 1e-6


@dataclass(frozen=True)
class GuidanceWeights:
    """Weights of one replan; a branch whose weight is zero does not run."""

    scale: float = 0.0
    language_weight: float = 0.0
    plan_weight: float = 0.0


def check_schedule(schedule: str) -> str:
    """`schedule` itself; raises InputError if it is none of `GUIDANCE_SCHEDULES`."""
    if schedule not in GUIDANCE_SCHEDULES:
        raise InputError(
            f"guidance: got '{schedule}', expected one of {', '.join(GUIDANCE_SCHEDULES)}"
        )
    return schedule


def is_usable_baseline(baseline: float) -> bool:
    """Whether TR can be compared with `baseline`: finite and at least 1e-6."""
    return math.isfinite(baseline) and baseline >= SMALLEST_BASELINE


def adaptive_scale(tr: float, baseline: float, cap: float = 2.0) -> float:
    """clip(tr / baseline - 1, 0, cap), finite for every input (Algorithm 3, line 20).

    0 where there is no measurement: tr is nan, the baseline is unusable, or the cap is not a
    finite number above 0. An infinite tr (no attention on frame 0 at all) gives the cap.
    """
    if math.isnan(tr) or not is_usable_baseline(baseline) or not math.isfinite(cap) or cap <= 0:
        return 0.0
    return float(min(max(tr / baseline - 1.0, 0.0), cap))


def guidance_weights(
    schedule: str, config: GuidanceConfig, tr: float = math.nan, baseline: float = math.nan
) -> GuidanceWeights:
    """Weights under a schedule: 'off' s = 0, 'flat' s = 1, 'adaptive' s from TR.

    Only 'adaptive' reads `tr` and `baseline`, so the others are known before the video runs.
    """
    if check_schedule(schedule) == 'adaptive':
        scale = adaptive_scale(tr, baseline, config.cap)
    else:
        scale = 1.0 if schedule == 'flat' else 0.0
    return GuidanceWeights(scale, scale * config.language_weight, scale * config.plan_weight)


def guided_velocity(
    velocities: dict[str, torch.Tensor], weights: GuidanceWeights
) -> torch.Tensor:
    """v_cond + w_lang (v_cond - v_null) + w_plan (v_plan - v_cond), branches that ran alone."""
    conditional = velocities['conditional']
    guided = conditional
    if 'null' in velocities:
        guided = guided + weights.language_weight * (conditional - velocities['null'])
    if 'plan' in velocities:
        guided = guided + weights.plan_weight * (velocities['plan'] - conditional)
    return guided


def baseline_warning(baseline: float) -> str:
    """A line for diagnostics if `baseline` is unusable, else an empty one."""
    if is_usable_baseline(baseline):
        return ''
    reason = 'is not finite' if not math.isfinite(baseline) else 'is too small to divide by'
    return f'TR baseline {baseline:g} {reason}: adaptive guidance is off until a new episode'
