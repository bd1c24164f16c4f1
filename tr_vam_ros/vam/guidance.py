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

ON_END = ('error', 'repeat')


@dataclass(frozen=True)
class GuidanceWeights:
    """Weights of one replan; a branch whose weight is zero does not run."""

    scale: float = 0.0
    language_weight: float = 0.0
    plan_weight: float = 0.0


@dataclass(frozen=True)
class GuidanceSchedule:
    """Where s comes from: 'off' 0, 'flat' 1, 'adaptive' from TR, 'replay' from a recorded list.

    A replay separates how much guidance from when: the same list, shuffled, guides as often and
    as strongly but not at the moments that TR chose.
    """

    name: str = 'adaptive'
    replay_scales: tuple[float, ...] = ()  # one a replan, over all episodes of the policy's life
    on_end: str = 'error'  # or 'repeat': what a replan after the last one gets

    def __post_init__(self) -> None:
        if self.name not in GUIDANCE_SCHEDULES:
            raise InputError(
                f"guidance: got '{self.name}', expected one of {', '.join(GUIDANCE_SCHEDULES)}"
            )
        if self.on_end not in ON_END:
            raise InputError(
                f"guidance on_end: got '{self.on_end}', expected one of {', '.join(ON_END)}"
            )
        if (self.name == 'replay') != bool(self.replay_scales):
            raise InputError(
                f"guidance '{self.name}': got {len(self.replay_scales)} scales to replay; "
                "'replay' needs one or more, other schedules take none"
            )
        bad = [s for s in self.replay_scales if not (math.isfinite(s) and s >= 0)]
        if bad:
            raise InputError(
                f'guidance replay: got scale {bad[0]}, expected finite numbers of 0 or more'
            )

    def known_scale(self, position: int) -> float | None:
        """s of the replan at `position` (counted over episodes), or None if TR decides it.

        Raises InputError past the end of a replay.
        """
        if self.name == 'adaptive':
            return None
        if self.name != 'replay':
            return 1.0 if self.name == 'flat' else 0.0
        count = len(self.replay_scales)
        if position >= count and self.on_end == 'error':
            raise InputError(
                f'guidance replay: got replan {position + 1}, but the replay holds {count}; '
                "record more, or use on_end 'repeat'"
            )
        return self.replay_scales[position % count]


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


def guidance_weights(scale: float, config: GuidanceConfig) -> GuidanceWeights:
    """The weights of Algorithm 3 at scale s; raises InputError unless s is finite and >= 0."""
    if not (math.isfinite(scale) and scale >= 0):
        raise InputError(f'guidance scale: got {scale}, expected a finite number of 0 or more')
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
