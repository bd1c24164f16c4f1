"""Each optimisation of a replan, switched off for the length of a `with` block.

The numbers stay what they are (the tests hold this), only the time changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from tr_vam_ros.vam import VideoActionPolicy
from tr_vam_ros.vam.action_head import Modulations, Prefix, Suffix

ENCODED_FRAMES = 17  # what the stock pipeline encodes: the observation and a future to overwrite


@contextlib.contextmanager
def nothing(policy: VideoActionPolicy) -> Iterator[None]:
    yield


@contextlib.contextmanager
def early_stop(policy: VideoActionPolicy) -> Iterator[None]:
    """The pass that reads features runs to its end."""
    backbone = policy.backbone
    block = backbone.transformer.transformer_blocks[backbone.config.feature_block - 1]

    def features(latent, observation, sigma, context) -> torch.Tensor:
        captured = []
        handle = block.register_forward_hook(lambda *arguments: captured.append(arguments[2]))
        try:
            backbone.velocity(latent, observation, sigma, context)
        finally:
            handle.remove()
        return captured[0].to(latent.dtype).unflatten(
            1, (latent.shape[2], *backbone.feature_grid)
        )

    with _replaced(backbone, features=features):
        yield


@contextlib.contextmanager
def single_frame_encoding(policy: VideoActionPolicy) -> Iterator[None]:
    """The VAE encodes 17 frames, of which the first latent is used."""
    vae = policy.backbone.vae
    encode = vae.encode

    def encode_video(pixels: torch.Tensor):
        result = encode(pixels.repeat(1, 1, ENCODED_FRAMES, 1, 1))
        result.latent_dist.parameters = result.latent_dist.parameters[:, :, :1]
        result.latent_dist.mean = result.latent_dist.mean[:, :, :1]
        return result

    with _replaced(vae, encode=encode_video):
        yield


@contextlib.contextmanager
def prefix_cache(policy: VideoActionPolicy) -> Iterator[None]:
    """Keys and values of the video are computed again in every Euler step."""
    head = policy.head
    keys_and_values = head._keys_and_values

    def prefix(features: torch.Tensor, video_sigma: torch.Tensor) -> Prefix:
        tokens = head.video_tokens(features, video_sigma)
        frames = features.shape[1]
        return Prefix((), (), tokens, frames, tokens.shape[1] // frames)

    def unmodulated(tokens: torch.Tensor, modulations: Modulations | None):
        return keys_and_values(tokens, None)

    with _replaced(head, prefix=prefix, _keys_and_values=unmodulated):
        yield


@contextlib.contextmanager
def batched_branches(policy: VideoActionPolicy) -> Iterator[None]:
    """Branches run one after the other, in the video model and in the head."""
    backbone, head = policy.backbone, policy.head
    rollout, velocity = backbone.rollout, head.velocity

    def rollout_one_by_one(observation, noise, context) -> torch.Tensor:
        noises = noise.expand(len(context), -1, -1, -1, -1).split(1)
        return torch.cat([
            rollout(observation, own, text) for own, text in zip(noises, context.split(1))
        ])

    def velocity_one_by_one(suffix: Suffix, actions, modulations) -> torch.Tensor:
        return torch.cat([
            velocity(replace(suffix, prefix=_entry(suffix.prefix, i)), chunk, modulations)
            for i, chunk in enumerate(actions.split(1))
        ])

    with (
        _replaced(backbone, rollout=rollout_one_by_one),
        _replaced(head, velocity=velocity_one_by_one),
    ):
        yield


def _entry(prefix: Prefix, index: int) -> Prefix:
    def pick(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[index : index + 1] for tensor in tensors)

    tokens = None if prefix.tokens is None else prefix.tokens[index : index + 1]
    return replace(prefix, keys=pick(prefix.keys), values=pick(prefix.values), tokens=tokens)


@contextlib.contextmanager
def _replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Attributes of one object that hide those of its class."""
    for name, value in attributes.items():
        object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            object.__delattr__(owner, name)
