"""A policy of random weights at any size: what is measured does not depend on their values."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import torch

from tr_vam_ros.bench.replan import INSTRUCTION
from tr_vam_ros.vam import VamConfig, VideoActionPolicy
from tr_vam_ros.vam.reason_text import ReasonConditioning
from tr_vam_ros.vam.text_cache import TextCache


@contextlib.contextmanager
def random_policy(
    preset: str, precision: str, weights: str = 'float32'
) -> Iterator[VideoActionPolicy]:
    """A policy of a preset that knows the benchmark's instruction, while the block runs.

    weights: type in which the video model's are held; bfloat16 halves the memory of the 2B.
    Raises InputError for an unknown preset or precision.
    """
    policy = VideoActionPolicy.from_config(VamConfig.from_yaml(preset), precision=precision)
    if weights == 'bfloat16':
        for network in (policy.backbone.transformer, policy.backbone.vae):
            for parameter in network.parameters():  # one at a time: no second copy of all
                parameter.data = parameter.data.to(torch.bfloat16)
    with tempfile.TemporaryDirectory(prefix='tr_vam_bench_') as folder:
        if isinstance(policy.text, ReasonConditioning):  # its encoder would be 16 GB more
            policy.text.cache = TextCache(folder)
            context = torch.randn(policy.text.places, policy.text.projection[0].out_features)
            policy.text.cache.put(INSTRUCTION, policy.text.weights(), context)
        yield policy
