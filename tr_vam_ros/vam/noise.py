"""Noise that depends on names alone: any replan can be repeated by itself, in any order."""

from __future__ import annotations

import hashlib
import json

import torch


def keyed_noise(
    shape: tuple[int, ...], *, seed: int, key: str, index: int, stream: str
) -> torch.Tensor:
    """Standard normal float32 of `shape` on the CPU, a function of the four names alone.

    Args:
        seed: of the policy.
        key: of the episode.
        index: of the replan in the episode.
        stream: what the noise is for; each stream is independent, so that a draw of another
            size elsewhere changes nothing here.
    """
    # JSON keeps the four apart ('a' + 'b1' against 'ab' + '1'); hash() differs between processes.
    name = json.dumps([seed, key, index, stream]).encode()
    digest = hashlib.sha256(name).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], 'big') >> 1)
    return torch.randn(shape, generator=generator)
