"""Noise that depends on names alone: any replan can be repeated by itself, in any order."""

from __future__ import annotations

import hashlib
import json

import torch

from tr_vam_ros.vam.config import VamConfig

# By branch; an independent branch has a stream of its own.
VIDEO_STREAMS = {'conditional': 'video', 'null': 'video.null', 'plan': 'video.plan'}


def keyed_noise(
    shape: tuple[int, ...], *, seed: int, key: str, index: int, stream: str
) -> torch.Tensor:
    """Standard normal float32 of `shape` on the CPU, a function of the four names alone.

    Args:
        seed: of the policy.
        key: of the episode.
        index: of the replan in the episode.
        stream: what the noise is for; each stream is independent, so that a draw of another
            size elsewhere changes nothing here.
    """
    # JSON keeps the four apart ('a' + 'b1' against 'ab' + '1'); hash() differs between processes.
    name = json.dumps([seed, key, index, stream]).encode()
    digest = hashlib.sha256(name).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], 'big') >> 1)
    return torch.randn(shape, generator=generator)


class ReplanNoise:
    """The noise of one replan (spec section 3).

    The video's is drawn for the frames of the plan branch even where that does not run, and the
    chunk has a stream of its own: so a branch that is skipped changes no number anywhere.
    """

    def __init__(
        self, config: VamConfig, device: torch.device, *, seed: int, key: str, index: int
    ) -> None:
        self._config, self._device = config, device
        self._names = {'seed': seed, 'key': key, 'index': index}
        self._drawn: dict[str, torch.Tensor] = {}

    def video(self, branch: str) -> torch.Tensor:
        """(1, c, plan frames, h, w) for 'conditional', 'null' or 'plan'."""
        config = self._config
        is_common = config.guidance.branch_noise == 'common'
        stream = VIDEO_STREAMS['conditional' if is_common else branch]
        shape = (1, config.vae.z_dim, config.video.plan_frames, *config.latent_size)
        return self._draw(shape, stream)

    def chunk(self) -> torch.Tensor:
        """(1, a, k)."""
        return self._draw((1, self._config.head.horizon, self._config.head.action_dim), 'action')

    def _draw(self, shape: tuple[int, ...], stream: str) -> torch.Tensor:
        if stream not in self._drawn:
            noise = keyed_noise(shape, **self._names, stream=stream)
            self._drawn[stream] = noise.to(self._device)
        return self._drawn[stream]
