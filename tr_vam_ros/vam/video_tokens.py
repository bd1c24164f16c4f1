"""From backbone features to the video tokens of the action head.

Legend: b batch, t latent frame, h w token rows and columns, n token, d width.
Source: paper App. A.1 "Video-feature interface", spec section 1 "Tokens" and "Noise-level tag".
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class NoiseLevelTag(nn.Module):
    """Adaptive LayerNorm that tells each video token how noisy the imagined future is.

    Fourier features of sigma -> MLP -> shift and scale (no gate), applied once.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # Periods 2 to 1/32 of the unit interval: fine enough to part neighbours on the grid.
        frequencies = math.pi * 2.0 ** torch.arange(7, dtype=torch.float64)
        self.register_buffer('frequencies', frequencies, persistent=False)
        self.mlp = nn.Sequential(
            nn.Linear(2 * len(frequencies), width), nn.SiLU(), nn.Linear(width, 2 * width)
        )
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, tokens: torch.Tensor, video_sigma: torch.Tensor) -> torch.Tensor:
        """tokens (b, n, d), video_sigma (b,) in [0, 1] -> (b, n, d)."""
        angles = video_sigma.double()[:, None] * self.frequencies
        features = torch.cat([angles.sin(), angles.cos()], -1).to(tokens.dtype)
        shift, scale = self.mlp(features).chunk(2, dim=-1)
        return self.norm(tokens) * (1 + scale[:, None]) + shift[:, None]


class VideoTokens(nn.Module):
    """Groups neighbouring features, projects them to the head's width and tags the noise level."""

    def __init__(self, feature_width: int, width: int, group: int) -> None:
        super().__init__()
        self.group = group
        self.projection = nn.Linear(group * group * feature_width, width)
        self.tag = NoiseLevelTag(width)

    def frame_tokens(self, grid: tuple[int, int]) -> int:
        """Tokens of one latent frame for a feature grid of (rows, columns)."""
        return math.prod(-(-side // self.group) for side in grid)

    def forward(self, features: torch.Tensor, video_sigma: torch.Tensor) -> torch.Tensor:
        """features (b, t, h, w, d), video_sigma (b,) -> tokens (b, t * n, width), frame by frame.

        A grid that the group does not divide is padded with zeros below and to the right.
        """
        group = self.group
        rows, columns = features.shape[2:4]
        features = functional.pad(features, (0, 0, 0, -columns % group, 0, -rows % group))
        features = features.unflatten(3, (-1, group)).unflatten(2, (-1, group))
        features = features.transpose(3, 4).flatten(4)  # (b, t, h/g, w/g, g * g * d)
        return self.tag(self.projection(features.flatten(1, 3)), video_sigma)
