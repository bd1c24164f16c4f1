"""The video-action policy: one observation to one action chunk, guided by the Temporal Ratio.

Legend: t latent frame, p proprioception, a action row, k action dimension. Source: paper Algorithm 3,
read lazily (spec section 3): the conditional branch says whether the other two are needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.action_head import ActionHead, Prefix
from tr_vam_ros.vam.chunk_sampler import ChunkSampler
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.flow_schedule import sigma_grid
from tr_vam_ros.vam.frozen_rows import FrozenRows
from tr_vam_ros.vam.guidance import (
    GuidanceSchedule,
    GuidanceWeights,
    adaptive_scale,
    baseline_warning,
    guidance_weights,
)
from tr_vam_ros.vam.noise import ReplanNoise
from tr_vam_ros.vam.observation import check_frozen_rows, check_image, check_proprio
from tr_vam_ros.vam.precision import choose_precision
from tr_vam_ros.vam.random_weights import initialise_backbone, initialise_head, seeded
from tr_vam_ros.vam.reason_text import ReasonConditioning
from tr_vam_ros.vam.replan import Replan
from tr_vam_ros.vam.stopwatch import Stopwatch
from tr_vam_ros.vam.temporal_ratio import ratio_of_frames
from tr_vam_ros.vam.text import make_text
from tr_vam_ros.vam.text_conditioning import TextConditioning, check_instruction
from tr_vam_ros.vam.video_backbone import VideoBackbone


class VideoActionPolicy:
    """Backbone, text and head behind one method, `replan`.

    Call it from one thread at a time; it changes no global torch state, and what a replan
    returns depends on weights, seed, episode key, index, baseline and observation alone.
    """

    def __init__(
        self,
        config: VamConfig,
        backbone: VideoBackbone,
        text: TextConditioning | ReasonConditioning,
        head: ActionHead,
        *,
        seed: int = 0,
        schedule: GuidanceSchedule = GuidanceSchedule(),
    ) -> None:
        self.config = config
        self.backbone = backbone.eval()
        self.text = text.eval()
        self.head = head.eval()
        self.seed = seed
        self.schedule = schedule
        self._sigma = float(sigma_grid(config.video.steps, config.video.shift)[
            config.video.extract_index
        ])
        self._episode = 0
        self._key: str | None = None
        self._index = 0
        self._committed = 0
        self._baseline: float | None = None
        self._context: torch.Tensor | None = None
        with torch.inference_mode():
            self._null_context = self.text.null(config.guidance.null_text)
        self._statistics = {
            name: (np.array(values.mean), np.array(values.std))
            for name, values in (
                ('proprio', config.statistics.proprio), ('action', config.statistics.action)
            )
        }

    @classmethod
    def from_config(
        cls,
        config: VamConfig,
        seed: int = 0,
        guidance: str = 'adaptive',
        precision: str = 'float32',
        *,
        replay_scales: Sequence[float] = (),
        on_end: str = 'error',
        device: str | torch.device = 'cpu',
    ) -> VideoActionPolicy:
        """A policy of random weights, deterministic in `seed`, which also keys the noise.

        Args:
            guidance: 'off', 'flat', 'adaptive', or 'replay' with `replay_scales` and `on_end`.
            precision: of the video model's products, 'float32', 'bfloat16' (the paper's) or
                'auto'.

        Raises InputError for another.
        """
        schedule = GuidanceSchedule(guidance, tuple(replay_scales), on_end)
        products = choose_precision(precision)
        with seeded(seed):
            backbone = VideoBackbone(config)
            text = make_text(config.text, config.transformer.text_embed_dim)
            head = ActionHead(config.head, config.transformer.width)
            initialise_backbone(backbone, config.image.height, config.image.width)
            initialise_head(head)
        backbone.precision = products
        for network in (backbone, text, head):
            network.to(device)
        return cls(config, backbone, text, head, seed=seed, schedule=schedule)

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str], **options: Any
    ) -> VideoActionPolicy:
        """The policy of a checkpoint folder or Hub repository: `load_policy`, with its options."""
        from tr_vam_ros.vam.checkpoint import load_policy

        return load_policy(source, **options)

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write a checkpoint: `save_policy`, with its options."""
        from tr_vam_ros.vam.checkpoint import save_policy

        return save_policy(self, folder, **options)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the image that `replan` takes."""
        return self.config.image.height, self.config.image.width

    @property
    def baseline(self) -> float | None:
        """TR0 of the running episode; None until a replan of it was committed."""
        return self._baseline

    @property
    def unused_replay_scales(self) -> int:
        """How many recorded scales no committed replan has used yet."""
        return max(0, len(self.schedule.replay_scales) - self._committed)

    def reset_episode(self, instruction: str, key: str) -> None:
        """Begin an episode: no baseline, replan index 0, noise keyed by `key`.

        Raises InputError, and keeps the running episode, if the instruction is empty or longer
        than 2000 characters.
        """
        instruction = check_instruction(instruction)
        with torch.inference_mode():
            context = self.text(instruction)
        self._episode += 1
        self._key, self._index, self._baseline = key, 0, None
        self._context = context

    def commit(self, replan: Replan) -> None:
        """`replan` was published: it sets the baseline if there is none, and the next index.

        Raises InputError for a replan of another episode, and changes nothing.
        """
        if replan.episode != self._episode:
            raise InputError(
                f"commit: got a replan of episode '{replan.key}', which has ended; drop it"
            )
        if self._baseline is None:
            self._baseline = replan.temporal_ratio
        self._index = replan.index + 1
        self._committed += 1

    def replan(
        self,
        image: np.ndarray,
        proprio: np.ndarray,
        *,
        index: int | None = None,
        commit: bool = True,
        scale: float | None = None,
        layers: Sequence[int] = (),
        frozen_rows: np.ndarray | None = None,
    ) -> Replan:
        """The next action chunk.

        Args:
            image: uint8 (height, width, 3) of `image_size`, RGB.
            proprio: float32 (p,) in embodiment units (YAM: rad, gripper 0..1).
            index: of the replan in the episode; None counts up from the last committed one.
            commit: whether to `commit` at once. With False nothing changes, and the caller
                commits when the chunk is published.
            scale: s of this replan, whatever the schedule says (replay of a record).
            layers: further layers of the head, 1-indexed, whose attention is read as well.
            frozen_rows: float (f, k) in embodiment units, the chunk's first rows, which are being
                executed already. They steer the rest where `guidance.frozen_rows_weight` is
                above 0, at the price of a backward pass through the head in each Euler step.

        Raises InputError on an observation of wrong shape, type or value, before an episode
        began, past the end of a replay, or if the weights produce actions that are not finite.
        """
        if self._key is None or self._context is None:
            raise InputError('replan: no episode is running; call reset_episode first')
        image = check_image(image, self.image_size)
        state = self._normalised_proprio(check_proprio(proprio, self.config.head.proprio_dim))
        index = self._index if index is None else index
        if index < 0:
            raise InputError(f'replan: got index {index}, expected 0 or more')
        depth = self.config.head.layers
        if not all(1 <= layer <= depth for layer in layers):
            raise InputError(f'replan: got layers {tuple(layers)}, expected 1 to {depth}')
        if scale is None:
            scale = self.schedule.known_scale(self._committed)
        frozen = self._frozen(frozen_rows)
        # Autograd, which the frozen rows need, takes no tensor that inference mode has made.
        with torch.inference_mode() if frozen is None else torch.no_grad():
            replan = self._algorithm_3(image, state, self._key, index, scale, layers, frozen)
        if commit:
            self.commit(replan)
        return replan

    def _algorithm_3(
        self,
        image: np.ndarray,
        state: torch.Tensor,
        key: str,
        index: int,
        scale: float | None,
        layers: Sequence[int],
        frozen: FrozenRows | None,
    ) -> Replan:
        """`scale` None: TR decides, so the null and plan branches wait for it."""
        watch = Stopwatch()
        config = self.config
        noise = ReplanNoise(config, self._device, seed=self.seed, key=key, index=index)
        observation = self.backbone.encode(image)
        watch.lap('encode')

        weights = GuidanceWeights() if scale is None else guidance_weights(scale, config.guidance)
        branches = ['conditional']
        if weights.language_weight > 0:  # as long as the conditional one: one batch with it
            branches.append('null')
        features = self._short_rollout(observation, noise, branches)
        watch.lap('conditional')

        prefixes = {'conditional': self._prefix(features['conditional'])}
        sampler = ChunkSampler(self.head, state, noise.chunk())
        attention = {
            layer: mass.cpu().numpy()
            for layer, mass in sampler.begin(prefixes['conditional'], layers).items()
        }
        frame_attention = attention[config.head.tr_layer]
        ratio = ratio_of_frames(frame_attention)
        baseline = ratio if self._baseline is None else self._baseline
        if scale is None:
            scale = adaptive_scale(ratio, baseline, config.guidance.cap)
            weights = guidance_weights(scale, config.guidance)
        watch.lap('head')

        if weights.language_weight > 0:
            if 'null' not in features:
                features |= self._short_rollout(observation, noise, ['null'])
            prefixes['null'] = self._prefix(features['null'])
            watch.lap('null')
        if weights.plan_weight > 0:
            plan = self.backbone.rollout(observation, noise.video('plan'), self._context)
            prefixes['plan'] = self._prefix(plan[:, : config.video.frames])
            watch.lap('plan')

        actions = self._embodiment_actions(sampler.finish(prefixes, weights, frozen))
        watch.lap('head')
        return Replan(
            actions=actions,
            temporal_ratio=ratio,
            baseline=baseline,
            scale=weights.scale,
            language_weight=weights.language_weight,
            plan_weight=weights.plan_weight,
            frame_attention=frame_attention,
            layer_attention={layer: attention[layer] for layer in layers},
            branches=tuple(prefixes),
            milliseconds=watch.milliseconds(),
            warning=baseline_warning(baseline),
            key=key,
            index=index,
            episode=self._episode,
        )

    def _short_rollout(
        self, observation: torch.Tensor, noise: ReplanNoise, branches: list[str]
    ) -> dict[str, torch.Tensor]:
        """Features (1, t, rows, columns, width) of 'conditional', 'null' or both in one batch."""
        frames = self.config.video.frames
        contexts = {'conditional': self._context, 'null': self._null_context}
        words = max(contexts[name].shape[1] for name in branches)
        features = self.backbone.rollout(
            observation,
            torch.cat([noise.video(name)[:, :, :frames] for name in branches]),
            # One word of nothing says as much as many.
            torch.cat([contexts[name].expand(-1, words, -1) for name in branches]),
        )
        return dict(zip(branches, features.split(1)))

    def _prefix(self, features: torch.Tensor) -> Prefix:
        sigma = torch.full(
            (len(features),), self._sigma, dtype=torch.float64, device=self._device
        )
        return self.head.prefix(features, sigma)

    @property
    def _device(self) -> torch.device:
        return self._null_context.device

    def _frozen(self, rows: np.ndarray | None) -> FrozenRows | None:
        """None where there is nothing to steer towards."""
        head, weight = self.config.head, self.config.guidance.frozen_rows_weight
        if rows is None or len(rows) == 0:
            return None
        rows = check_frozen_rows(rows, head.horizon, head.action_dim)
        if weight == 0.0:
            return None
        mean, std = self._statistics['action']
        normalised = torch.from_numpy(((rows - mean) / std).astype(np.float32))
        return FrozenRows(normalised.to(self._device), weight)

    def _normalised_proprio(self, proprio: np.ndarray) -> torch.Tensor:
        """(1, p) float32, clipped to the deviations at which a reading still says something."""
        mean, std = self._statistics['proprio']
        limit = self.config.head.proprio_clip
        normalised = np.clip((proprio - mean) / std, -limit, limit).astype(np.float32)
        return torch.from_numpy(normalised)[None].to(self._device)

    def _embodiment_actions(self, chunk: torch.Tensor) -> np.ndarray:
        """float32 (a, k) in embodiment units."""
        mean, std = self._statistics['action']
        actions = (mean + std * chunk[0].cpu().numpy()).astype(np.float32)
        if not np.isfinite(actions).all():
            raise InputError(
                'replan: the weights produced actions that are not finite; load other weights'
            )
        return actions
