"""The full-size action head: prefix cache, batched branches and the TR read-out, each on its own.

Naive means: the same layers and the same fused attention, but all tokens in every Euler step and
one branch after the other. The oracle of the tests, eager attention with a full softmax, stands
beside it where the source tree is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch

from tr_vam_ros.bench.measure import (
    Timing,
    count_flops,
    interleaved,
    matrix_product_peak,
    peak_memory_bytes,
    ratio,
)
from tr_vam_ros.vam.action_head import ActionHead, Prefix
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.random_weights import initialise_head, seeded
from tr_vam_ros.vam.temporal_ratio import frame_attention

BRANCHES = 3
ORACLE = 'step of the oracle'
# Head tokens of the video: LIBERO's 5 x 98, and the YAM's literal 5 x 462 (spec section 1).
PRESETS = {490: 'cosmos2b_libero', 2310: 'cosmos2b_yam_literal'}


@dataclass(frozen=True)
class HeadCase:
    """Median milliseconds at one prefix length, and what they compose to."""

    prefix_tokens: int
    euler_steps: int
    prefix: float  # keys and values of one branch, once a replan
    naive_step: float  # all tokens
    cached_step: float  # state and action tokens
    cached_step_three: float  # of three branches in one batch
    tr_read_out: float
    speedup: float  # of the Euler steps of one branch
    speedup_branches: float  # of three branches
    tr_share: float  # of a cached step
    flops_naive_step: int
    flops_cached_step: int
    peak_share_naive_step: float  # of the machine's matrix-product peak
    peak_share_cached_step: float
    oracle_step: float | None = None  # of the tests' second implementation, in float64


@dataclass(frozen=True)
class HeadBench:
    threads: int
    repetitions: int
    parameters: int
    peak_flops: float
    peak_memory_bytes: int
    cases: tuple[HeadCase, ...]

    def to_json(self) -> dict:
        """The keys by which results are compared, then everything."""
        keys = {}
        for case in self.cases:
            keys[f'speedup_{case.prefix_tokens}'] = case.speedup
            keys[f'speedup_branches_{case.prefix_tokens}'] = case.speedup_branches
        keys['tr_share'] = max(case.tr_share for case in self.cases)
        return {**keys, **asdict(self)}


def bench_head(
    repetitions: int = 5,
    threads: int = 1,
    progress: Callable[[str], None] = lambda case: None,
    presets: Mapping[int, str] = PRESETS,
    oracle: Callable[..., Callable[[], object]] | None = None,
) -> HeadBench:
    """Measure on the CPU with random weights in float32.

    presets: by their video tokens. oracle: `oracle_head_step` of the tests.
    """
    torch.set_num_threads(threads)
    cases, parameters = [], 0
    peak = matrix_product_peak()
    for tokens, preset in presets.items():
        config = VamConfig.from_yaml(preset)
        with seeded(0):
            head = ActionHead(config.head, config.transformer.width).eval()
            initialise_head(head)
        parameters = max(parameters, sum(p.numel() for p in head.parameters()))
        cases.append(
            _case(
                head, config, tokens, repetitions, peak, lambda n: progress(f'{tokens}: {n}'), oracle
            )
        )
        del head
    return HeadBench(threads, repetitions, parameters, peak, peak_memory_bytes(), tuple(cases))


def _case(
    head: ActionHead, config: VamConfig, tokens: int, repetitions: int, peak: float,
    progress: Callable[[str], None], oracle: Callable[..., Callable[[], object]] | None,
) -> HeadCase:
    generator = torch.Generator().manual_seed(0)
    frames, (rows, columns) = config.video.frames, config.feature_grid
    features = torch.randn(1, frames, rows, columns, config.transformer.width, generator=generator)
    proprio = torch.randn(1, config.head.proprio_dim, generator=generator)
    chunk = torch.randn(1, config.head.horizon, config.head.action_dim, generator=generator)
    sigma, action_sigma = torch.tensor([0.88]), torch.tensor([0.5])
    with torch.inference_mode():
        prefix = head.prefix(features, sigma)
        modulations = head.modulations(action_sigma)
        suffix = head.suffix(prefix, proprio)
        three = head.suffix(Prefix.batch([prefix] * BRANCHES), proprio)
        chunks = chunk.expand(BRANCHES, -1, -1)
        query = torch.randn(
            1, config.head.query_heads, config.head.horizon, config.head.head_dim,
            generator=generator,
        )
        key = torch.cat([prefix.keys[0], prefix.keys[0][:, :, : 1 + config.head.horizon]], dim=2)
    assert frames * prefix.frame_tokens == tokens

    def naive_step() -> torch.Tensor:
        return head(features, sigma, proprio, chunk, action_sigma)

    runs = {
        'one pass of all tokens': naive_step,
        'keys and values of the video': lambda: head.prefix(features, sigma),
        'cached step': lambda: head.velocity(suffix, chunk, modulations),
        'cached step of three branches': lambda: head.velocity(three, chunks, modulations),
        'TR read-out': lambda: frame_attention(query, key, frames, prefix.frame_tokens),
    }
    if oracle is not None:
        runs[ORACLE] = oracle(
            head, features[0], float(sigma), proprio[0], chunk[0], float(action_sigma)
        )
    flops = {name: count_flops(runs[name]) for name in ('one pass of all tokens', 'cached step')}
    timings = interleaved(runs, repetitions, progress)
    naive, build, cached, batched, read_out = list(timings.values())[:5]
    steps = head.config.euler_steps
    return HeadCase(
        prefix_tokens=tokens,
        euler_steps=steps,
        prefix=build.median,
        naive_step=naive.median,
        cached_step=cached.median,
        cached_step_three=batched.median,
        tr_read_out=read_out.median,
        speedup=ratio(_composed((steps, naive)), _composed((1, build), (steps, cached))),
        speedup_branches=ratio(
            _composed((BRANCHES * steps, naive)), _composed((BRANCHES, build), (steps, batched))
        ),
        tr_share=ratio(read_out, cached),
        flops_naive_step=flops['one pass of all tokens'],
        flops_cached_step=flops['cached step'],
        peak_share_naive_step=flops['one pass of all tokens'] / (1e-3 * naive.median * peak),
        peak_share_cached_step=flops['cached step'] / (1e-3 * cached.median * peak),
        oracle_step=timings[ORACLE].median if oracle else None,
    )


def _composed(*parts: tuple[int, Timing]) -> Timing:
    """A sum of steps, round by round."""
    rounds = zip(*(timing.milliseconds for _, timing in parts), strict=True)
    counts = [count for count, _ in parts]
    return Timing(tuple(sum(n * t for n, t in zip(counts, times)) for times in rounds))
