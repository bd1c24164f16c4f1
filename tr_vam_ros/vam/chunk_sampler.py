"""From noise to an action chunk: Euler steps on the guided velocity.

Legend: b branch, a action row, k action dimension, t latent frame. Source: paper App. A.1
"Sampling" and Algorithm 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tr_vam_ros.vam.action_head import ActionHead, Prefix
from tr_vam_ros.vam.frozen_rows import FrozenRows
from tr_vam_ros.vam.guidance import GuidanceWeights, guided_velocity


class ChunkSampler:
    """The steps of one replan, sigma from 1 to 0: `begin` once, then `finish`.

    All branches go through the head as one batch; what the action timesteps do to the norms is
    computed for all steps at once.
    """

    def __init__(self, head: ActionHead, proprio: torch.Tensor, noise: torch.Tensor) -> None:
        """proprio: (1, p), normalised; noise: (1, a, k)."""
        self._head, self._proprio, self._noise = head, proprio, noise
        steps = head.config.euler_steps
        sigmas = 1.0 - torch.arange(steps, dtype=torch.float64, device=noise.device) / steps
        self._modulations = head.modulations(sigmas)

    def begin(
        self, conditional: Prefix, layers: Sequence[int] = ()
    ) -> dict[int, torch.Tensor]:
        """The conditional branch's first step: its attention mass by frame, (t,) by layer."""
        suffix = self._head.suffix(conditional, self._proprio)
        self._first, attention = self._head.velocity_and_frame_attention(
            suffix, self._noise, self._modulations.step(0), layers
        )
        return {layer: mass[0] for layer, mass in attention.items()}

    def finish(
        self,
        prefixes: dict[str, Prefix],
        weights: GuidanceWeights,
        frozen: FrozenRows | None = None,
    ) -> torch.Tensor:
        """The chunk (1, a, k), normalised; `prefixes` by branch, the conditional one first."""
        names = list(prefixes)
        steps = self._head.config.euler_steps
        chunk = self._noise
        suffix = self._head.suffix(Prefix.batch(list(prefixes.values())), self._proprio)
        for step in range(steps):
            if frozen is not None:
                guided = frozen.steer(
                    chunk,
                    1.0 - step / steps,
                    lambda noisy, step=step: guided_velocity(
                        self._velocities(names, suffix, noisy, step), weights
                    ),
                )
                chunk = chunk - guided / steps
                continue
            if step == 0:  # the conditional velocity is known from reading TR
                velocities = {'conditional': self._first}
                if len(names) > 1:
                    others = Prefix.batch([prefixes[name] for name in names[1:]])
                    beside = self._head.suffix(others, self._proprio)
                    velocities |= self._velocities(names[1:], beside, chunk, step)
            else:
                velocities = self._velocities(names, suffix, chunk, step)
            chunk = chunk - guided_velocity(velocities, weights) / steps
        return chunk

    def _velocities(
        self, names: list[str], suffix, chunk: torch.Tensor, step: int
    ) -> dict[str, torch.Tensor]:
        """The velocity (1, a, k) of each branch at the one chunk they share."""
        chunks = chunk.expand(len(names), -1, -1)
        velocities = self._head.velocity(suffix, chunks, self._modulations.step(step))
        return dict(zip(names, velocities.split(1)))
