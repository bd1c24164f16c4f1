"""The action head, token by token: no cache, no batch, no fused kernel, in double precision.

Legend: t latent frame, n token (video, state, actions), d width, h query head, e head width,
a action row, k action dimension. Source: paper App. A.1, spec section 1 "Action head".
Weights go by the names of the head's `state_dict`.
"""

from __future__ import annotations

import math

import torch

from tr_vam_ros.vam.config import HeadConfig

NORM_EPSILON = 1e-6  # Gemma
TAG_EPSILON = 1e-5  # torch's LayerNorm
ROPE_BASE = 10_000.0  # Gemma
TAG_OCTAVES = 7  # periods 2 to 1/32 of the unit interval
SHORTEST_PERIOD, LONGEST_PERIOD = 4e-3, 4.0  # of the action timestep's features (pi0)
# Of sigma and of the angles made from it: these reach 1,570 rad, where a float32 is 1e-4 rad wide.
ANGLES = torch.float64
VIDEO, STATE, ACTION = 'video', 'state', 'action'


class NaiveHead:
    """v_phi of one sample, and the attention maps of all layers."""

    def __init__(self, config: HeadConfig, weights: dict[str, torch.Tensor]) -> None:
        self.config = config
        self.weights = {name: weight.double() for name, weight in weights.items()}

    def velocity(
        self,
        features: torch.Tensor,
        video_sigma: float,
        proprio: torch.Tensor,
        chunk: torch.Tensor,
        action_sigma: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Velocity (a, k), and of each layer the attention after softmax, mean of heads (n, n).

        features (t, rows, columns, d), proprio (p,) normalised, chunk (a, k) normalised.
        """
        video = self.video_tokens(features.double(), video_sigma)
        state = self.linear('state_in', padded(proprio.double(), self.config.padded_dim))
        actions = self.linear('action_in', padded(chunk.double(), self.config.padded_dim))
        tokens = torch.cat([video, state[None], actions])
        kinds = [VIDEO] * len(video) + [STATE] + [ACTION] * len(actions)
        mask = additive_mask(kinds, self.config.action_attention)
        condition = self.condition(action_sigma)
        attentions = []
        for layer in range(self.config.layers):
            tokens, attention = self.layer(f'layers.{layer}', tokens, kinds, mask, condition)
            attentions.append(attention)
        normalised, _ = self.adaptive_norm('final_norm', tokens, kinds, condition)
        velocity = self.linear('action_out', normalised[-len(actions) :])
        return velocity[:, : self.config.action_dim], attentions

    def video_tokens(self, features: torch.Tensor, video_sigma: float) -> torch.Tensor:
        """(t, rows, columns, d) to (n, d), frame by frame, row by row, tagged with sigma."""
        frames, rows, columns, width = features.shape
        group = self.config.feature_group
        tokens = []
        for frame in range(frames):
            for top in range(0, rows, group):
                for left in range(0, columns, group):
                    neighbours = [
                        features[frame, row, column]
                        if row < rows and column < columns
                        else features.new_zeros(width)
                        for row in range(top, top + group)
                        for column in range(left, left + group)
                    ]
                    tokens.append(self.linear('video_tokens.projection', torch.cat(neighbours)))
        return self.tagged(torch.stack(tokens), video_sigma)

    def tagged(self, tokens: torch.Tensor, video_sigma: float) -> torch.Tensor:
        """LayerNorm whose shift and scale come from Fourier features of sigma; no gate."""
        rates = torch.tensor([math.pi * 2**octave for octave in range(TAG_OCTAVES)], dtype=ANGLES)
        features = sine_and_cosine(torch.tensor(video_sigma, dtype=ANGLES) * rates)
        hidden = self.linear('video_tokens.tag.mlp.0', features)
        shift, scale = self.linear('video_tokens.tag.mlp.2', silu(hidden)).chunk(2)
        centred = tokens - tokens.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + TAG_EPSILON).sqrt()
        return centred / deviation * (1 + scale) + shift

    def condition(self, action_sigma: torch.Tensor) -> torch.Tensor:
        """The action timestep as sin-cos features through an MLP, (d,)."""
        fractions = torch.linspace(0, 1, self.config.width // 2, dtype=ANGLES)
        periods = SHORTEST_PERIOD * (LONGEST_PERIOD / SHORTEST_PERIOD) ** fractions
        angles = 2 * math.pi * action_sigma / periods
        hidden = silu(self.linear('time_mlp.0', sine_and_cosine(angles)))
        return silu(self.linear('time_mlp.2', hidden))

    def layer(
        self,
        name: str,
        tokens: torch.Tensor,
        kinds: list[str],
        mask: torch.Tensor,
        condition: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normalised, gate = self.adaptive_norm(f'{name}.attention_norm', tokens, kinds, condition)
        mixed, attention = self.attention(name, normalised, mask)
        tokens = tokens + gate * mixed
        normalised, gate = self.adaptive_norm(f'{name}.mlp_norm', tokens, kinds, condition)
        hidden = gelu(self.linear(f'{name}.mlp_gate', normalised))
        hidden = hidden * self.linear(f'{name}.mlp_up', normalised)
        return tokens + gate * self.linear(f'{name}.mlp_down', hidden), attention

    def adaptive_norm(
        self, name: str, tokens: torch.Tensor, kinds: list[str], condition: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """RMSNorm of (n, d); shift, scale and gate (n, d) where the scope reaches a token."""
        weight = 1 + self.weights[f'{name}.weight']  # Gemma stores weight - 1
        shift, scale, gate = self.linear(f'{name}.modulation', condition).chunk(3)
        plain = tokens / (tokens.square().mean(-1, keepdim=True) + NORM_EPSILON).sqrt() * weight
        is_modulated = torch.tensor([
            [kind != VIDEO or self.config.adarms_scope == 'all'] for kind in kinds
        ])
        return (
            torch.where(is_modulated, plain * (1 + scale) + shift, plain),
            torch.where(is_modulated, gate, 1.0),
        )

    def attention(
        self, name: str, tokens: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Softmax attention of (n, d) over all tokens, head by head, and its mean map (n, n)."""
        config = self.config
        queries = self.linear(f'{name}.query', tokens).split(config.head_dim, -1)
        keys = self.linear(f'{name}.key', tokens).split(config.head_dim, -1)
        values = self.linear(f'{name}.value', tokens).split(config.head_dim, -1)
        queries_a_key = config.query_heads // config.key_value_heads
        outputs, maps = [], []
        for head, query in enumerate(queries):
            key, value = keys[head // queries_a_key], values[head // queries_a_key]
            logits = rotated(query) @ rotated(key).T / math.sqrt(config.head_dim) + mask
            weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
            outputs.append(weights @ value)
            maps.append(weights)
        mixed = self.linear(f'{name}.output', torch.cat(outputs, -1))
        return mixed, torch.stack(maps).mean(0)

    def linear(self, name: str, values: torch.Tensor) -> torch.Tensor:
        product = values @ self.weights[f'{name}.weight'].T
        bias = self.weights.get(f'{name}.bias')
        return product if bias is None else product + bias


def sees(query: int, key: int, kinds: list[str], action_attention: str) -> bool:
    """Whether token `query` may look at token `key` (spec section 1 "Mask")."""
    if kinds[key] == VIDEO or query == key:
        return True
    if kinds[query] != ACTION:
        return False  # video sees video only; the state sees video and itself
    if kinds[key] == STATE:
        return True
    return action_attention == 'bidirectional' or key < query


def additive_mask(kinds: list[str], action_attention: str) -> torch.Tensor:
    """(n, n): 0 where the row may look at the column, else minus infinity."""
    count = range(len(kinds))
    return torch.tensor([
        [0.0 if sees(query, key, kinds, action_attention) else -math.inf for key in count]
        for query in count
    ]).double()


def frame_mass(attention: torch.Tensor, frames: int, horizon: int) -> torch.Tensor:
    """Attention of an action row, on average, to each latent frame: (n, n) to (t,)."""
    video = len(attention) - 1 - horizon
    rows = attention[-horizon:, :video]
    return torch.stack([frame.sum(-1).mean() for frame in rows.chunk(frames, -1)])


def rotated(heads: torch.Tensor) -> torch.Tensor:
    """RoPE on (n, e): the halves are real and imaginary part, turned by the position."""
    count, width = heads.shape
    half = width // 2
    turned = torch.complex(heads[:, :half], heads[:, half:])
    rates = torch.tensor([ROPE_BASE ** (-2 * i / width) for i in range(half)]).double()
    angles = torch.arange(count).double()[:, None] * rates
    turned = turned * torch.exp(1j * angles)
    return torch.cat([turned.real, turned.imag], -1)


def action_sigmas(steps: int) -> torch.Tensor:
    """Noise levels of the chunk at each Euler step, from 1 downwards."""
    return 1 - torch.arange(steps, dtype=ANGLES) / steps


def sine_and_cosine(angles: torch.Tensor) -> torch.Tensor:
    return torch.cat([angles.double().sin(), angles.double().cos()])


def padded(values: torch.Tensor, width: int) -> torch.Tensor:
    """Zeros behind the last dimension up to `width`."""
    missing = width - values.shape[-1]
    return torch.cat([values, values.new_zeros(*values.shape[:-1], missing)], -1)


def silu(values: torch.Tensor) -> torch.Tensor:
    return values / (1 + (-values).exp())


def gelu(values: torch.Tensor) -> torch.Tensor:
    """Gaussian error linear unit in the tanh approximation (Gemma)."""
    inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
    return 0.5 * values * (1 + inner.tanh())
