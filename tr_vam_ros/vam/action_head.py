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

import torch
from torch import nn
from torch.nn import functional

from tr_vam_ros.vam.config import HeadConfig
from tr_vam_ros.vam.head_layers import AdaptiveRmsNorm, HeadLayer, rotary_embedding
from tr_vam_ros.vam.temporal_ratio import frame_attention
from tr_vam_ros.vam.video_tokens import VideoTokens

# Shortest and longest period of the timestep's sin-cos features (pi0).
_TIMESTEP_PERIODS = (4e-3, 4.0)


@dataclass(frozen=True)
class Prefix:
    """What the suffix needs of the video: keys and values (b, g, n, e) of every layer."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    frames: int
    frame_tokens: int

    @staticmethod
    def batch(prefixes: Sequence[Prefix]) -> Prefix:
        """Several branches as one batch."""
        first = prefixes[0]
        return Prefix(
            tuple(torch.cat(layer) for layer in zip(*(prefix.keys for prefix in prefixes))),
            tuple(torch.cat(layer) for layer in zip(*(prefix.values for prefix in prefixes))),
            first.frames,
            first.frame_tokens,
        )


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
        """Velocity (b, a, k) from scratch, as training calls it; arguments as below."""
        prefix = self.prefix(features, video_sigma)
        return self.velocity(prefix, proprio, actions, action_sigma)

    def prefix(self, features: torch.Tensor, video_sigma: torch.Tensor) -> Prefix:
        """features (b, t, grid rows, grid columns, width) at noise level video_sigma (b,)."""
        frames = features.shape[1]
        tokens = self.video_tokens(features, video_sigma)
        rope = self._rope(0, tokens.shape[1], tokens.device)
        keys, values = [], []
        for layer in self.layers:
            query, key, value, gate = layer.project(tokens, None, rope)
            keys.append(key)
            values.append(value)
            if len(keys) < len(self.layers):  # nothing reads the video after the last layer
                tokens = layer.attend(tokens, None, query, key, value, gate, mask=None)
        return Prefix(tuple(keys), tuple(values), frames, tokens.shape[1] // frames)

    def velocity(
        self,
        prefix: Prefix,
        proprio: torch.Tensor,
        actions: torch.Tensor,
        action_sigma: torch.Tensor,
    ) -> torch.Tensor:
        """Velocity (b, a, k).

        Args:
            prefix: of batch b.
            proprio: (b, p), normalised.
            actions: (b, a, k), the noisy chunk.
            action_sigma: (b,), its noise level in [0, 1].
        """
        return self._suffix(prefix, proprio, actions, action_sigma)[0]

    def velocity_and_frame_attention(
        self,
        prefix: Prefix,
        proprio: torch.Tensor,
        actions: torch.Tensor,
        action_sigma: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `velocity`, and the attention mass on each latent frame at the TR layer, (b, t)."""
        velocity, query_key = self._suffix(prefix, proprio, actions, action_sigma)
        query, key = query_key
        mask = self._mask(prefix, actions.device)[1:]
        attention = frame_attention(
            query[:, :, 1:], key, prefix.frames, prefix.frame_tokens, mask
        )
        return velocity, attention

    def _suffix(
        self,
        prefix: Prefix,
        proprio: torch.Tensor,
        actions: torch.Tensor,
        action_sigma: torch.Tensor,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Velocity, and query and key of the TR layer, of state and action tokens."""
        condition = self._time_condition(action_sigma)
        state = self.state_in(self._pad(proprio))[:, None]
        tokens = torch.cat([state, self.action_in(self._pad(actions))], dim=1)
        rope = self._rope(prefix.keys[0].shape[2], tokens.shape[1], tokens.device)
        mask = self._mask(prefix, tokens.device)
        for number, layer in enumerate(self.layers, start=1):
            query, key, value, gate = layer.project(tokens, condition, rope)
            key = torch.cat([prefix.keys[number - 1], key], dim=2)
            value = torch.cat([prefix.values[number - 1], value], dim=2)
            if number == self.config.tr_layer:
                tr_query_key = query, key
            tokens = layer.attend(tokens, condition, query, key, value, gate, mask)
        rows, _ = self.final_norm(tokens[:, 1:], condition)
        return self.action_out(rows)[..., : self.config.action_dim], tr_query_key

    def _mask(self, prefix: Prefix, device: torch.device) -> torch.Tensor:
        """(1 + a, n + 1 + a) bool: what the state and each action row may look at."""
        video, rows = prefix.frames * prefix.frame_tokens, 1 + self.config.horizon
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
        fraction = torch.linspace(0, 1, self.config.width // 2, device=action_sigma.device)
        period = shortest * (longest / shortest) ** fraction
        angles = 2 * math.pi * action_sigma[:, None] / period
        return self.time_mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))
