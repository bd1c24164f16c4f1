"""Layers of the action head: Gemma's transformer layer with an adaptive RMSNorm.

Legend: b batch, n token, d width, h query head, g key/value head, e head width.
Source: paper App. A.1 "Action head".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tr_vam_ros.vam.config import HeadConfig

_ROPE_BASE = 10_000.0  # Gemma


class Modulation(NamedTuple):
    """What the action timestep does to one norm and its residual; each (b, 1, d)."""

    shift: torch.Tensor
    scale: torch.Tensor
    gate: torch.Tensor


class AdaptiveRmsNorm(nn.Module):
    """RMSNorm with shift, scale and gate from the action timestep.

    Without a modulation (the video prefix) it is Gemma's plain RMSNorm and the gate is 1.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))  # Gemma stores weight - 1
        self.modulation = nn.Linear(width, 3 * width)

    def modulate(self, condition: torch.Tensor) -> Modulation:
        """condition: (b, d), the embedded action timestep."""
        return Modulation(*self.modulation(condition)[:, None].chunk(3, dim=-1))

    def forward(
        self, tokens: torch.Tensor, modulation: Modulation | None
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """tokens (b, n, d) -> normalised tokens, and the gate of the residual."""
        normalised = functional.rms_norm(tokens, tokens.shape[-1:], eps=1e-6) * (1 + self.weight)
        if modulation is None:
            return normalised, 1.0
        return normalised * (1 + modulation.scale) + modulation.shift, modulation.gate


def rotary_embedding(positions: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, each (n, e/2), of RoPE at integer positions (n,)."""
    # float64: of the 2310th token a float32 angle would be off by 1e-4 rad.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions[:, None] / _ROPE_BASE ** (exponents / head_dim)
    return angles.cos().float(), angles.sin().float()


def rotate(heads: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """RoPE on (b, h, n, e): the two halves of a head are the two coordinates, as in Gemma."""
    cosine, sine = rope
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def shared_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention of (b, h, q, e) to the few keys (b, g, n, e) that h / g heads each share.

    The heads of a group become rows of one query, so that keys and values are read once and not
    once a head: up to a quarter faster than `enable_gqa`, equal to the last bit.

    mask: (q, n), 0 where a query may look and -inf elsewhere; None for everywhere.
    """
    rows = query.shape[2]
    grouped = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)  # (b, g, h/g * q, e)
    if mask is not None:
        mask = mask.repeat(query.shape[1] // key.shape[1], 1)
    attended = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask)
    return attended.unflatten(2, (-1, rows)).flatten(1, 2)


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
        modulation: Modulation | None,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | float]:
        """Query (b, h, n, e), key and value (b, g, n, e) of the tokens, and the residual's gate."""
        normalised, gate = self.attention_norm(tokens, modulation)
        query, key, value = (
            linear(normalised).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        return rotate(query, rope), rotate(key, rope), value, gate

    def attend(
        self,
        tokens: torch.Tensor,
        modulation: Modulation | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor | float,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The rest of the layer: tokens (b, n, d) after attention over `key` and the MLP.

        mask: of `shared_attention`; None for everywhere.
        """
        attended = shared_attention(query, key, value, mask)
        tokens = tokens + gate * self.output(attended.transpose(1, 2).flatten(2))
        normalised, gate = self.mlp_norm(tokens, modulation)
        hidden = functional.gelu(self.mlp_gate(normalised), approximate='tanh')
        return tokens + gate * self.mlp_down(hidden * self.mlp_up(normalised))
