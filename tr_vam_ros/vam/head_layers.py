"""Layers of the action head: Gemma's transformer layer with an adaptive RMSNorm.

Legend: b batch, n token, d width, h query head, g key/value head, e head width.
Source: paper App. A.1 "Action head".
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tr_vam_ros.vam.config import HeadConfig

_ROPE_BASE = 10_000.0  # Gemma


class AdaptiveRmsNorm(nn.Module):
    """RMSNorm with shift, scale and gate from the action timestep.

    Without a condition (the video prefix) it is Gemma's plain RMSNorm and the gate is 1.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))  # Gemma stores weight - 1
        self.modulation = nn.Linear(width, 3 * width)

    def forward(
        self, tokens: torch.Tensor, condition: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """tokens (b, n, d), condition (b, d) or None -> normalised tokens, gate of the residual."""
        normalised = functional.rms_norm(tokens, tokens.shape[-1:], eps=1e-6) * (1 + self.weight)
        if condition is None:
            return normalised, 1.0
        shift, scale, gate = self.modulation(condition)[:, None].chunk(3, dim=-1)
        return normalised * (1 + scale) + shift, gate


def rotary_embedding(positions: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, each (n, e/2), of RoPE at integer positions (n,)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device) / head_dim
    angles = positions[:, None].to(torch.float32) / _ROPE_BASE**exponents
    return angles.cos(), angles.sin()


def rotate(heads: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """RoPE on (b, h, n, e): the two halves of a head are the two coordinates, as in Gemma."""
    cosine, sine = rope
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class HeadLayer(nn.Module):
    """Multi-query attention and GeGLU, each behind an adaptive RMSNorm and a gated residual.

    Attention is in two calls, `project` and `attend`, so that the caller decides which keys the
    queries meet: its own (the prefix), or cached ones and its own (the suffix).
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_width = config.query_heads * config.head_dim
        key_value_width = config.key_value_heads * config.head_dim
        self.attention_norm = AdaptiveRmsNorm(config.width)
        self.query = nn.Linear(config.width, query_width, bias=False)
        self.key = nn.Linear(config.width, key_value_width, bias=False)
        self.value = nn.Linear(config.width, key_value_width, bias=False)
        self.output = nn.Linear(query_width, config.width, bias=False)
        self.mlp_norm = AdaptiveRmsNorm(config.width)
        self.mlp_gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.mlp_up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.mlp_down = nn.Linear(config.mlp_width, config.width, bias=False)

    def project(
        self,
        tokens: torch.Tensor,
        condition: torch.Tensor | None,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | float]:
        """Query (b, h, n, e), key and value (b, g, n, e) of the tokens, and the residual's gate."""
        normalised, gate = self.attention_norm(tokens, condition)
        query, key, value = (
            linear(normalised).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        return rotate(query, rope), rotate(key, rope), value, gate

    def attend(
        self,
        tokens: torch.Tensor,
        condition: torch.Tensor | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor | float,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The rest of the layer: tokens (b, n, d) after attention over `key` and the MLP.

        mask: (queries, keys) bool, true where a query may look; None for everywhere.
        """
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=True
        )
        tokens = tokens + gate * self.output(attended.transpose(1, 2).flatten(2))
        normalised, gate = self.mlp_norm(tokens, condition)
        hidden = functional.gelu(self.mlp_gate(normalised), approximate='tanh')
        return tokens + gate * self.mlp_down(hidden * self.mlp_up(normalised))
