"""What a policy answers: the action chunk and how it came about."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Replan:
    """The result of one replan."""

    actions: np.ndarray  # float32 (a, k), embodiment units
    temporal_ratio: float
    baseline: float  # TR0 of the episode; this replan's own ratio if none was committed yet
    scale: float  # s of Algorithm 3
    language_weight: float
    plan_weight: float
    frame_attention: np.ndarray  # float64 (t,), attention mass on each latent frame
    layer_attention: dict[int, np.ndarray]  # the same at each further layer that was asked for
    branches: tuple[str, ...]  # video branches that ran, of 'conditional', 'null', 'plan'
    milliseconds: dict[str, float]  # wall time by stage, and 'total'
    warning: str  # '' normally
    key: str  # of the episode
    index: int  # of the replan in the episode
    episode: int = field(repr=False)  # counts `reset_episode`: tells stale replans
