"""The Temporal Ratio: does the action head look at the imagined future or at the present?

Legend: b batch, t latent frame, n token (key), h query head, g key/value head, d head width,
a action row (query). Source: paper equation 3, spec section 2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tr_vam_ros.errors import InputError

if TYPE_CHECKING:
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
    query: torch.Tensor,
    key: torch.Tensor,
    frames: int,
    frame_tokens: int,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention mass on each latent frame.

    The fused attention kernels give no weights. This costs one layer's q k^T and its
    exponentials, in the type of the tensors; sums are float64.

    Args:
        query: (b, h, a, d) of the action rows, after RoPE.
        key: (b, g, n, d) of all tokens, the video first, after RoPE.
        frames, frame_tokens: T and the video tokens of one frame.
        mask: (a, n), 0 where a query may look and -inf elsewhere; None for everywhere.

    Returns float64 (b, t): mean over heads and queries; what is missing to 1 is on the state
    and action tokens.
    """
    from torch import float64  # not above: this module loads without torch

    head_dim = query.shape[-1]
    # The query heads that share a key head become rows of one product.
    grouped = (query / math.sqrt(head_dim)).unflatten(1, (key.shape[1], -1))
    logits = (grouped.flatten(2, 3) @ key.mT).unflatten(2, grouped.shape[2:4])
    if mask is not None:
        logits = logits + mask
    # In place: nobody else sees the logits (b, g, h/g, a, n), and they are the cost of this.
    weights = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    total = weights.sum(-1, dtype=float64)
    video = weights[..., : frames * frame_tokens].unflatten(-1, (frames, frame_tokens))
    by_frame = video.sum(-1, dtype=float64)
    return (by_frame / total[..., None]).mean(dim=(1, 2, 3))


def _ratio(future: float, current: float) -> float:
    if current == 0.0:
        return math.inf if future > 0.0 else math.nan
    return future / current
