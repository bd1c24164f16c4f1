"""The oracle as a case of `tr-vam bench`: what a plain reading of the paper costs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from test.oracle.naive_head import NaiveHead
from test.oracle.naive_model import NaivePolicy
from tr_vam_ros.bench.replan import INSTRUCTION, observation
from tr_vam_ros.vam import VideoActionPolicy
from tr_vam_ros.vam.action_head import ActionHead


def oracle_replan(policy: VideoActionPolicy) -> Callable[[], object]:
    """A replan of the oracle with the weights of `policy`: float64 head, all branches."""
    naive = NaivePolicy(
        policy.config, policy.backbone, policy.text, policy.head.state_dict(),
        seed=policy.seed, guidance='flat',
    )
    image, proprio = observation(policy.config)

    def run() -> object:
        naive.reset_episode(INSTRUCTION, 'bench')
        return naive.replan(image, proprio)

    return run


def oracle_head_step(
    head: ActionHead, features: torch.Tensor, video_sigma: float, proprio: torch.Tensor,
    chunk: torch.Tensor, action_sigma: float,
) -> Callable[[], object]:
    """One Euler step of one branch by the oracle; arguments as of its `velocity`."""
    naive = NaiveHead(head.config, head.state_dict())
    sigma = torch.tensor(action_sigma, dtype=torch.float64)
    return lambda: naive.velocity(features, video_sigma, proprio, chunk, sigma)
