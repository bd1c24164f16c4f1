"""What the executor is told once; times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tr_vam_ros.embodiments import yam

# How the next chunk is asked for: at standstill, or while the arms move.
MODES = ('sync', 'async')


@dataclass(frozen=True, slots=True)
class Settings:
    episode_prefix: str = 'robot'
    instruction: str = ''
    episode_seconds: float = 60.0  # 0: no limit
    mode: str = 'sync'
    request_lead: int = 18  # async: rows before row 30 at which the next chunk is asked for
    async_repeat: float = 0.2  # async: an unanswered request is repeated this often
    dry_run: bool = False  # trajectories go to a preview; the arms stand
    lockstep: bool = False
    wait_for_scene: bool = False
    settle: float = 0.2
    lead: float = 0.06
    brake_lead: float = 0.008  # two controller updates
    ramp_seconds: float = 1.0
    jump_limit: float = 0.2  # rad
    jump_action: str = 'ramp'
    chunk_timeout: float = 30.0
    request_repeat: float = 1.0
    most_rejected: int = 3
    stale_after: float = 0.3
    future_after: float = 0.05
    accept_timeout: float = 0.05
    expects_answers: bool = False  # the simulator answers each trajectory
    tracking_error: float = 0.1  # rad
    tracking_time: float = 0.15
    lockstep_timeout: float = 60.0
    velocity_limits: np.ndarray = field(default_factory=yam.velocity_limits)
    acceleration_limits: np.ndarray = field(default_factory=yam.acceleration_limits)
