"""Algorithm 3 as the paper writes it: all branches, always, in every Euler step.

A second model to hold the policy against, written from the paper and the spec (section 3) alone.
Legend: c channel, t latent frame, h w latent rows and columns, a action row, k action dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from test.oracle.naive_head import NaiveHead, action_sigmas, frame_mass
from test.oracle.naive_video import NaiveVideo
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.noise import keyed_noise

SMALLEST_BASELINE = 1e-6
CONDITIONAL, NULL, PLAN = 'conditional', 'null', 'plan'


@dataclass(frozen=True, eq=False)
class NaiveReplan:
    chunk: np.ndarray  # (a, k) normalised
    actions: np.ndarray  # (a, k) in embodiment units
    temporal_ratio: float
    baseline: float
    scale: float
    language_weight: float
    plan_weight: float
    frame_attention: np.ndarray  # (t,)
    layer_attention: dict[int, np.ndarray]  # of every layer, 1-indexed, (t,)


class NaivePolicy:
    def __init__(
        self,
        config: VamConfig,
        backbone: torch.nn.Module,
        text: torch.nn.Module,
        head_weights: dict[str, torch.Tensor],
        *,
        seed: int,
        guidance: str,
        replay_scales: Sequence[float] = (),
        on_end: str = 'error',
    ) -> None:
        self.config = config
        self.video = NaiveVideo(config, backbone)
        self.text = text
        self.head = NaiveHead(config.head, head_weights)
        self.seed = seed
        self.guidance = guidance
        self.replay_scales = list(replay_scales)
        self.on_end = on_end
        self.replans = 0  # of all episodes

    def reset_episode(self, instruction: str, key: str) -> None:
        self.instruction = instruction
        self.key = key
        self.index = 0
        self.baseline: float | None = None

    @torch.no_grad()
    def replan(
        self,
        image: np.ndarray,
        proprio: np.ndarray,
        features: dict[str, torch.Tensor] | None = None,
        frozen_rows: np.ndarray | None = None,
    ) -> NaiveReplan:
        """uint8 (height, width, 3) and (p,) in embodiment units to a chunk.

        features: those of the image in this replan, where another schedule has them already.
        """
        config, head = self.config, self.config.head
        features = features or self.features(image)
        state = self.normalised_proprio(proprio)
        chunk = self.noise('action', (1, head.horizon, head.action_dim))[0].double()
        video_sigma = self.video.grid[config.video.extract_index]
        for step, action_sigma in enumerate(action_sigmas(head.euler_steps)):
            velocity, attention = {}, {}
            for branch in (CONDITIONAL, NULL, PLAN):
                velocity[branch], attention[branch] = self.head.velocity(
                    features[branch], video_sigma, state, chunk, action_sigma
                )
            if step == 0:
                mass = [
                    frame_mass(layer, config.video.frames, head.horizon).numpy()
                    for layer in attention[CONDITIONAL]
                ]
                frame_attention = mass[head.tr_layer - 1]
                ratio = float(frame_attention[1:].sum() / frame_attention[0])
                scale = self.scale(ratio)
                language_weight = config.guidance.language_weight * scale
                plan_weight = config.guidance.plan_weight * scale
            guided = (
                velocity[CONDITIONAL]
                + language_weight * (velocity[CONDITIONAL] - velocity[NULL])
                + plan_weight * (velocity[PLAN] - velocity[CONDITIONAL])
            )
            if frozen_rows is not None:
                weights = language_weight, plan_weight
                guided += self.pull(
                    features, video_sigma, state, chunk, action_sigma, weights, frozen_rows
                )
            chunk = chunk - guided / head.euler_steps
        self.index += 1
        self.replans += 1
        action = config.statistics.action
        return NaiveReplan(
            chunk=chunk.numpy(),
            actions=np.array(action.mean) + np.array(action.std) * chunk.numpy(),
            temporal_ratio=ratio,
            baseline=self.baseline,
            scale=scale,
            language_weight=language_weight,
            plan_weight=plan_weight,
            frame_attention=frame_attention,
            layer_attention={i + 1: layer for i, layer in enumerate(mass)},
        )

    def pull(
        self, features, video_sigma, state, chunk, action_sigma, weights, frozen_rows
    ) -> torch.Tensor:
        """What real-time chunking adds to the velocity (Black et al. 2025, eq. 2 to 4)."""
        action = self.config.statistics.action
        target = torch.tensor((frozen_rows - np.array(action.mean)) / np.array(action.std))

        def clean(noisy: torch.Tensor) -> torch.Tensor:
            velocity = {
                branch: self.head.velocity(
                    features[branch], video_sigma, state, noisy, action_sigma
                )[0]
                for branch in (CONDITIONAL, NULL, PLAN)
            }
            guided = (
                velocity[CONDITIONAL]
                + weights[0] * (velocity[CONDITIONAL] - velocity[NULL])
                + weights[1] * (velocity[PLAN] - velocity[CONDITIONAL])
            )
            return noisy - action_sigma * guided

        with torch.enable_grad():
            estimate, transposed_jacobian = torch.func.vjp(clean, chunk)
            mask = torch.zeros_like(chunk)
            mask[: len(target)] = 1.0
            full = torch.cat([target, torch.zeros_like(chunk[len(target):])])
            (gradient,) = transposed_jacobian((full - estimate.detach()) * mask)
        tau, beta = 1 - float(action_sigma), self.config.guidance.frozen_rows_weight
        r_squared = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        strength = beta if tau == 0 else min(beta, (1 - tau) / (tau * r_squared))
        # Their velocity points to the data, ours to the noise.
        return -strength * gradient

    @torch.no_grad()
    def features(self, image: np.ndarray) -> dict[str, torch.Tensor]:
        """Features of each branch, (t, rows, columns, d), t of the policy's horizon."""
        config = self.config
        frames, plan_frames = config.video.frames, config.video.plan_frames
        shape = (1, config.transformer.out_channels, plan_frames, *config.latent_size)
        streams = {branch: 'video' for branch in (CONDITIONAL, NULL, PLAN)}
        if config.guidance.branch_noise == 'independent':
            streams.update({NULL: 'video.null', PLAN: 'video.plan'})
        noise = {branch: self.noise(stream, shape) for branch, stream in streams.items()}
        observation = self.video.encode(image)
        context, null = self.text(self.instruction), self.null_context()
        short = {branch: noise[branch][:, :, :frames] for branch in (CONDITIONAL, NULL)}
        return {
            CONDITIONAL: self.video.features(observation, short[CONDITIONAL], context),
            NULL: self.video.features(observation, short[NULL], null),
            PLAN: self.video.features(observation, noise[PLAN], context)[:frames],
        }

    def null_context(self) -> torch.Tensor:
        """The context of no text, (1, 1, d)."""
        null_text = self.config.guidance.null_text
        zeros = torch.zeros(1, 1, self.config.text.embed_dim)
        if null_text == 'zeros_before_projection':
            return self.text.projection(zeros)
        if null_text == 'zeros_after_projection':
            return torch.zeros(1, 1, self.config.transformer.text_embed_dim)
        return self.text.projection(zeros + self.text.position.weight[0])  # the empty prompt

    def scale(self, ratio: float) -> float:
        """s of this replan; the first one of an episode sets TR0."""
        if self.baseline is None:
            self.baseline = ratio
        if self.guidance == 'replay':
            if self.on_end == 'repeat':
                return self.replay_scales[self.replans % len(self.replay_scales)]
            return self.replay_scales[self.replans]
        if self.guidance in ('off', 'flat'):
            return float(self.guidance == 'flat')
        if not math.isfinite(self.baseline) or self.baseline < SMALLEST_BASELINE:
            return 0.0
        return min(max(ratio / self.baseline - 1, 0.0), self.config.guidance.cap)

    def normalised_proprio(self, proprio: np.ndarray) -> torch.Tensor:
        statistics, limit = self.config.statistics.proprio, self.config.head.proprio_clip
        deviations = (proprio - np.array(statistics.mean)) / np.array(statistics.std)
        return torch.tensor(deviations).clamp(-limit, limit)

    def noise(self, stream: str, shape: tuple[int, ...]) -> torch.Tensor:
        return keyed_noise(shape, seed=self.seed, key=self.key, index=self.index, stream=stream)
