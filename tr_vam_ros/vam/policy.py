"""The video-action policy: one observation to one action chunk, guided by the Temporal Ratio.

Legend: b branch, t latent frame, a action row, k action dimension. Source: paper Algorithm 3,
read lazily (spec section 3): the conditional branch says whether the other two are needed.
"""

from __future__ import annotations

import numpy as np
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.action_head import ActionHead, Prefix
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.flow_schedule import sigma_grid
from tr_vam_ros.vam.guidance import (
    GuidanceWeights,
    baseline_warning,
    check_schedule,
    guidance_weights,
    guided_velocity,
)
from tr_vam_ros.vam.noise import keyed_noise
from tr_vam_ros.vam.observation import check_image, check_proprio
from tr_vam_ros.vam.precision import choose_precision
from tr_vam_ros.vam.random_weights import initialise_backbone, initialise_head, seeded
from tr_vam_ros.vam.replan import Replan
from tr_vam_ros.vam.stopwatch import Stopwatch
from tr_vam_ros.vam.temporal_ratio import ratio_of_frames
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
        text: TextConditioning,
        head: ActionHead,
        *,
        seed: int = 0,
        guidance: str = 'adaptive',
    ) -> None:
        self.config = config
        self.backbone = backbone.eval()
        self.text = text.eval()
        self.head = head.eval()
        self.seed = seed
        self.guidance = check_schedule(guidance)
        self._sigma = float(sigma_grid(config.video.steps, config.video.shift)[
            config.video.extract_index
        ])
        self._episode = 0
        self._key: str | None = None
        self._index = 0
        self._baseline: float | None = None
        self._context: torch.Tensor | None = None
        with torch.inference_mode():
            self._null_context = self.text.null()
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
    ) -> VideoActionPolicy:
        """A policy of random weights, deterministic in `seed`, which also keys the noise.

        guidance: 'off', 'flat' or 'adaptive'. precision: of the video model's products,
        'float32', 'bfloat16' (the paper's) or 'auto'. Raises InputError for another.
        """
        check_schedule(guidance)
        products = choose_precision(precision)
        with seeded(seed):
            backbone = VideoBackbone(config)
            text = TextConditioning(config.text, config.transformer.text_embed_dim)
            head = ActionHead(config.head, config.transformer.width)
            initialise_backbone(backbone, config.image.height, config.image.width)
            initialise_head(head)
        backbone.precision = products
        return cls(config, backbone, text, head, seed=seed, guidance=guidance)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the image that `replan` takes."""
        return self.config.image.height, self.config.image.width

    @property
    def baseline(self) -> float | None:
        """TR0 of the running episode; None until a replan of it was committed."""
        return self._baseline

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

    def replan(
        self,
        image: np.ndarray,
        proprio: np.ndarray,
        *,
        index: int | None = None,
        commit: bool = True,
    ) -> Replan:
        """The next action chunk.

        Args:
            image: uint8 (height, width, 3) of `image_size`, RGB.
            proprio: float32 (p,) in embodiment units (YAM: rad, gripper 0..1).
            index: of the replan in the episode; None counts up from the last committed one.
            commit: whether to `commit` at once. With False nothing changes, and the caller
                commits when the chunk is published.

        Raises InputError on an observation of wrong shape, type or value, before an episode
        began, or if the weights produce actions that are not finite.
        """
        if self._key is None or self._context is None:
            raise InputError('replan: no episode is running; call reset_episode first')
        image = check_image(image, self.image_size)
        state = self._normalised_proprio(check_proprio(proprio, self.config.head.proprio_dim))
        index = self._index if index is None else index
        if index < 0:
            raise InputError(f'replan: got index {index}, expected 0 or more')
        with torch.inference_mode():
            replan = self._algorithm_3(image, state, self._key, index)
        if commit:
            self.commit(replan)
        return replan

    def _algorithm_3(
        self, image: np.ndarray, state: torch.Tensor, key: str, index: int
    ) -> Replan:
        watch = Stopwatch()
        video_noise, chunk = self._noise(key, index)
        observation = self.backbone.encode(image)
        watch.lap('encode')

        # Only adaptive must wait for TR; the others know at once which branches they need.
        weights = guidance_weights(self.guidance, self.config.guidance)
        contexts = [self._context]
        if weights.language_weight > 0:  # same frames and noise: one batch with the conditional
            contexts.append(self._null_context.expand_as(self._context))
        short_noise = video_noise[:, :, : self.config.video.frames]
        features = self.backbone.rollout(observation, short_noise, torch.cat(contexts))
        watch.lap('conditional')

        conditional = self._prefix(features[:1])
        velocity, attention = self.head.velocity_and_frame_attention(
            conditional, state, chunk, self._sigmas(1.0, 1)
        )
        frame_attention = attention[0].cpu().numpy()
        ratio = ratio_of_frames(frame_attention)
        baseline = ratio if self._baseline is None else self._baseline
        weights = guidance_weights(self.guidance, self.config.guidance, ratio, baseline)
        watch.lap('head')

        prefixes = {'conditional': conditional}
        if weights.language_weight > 0:
            if len(features) == 1:
                null = self.backbone.rollout(observation, short_noise, self._null_context)
            else:
                null = features[1:]
            prefixes['null'] = self._prefix(null)
            watch.lap('null')
        if weights.plan_weight > 0:
            plan = self.backbone.rollout(observation, video_noise, self._context)
            prefixes['plan'] = self._prefix(plan[:, : self.config.video.frames])
            watch.lap('plan')

        chunk = self._denoise(chunk, velocity, prefixes, weights, state)
        actions = self._embodiment_actions(chunk)
        watch.lap('head')
        return Replan(
            actions=actions,
            temporal_ratio=ratio,
            baseline=baseline,
            scale=weights.scale,
            language_weight=weights.language_weight,
            plan_weight=weights.plan_weight,
            frame_attention=frame_attention,
            branches=tuple(prefixes),
            milliseconds=watch.milliseconds(),
            warning=baseline_warning(baseline),
            key=key,
            index=index,
            episode=self._episode,
        )

    def _denoise(
        self,
        chunk: torch.Tensor,
        velocity: torch.Tensor,
        prefixes: dict[str, Prefix],
        weights: GuidanceWeights,
        state: torch.Tensor,
    ) -> torch.Tensor:
        """Euler steps from sigma 1 to 0 on the guided velocity, all branches in one batch.

        `velocity` (1, a, k) is the conditional one of the first step, known from reading TR.
        """
        steps = self.config.head.euler_steps
        names = list(prefixes)
        batch = Prefix.batch(list(prefixes.values()))
        for step in range(steps):
            sigma = 1.0 - step / steps
            if step == 0:
                by_branch = {'conditional': velocity}
                if len(names) > 1:
                    others = Prefix.batch([prefixes[name] for name in names[1:]])
                    by_branch |= self._velocities(names[1:], others, state, chunk, sigma)
            else:
                by_branch = self._velocities(names, batch, state, chunk, sigma)
            chunk = chunk - guided_velocity(by_branch, weights) / steps
        return chunk

    def _velocities(
        self, names: list[str], prefix: Prefix, state: torch.Tensor, chunk: torch.Tensor,
        sigma: float,
    ) -> dict[str, torch.Tensor]:
        """The velocity (1, a, k) of each branch at the one chunk they share."""
        count = len(names)
        velocities = self.head.velocity(
            prefix, state.expand(count, -1), chunk.expand(count, -1, -1),
            self._sigmas(sigma, count),
        )
        return dict(zip(names, velocities.split(1)))

    def _prefix(self, features: torch.Tensor) -> Prefix:
        return self.head.prefix(features, self._sigmas(self._sigma, len(features)))

    def _sigmas(self, sigma: float, count: int) -> torch.Tensor:
        return torch.full((count,), sigma, device=self._null_context.device)

    def _noise(self, key: str, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Video noise (1, c, plan frames, h, w) and action noise (1, a, k) of a replan.

        The video's is drawn for the plan branch even where that does not run, and the chunk's
        has a stream of its own: so a branch that is skipped changes no number anywhere.
        """
        names = {'seed': self.seed, 'key': key, 'index': index}
        video_shape = (
            1, self.config.vae.z_dim, self.config.video.plan_frames, *self.config.latent_size
        )
        chunk_shape = 1, self.config.head.horizon, self.config.head.action_dim
        device = self._null_context.device
        return (
            keyed_noise(video_shape, **names, stream='video').to(device),
            keyed_noise(chunk_shape, **names, stream='action').to(device),
        )

    def _normalised_proprio(self, proprio: np.ndarray) -> torch.Tensor:
        """(1, p) float32, clipped to the deviations at which a reading still says something."""
        mean, std = self._statistics['proprio']
        limit = self.config.head.proprio_clip
        normalised = np.clip((proprio - mean) / std, -limit, limit).astype(np.float32)
        return torch.from_numpy(normalised)[None].to(self._null_context.device)

    def _embodiment_actions(self, chunk: torch.Tensor) -> np.ndarray:
        """float32 (a, k) in embodiment units."""
        mean, std = self._statistics['action']
        actions = (mean + std * chunk[0].cpu().numpy()).astype(np.float32)
        if not np.isfinite(actions).all():
            raise InputError(
                'replan: the weights produced actions that are not finite; load other weights'
            )
        return actions
