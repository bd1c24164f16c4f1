"""The Temporal Ratio: does the action head look at the imagined future or at the present?

Legend: b batch, t latent frame, n token (key), h query head, g key/value head, d head width,
a action row (query). Source: paper equation 3, spec section 2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tr_vam_ros.errors import InputError

if TYPE_CHECKING:  # only tensor methods are used: this module loads without torch
    import torch


def temporal_ratio(attention: np.ndarray | torch.Tensor, current: slice, future: slice) -> float:
    """Attention on the future frames over attention on the current one.

    Args:
        attention: (heads, queries, keys) after a softmax over **all** keys; queries are the
            action rows.
        current, future: key ranges of frame 0 and of frames 1..T-1.

    Returns the ratio of the two sums over queries and heads; T-1 for uniform attention, inf if
    no attention is on the current frame, nan if there is none on either.
    Raises InputError if `attention` is not three-dimensional.
    """
    if hasattr(attention, 'detach'):
        attention = attention.detach().cpu().double().numpy()
    weights = np.asarray(attention, dtype=np.float64)
    if weights.ndim != 3:
        raise InputError(
            f'temporal_ratio: got attention of shape {weights.shape}, '
            'expected (heads, queries, keys); drop or index the batch axis'
        )
    return _ratio(float(weights[..., future].sum()), float(weights[..., current].sum()))


def ratio_of_frames(frame_attention: np.ndarray) -> float:
    """The Temporal Ratio from the attention mass on each latent frame, (t,)."""
    return _ratio(float(frame_attention[1:].sum()), float(frame_attention[0]))


def frame_attention(
    query: torch.Tensor, key: torch.Tensor, frames: int, frame_tokens: int, mask: torch.Tensor
) -> torch.Tensor:
    """Attention mass on each latent frame, without forming the softmax.

    exp(logsumexp over a frame's keys - logsumexp over all keys) is that frame's share of the
    softmax; the fused attention kernels give no weights, and this costs one layer's q k^T.

    Args:
        query: (b, h, a, d) of the action rows, after RoPE.
        key: (b, g, n, d) of all tokens, the video first, after RoPE.
        frames, frame_tokens: T and the video tokens of one frame.
        mask: (a, n) bool, true where a query may look.

    Returns float64 (b, t): mean over heads and queries; what is missing to 1 is on the state
    and action tokens.
    """
    query_heads, head_dim = query.shape[1], query.shape[-1]
    key = key.repeat_interleave(query_heads // key.shape[1], dim=1)
    logits = (query @ key.mT / math.sqrt(head_dim)).double()  # (b, h, a, n)
    logits = logits.masked_fill(~mask, -math.inf)
    video = logits[..., : frames * frame_tokens].unflatten(-1, (frames, frame_tokens))
    share = (video.logsumexp(-1) - logits.logsumexp(-1, keepdim=True)).exp()  # (b, h, a, t)
    return share.mean(dim=(1, 2))


def _ratio(future: float, current: float) -> float:
    if current == 0.0:
        return math.inf if future > 0.0 else math.nan
    return future / current
