"""The action head: video features, proprioception and a noisy chunk to the chunk's velocity.

Legend: b batch, t latent frame, n token, h query head, g key/value head, d width, e head width,
a action row, k action dimension. Source: paper App. A.1, spec section 1 "Action head".

Tokens stand in the order video (the prefix), state, actions (the suffix). Video tokens see the
video; the state sees the video and itself; actions see everything (or, `causal`, no later
action). So the prefix depends on nothing that changes over the Euler steps: its keys and values
are computed once, and only the suffix runs in every step (spec section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tr_vam_ros.vam.config import HeadConfig
from tr_vam_ros.vam.head_layers import AdaptiveRmsNorm, HeadLayer, Modulation, rotary_embedding
from tr_vam_ros.vam.temporal_ratio import frame_attention
from tr_vam_ros.vam.video_tokens import VideoTokens

# Shortest and longest period of the timestep's sin-cos features (pi0).
_TIMESTEP_PERIODS = (4e-3, 4.0)


class Modulations(NamedTuple):
    """Of every norm of the head by the action timestep; they depend on nothing else."""

    layers: tuple[tuple[Modulation, Modulation], ...]  # before attention, before the MLP
    final: Modulation

    def step(self, index: int) -> Modulations:
        """Those of one entry of the batch, as a batch of one."""
        def pick(modulation: Modulation) -> Modulation:
            return Modulation(*(part[index : index + 1] for part in modulation))

        layers = tuple((pick(attention), pick(mlp)) for attention, mlp in self.layers)
        return Modulations(layers, pick(self.final))


@dataclass(frozen=True)
class Prefix:
    """What the suffix needs of the video."""

    # Keys and values (b, g, n, e) of every layer; none where the timestep modulates the video,
    # because they then change in every Euler step and are made from the tokens (b, n, d).
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    tokens: torch.Tensor | None
    frames: int
    frame_tokens: int

    @staticmethod
    def batch(prefixes: Sequence[Prefix]) -> Prefix:
        """Several branches as one batch."""
        first = prefixes[0]
        return Prefix(
            tuple(torch.cat(layer) for layer in zip(*(prefix.keys for prefix in prefixes))),
            tuple(torch.cat(layer) for layer in zip(*(prefix.values for prefix in prefixes))),
            None if first.tokens is None else torch.cat([prefix.tokens for prefix in prefixes]),
            first.frames,
            first.frame_tokens,
        )


@dataclass(frozen=True)
class Suffix:
    """What stays the same over the Euler steps, besides the prefix."""

    prefix: Prefix
    state: torch.Tensor  # (b, 1, d), the proprioception's token
    rope: tuple[torch.Tensor, torch.Tensor]
    mask: torch.Tensor  # (1 + a, n + 1 + a), 0 or -inf


class ActionHead(nn.Module):
    """The velocity v_phi = eps - a0 of a normalised action chunk."""

    def __init__(self, config: HeadConfig, feature_width: int) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.video_tokens = VideoTokens(feature_width, width, config.feature_group)
        self.state_in = nn.Linear(config.padded_dim, width)
        self.action_in = nn.Linear(config.padded_dim, width)
        self.time_mlp = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.layers = nn.ModuleList(HeadLayer(config) for _ in range(config.layers))
        self.final_norm = AdaptiveRmsNorm(width)
        self.action_out = nn.Linear(width, config.padded_dim)

    def forward(
        self,
        features: torch.Tensor,
        video_sigma: torch.Tensor,
        proprio: torch.Tensor,
        actions: torch.Tensor,
        action_sigma: torch.Tensor,
    ) -> torch.Tensor:
        """Velocity (b, a, k) from scratch, as training calls it.

        Args:
            features, video_sigma: as in `prefix`.
            proprio: (b, p), normalised.
            actions: (b, a, k), the noisy chunk.
            action_sigma: (b,), its noise level in [0, 1].
        """
        suffix = self.suffix(self.prefix(features, video_sigma), proprio)
        return self.velocity(suffix, actions, self.modulations(action_sigma))

    def prefix(self, features: torch.Tensor, video_sigma: torch.Tensor) -> Prefix:
        """features (b, t, grid rows, grid columns, width) at noise level video_sigma (b,)."""
        frames = features.shape[1]
        tokens = self.video_tokens(features, video_sigma)
        frame_tokens = tokens.shape[1] // frames
        if self.config.adarms_scope == 'all':
            return Prefix((), (), tokens, frames, frame_tokens)
        return Prefix(*self._keys_and_values(tokens, None), None, frames, frame_tokens)

    def suffix(self, prefix: Prefix, proprio: torch.Tensor) -> Suffix:
        """What is left to compute with the prefix; proprio (b, p), normalised."""
        video = prefix.frames * prefix.frame_tokens
        state = self.state_in(self._pad(proprio))[:, None]
        rope = self._rope(video, 1 + self.config.horizon, state.device)
        mask = self._mask(video, state.device)
        additive = torch.zeros(mask.shape, dtype=state.dtype, device=state.device)
        return Suffix(prefix, state, rope, additive.masked_fill(~mask, -math.inf))

    def modulations(self, action_sigma: torch.Tensor) -> Modulations:
        """The action timestep's hold on every norm, for noise levels (b,) in [0, 1]."""
        condition = self._time_condition(action_sigma)
        layers = tuple(
            (layer.attention_norm.modulate(condition), layer.mlp_norm.modulate(condition))
            for layer in self.layers
        )
        return Modulations(layers, self.final_norm.modulate(condition))

    def velocity(
        self, suffix: Suffix, actions: torch.Tensor, modulations: Modulations
    ) -> torch.Tensor:
        """Velocity (b, a, k) of the noisy chunk (b, a, k)."""
        return self._run(suffix, actions, modulations, ())[0]

    def velocity_and_frame_attention(
        self,
        suffix: Suffix,
        actions: torch.Tensor,
        modulations: Modulations,
        layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """As `velocity`, and the attention mass on each latent frame, (b, t) by layer.

        layers: 1-indexed; the TR layer is always among the answers.
        """
        wanted = sorted({self.config.tr_layer, *layers})
        velocity, queries_keys = self._run(suffix, actions, modulations, wanted)
        # Without the state's row; unless causal, the action rows see everything.
        mask = suffix.mask[1:] if self.config.action_attention == 'causal' else None
        prefix = suffix.prefix
        return velocity, {
            layer: frame_attention(
                query[:, :, 1:], key, prefix.frames, prefix.frame_tokens, mask
            )
            for layer, (query, key) in queries_keys.items()
        }

    def _run(
        self,
        suffix: Suffix,
        actions: torch.Tensor,
        modulations: Modulations,
        keep: Sequence[int],
    ) -> tuple[torch.Tensor, dict[int, tuple[torch.Tensor, torch.Tensor]]]:
        """Velocity, and query and key of the layers to keep, of state and action tokens."""
        prefix = suffix.prefix
        keys, values = prefix.keys, prefix.values
        if prefix.tokens is not None:
            keys, values = self._keys_and_values(prefix.tokens, modulations)
        rows = self.action_in(self._pad(actions))
        tokens = torch.cat([suffix.state.expand(len(rows), -1, -1), rows], dim=1)
        kept = {}
        for index, layer in enumerate(self.layers):
            before_attention, before_mlp = modulations.layers[index]
            query, key, value, gate = layer.project(tokens, before_attention, suffix.rope)
            key = torch.cat([keys[index], key], dim=2)
            value = torch.cat([values[index], value], dim=2)
            if index + 1 in keep:
                kept[index + 1] = query, key
            tokens = layer.attend(tokens, before_mlp, query, key, value, gate, suffix.mask)
        rows, _ = self.final_norm(tokens[:, 1:], modulations.final)
        return self.action_out(rows)[..., : self.config.action_dim], kept

    def _keys_and_values(
        self, tokens: torch.Tensor, modulations: Modulations | None
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Of the video tokens (b, n, d), in every layer."""
        rope = self._rope(0, tokens.shape[1], tokens.device)
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            before_attention, before_mlp = (
                (None, None) if modulations is None else modulations.layers[index]
            )
            query, key, value, gate = layer.project(tokens, before_attention, rope)
            keys.append(key)
            values.append(value)
            if len(keys) < len(self.layers):  # nothing reads the video after the last layer
                tokens = layer.attend(tokens, before_mlp, query, key, value, gate, mask=None)
        return tuple(keys), tuple(values)

    def _mask(self, video: int, device: torch.device) -> torch.Tensor:
        """(1 + a, n + 1 + a) bool: what the state and each action row may look at."""
        rows = 1 + self.config.horizon
        mask = torch.ones(rows, video + rows, dtype=torch.bool, device=device)
        if self.config.action_attention == 'causal':
            return mask.tril(diagonal=video)
        mask[0, video + 1 :] = False
        return mask

    def _rope(
        self, start: int, count: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(start, start + count, device=device)
        return rotary_embedding(positions, self.config.head_dim)

    def _pad(self, values: torch.Tensor) -> torch.Tensor:
        return functional.pad(values, (0, self.config.padded_dim - values.shape[-1]))

    def _time_condition(self, action_sigma: torch.Tensor) -> torch.Tensor:
        """sin-cos -> MLP of the action timestep, (b,) -> (b, d)."""
        shortest, longest = _TIMESTEP_PERIODS
        # Angles reach 2 pi / 4e-3 = 1571 rad: in float32 they would be off by 1e-4 rad, and
        # differently so on each device.
        fraction = torch.linspace(
            0, 1, self.config.width // 2, dtype=torch.float64, device=action_sigma.device
        )
        period = shortest * (longest / shortest) ** fraction
        angles = 2 * math.pi * action_sigma.double()[:, None] / period
        features = torch.cat([angles.sin(), angles.cos()], dim=-1)
        return self.time_mlp(features.to(self.time_mlp[0].weight.dtype))
