"""A whole replan: where the time goes, what each optimisation is worth, what guidance costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np
import torch

from tr_vam_ros.bench import switched_off
from tr_vam_ros.bench.measure import (
    Timing,
    count_flops,
    interleaved,
    matrix_product_peak,
    peak_memory_bytes,
    ratio,
)
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig, VideoActionPolicy

INSTRUCTION = 'put the red block into the bin'
# Guides at no strength: all three branches run, and no number changes.
_NEARLY_ZERO = 1e-9

# What runs: guidance scale (None: adaptive, whose first replan has s = 0), what is switched off,
# and the case that it is compared with.
CASES: dict[str, tuple[float | None, Callable, str]] = {
    'unguided': (0.0, switched_off.nothing, ''),
    'adaptive, s = 0': (None, switched_off.nothing, 'unguided'),
    'guided': (1.0, switched_off.nothing, ''),
    'unguided without early stop': (0.0, switched_off.early_stop, 'unguided'),
    'unguided, 17 frames encoded': (0.0, switched_off.single_frame_encoding, 'unguided'),
    'unguided without laziness': (_NEARLY_ZERO, switched_off.nothing, 'unguided'),
    'unguided without prefix cache': (0.0, switched_off.prefix_cache, 'unguided'),
    'guided without prefix cache': (1.0, switched_off.prefix_cache, 'guided'),
    'guided without batched branches': (1.0, switched_off.batched_branches, 'guided'),
}
PASSES = 'guided, sum of its passes'


@dataclass(frozen=True)
class ReplanCase:
    name: str
    median: float  # milliseconds
    milliseconds: tuple[float, ...]
    compared_with: str
    ratio: float | None  # to what it is compared with, round by round
    stages: dict[str, float]  # median milliseconds, as the policy reports them
    flops: int
    peak_share: float  # of the machine's matrix-product peak


@dataclass(frozen=True)
class ReplanBench:
    preset: str
    precision: str
    threads: int
    repetitions: int
    peak_flops: float
    peak_memory_bytes: int
    cases: tuple[ReplanCase, ...]

    def to_json(self) -> dict:
        return asdict(self)


def bench_replan(
    policy: VideoActionPolicy,
    *,
    preset: str,
    precision: str,
    repetitions: int = 5,
    threads: int = 1,
    cases: Iterable[str] = (),
    oracle: Callable[[VideoActionPolicy], Callable[[], object]] | None = None,
    progress: Callable[[str], None] = lambda case: None,
) -> ReplanBench:
    """Measure whole replans of a policy on one observation, interleaved.

    Args:
        cases: of `CASES`, and 'guided, sum of its passes'; none for all.
        oracle: makes a replan of a second implementation; measured beside ours.

    Raises InputError for a case that does not exist.
    """
    known = (*CASES, PASSES)
    wanted = tuple(cases) or known
    for name in wanted:
        if name not in known:
            raise InputError(f'bench case {name!r}: unknown; choose from {"; ".join(known)}')
    torch.set_num_threads(threads)
    image, proprio = observation(policy.config)
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in wanted}

    def replan(name: str) -> Callable[[], object]:
        scale, without, _ = CASES[name]

        def run() -> None:
            policy.reset_episode(INSTRUCTION, 'bench')
            with without(policy):
                stages[name].append(policy.replan(image, proprio, scale=scale).milliseconds)

        return run

    runs = {name: replan(name) for name in wanted if name in CASES}
    compared = {name: CASES[name][2] for name in runs}
    if PASSES in wanted:
        runs[PASSES] = _passes(policy, image, proprio)
        compared['guided'] = PASSES
    if oracle is not None:
        runs['oracle: eager, all branches, no cache'] = oracle(policy)
        compared['oracle: eager, all branches, no cache'] = 'guided'
    peak = matrix_product_peak(policy.backbone.precision)
    flops = {name: count_flops(run) for name, run in runs.items()}
    timings = interleaved(runs, repetitions, progress)
    return ReplanBench(
        preset, precision, threads, repetitions, peak, peak_memory_bytes(),
        tuple(
            _case(
                name, timings, compared.get(name, ''), stages.get(name, [])[-repetitions:],
                flops[name], peak,
            )
            for name in runs
        ),
    )


def _case(
    name: str, timings: dict[str, Timing], compared: str, stages: list[dict[str, float]],
    flops: int, peak: float,
) -> ReplanCase:
    timing = timings[name]
    against = timings.get(compared)
    return ReplanCase(
        name=name,
        median=timing.median,
        milliseconds=timing.milliseconds,
        compared_with=compared if against else '',
        ratio=ratio(timing, against) if against else None,
        stages={
            stage: statistics.median(one[stage] for one in stages) for stage in stages[0]
        } if stages else {},
        flops=flops,
        peak_share=flops / (1e-3 * timing.median * peak),
    )


def _passes(
    policy: VideoActionPolicy, image: np.ndarray, proprio: np.ndarray
) -> Callable[[], object]:
    """The passes of a guided replan and nothing else: what it cannot do without."""
    from tr_vam_ros.vam.action_head import Prefix

    config, backbone, head = policy.config, policy.backbone, policy.head
    sigma = torch.tensor(0.9)
    noise = torch.randn(
        1, config.vae.z_dim, config.video.plan_frames, *config.latent_size,
        generator=torch.Generator().manual_seed(0),
    )
    chunks = torch.randn(3, config.head.horizon, config.head.action_dim)
    state = torch.from_numpy(proprio)[None]

    def run() -> None:
        observation = backbone.encode(image)
        context = policy.text(INSTRUCTION)
        prefixes = []
        both = context.expand(2, -1, -1)
        for latent, text in (
            (noise[:, :, : config.video.frames].expand(2, -1, -1, -1, -1), both),
            (noise, context),
        ):
            for _ in range(config.video.extract_index):
                backbone.velocity(latent, observation, sigma, text)
            features = backbone.features(latent, observation, sigma, text)
            for branch in features[:, : config.video.frames].split(1):
                prefixes.append(head.prefix(branch, sigma[None]))
        suffix = head.suffix(Prefix.batch(prefixes), state)
        modulations = head.modulations(torch.ones(1))
        for _ in range(config.head.euler_steps):
            head.velocity(suffix, chunks, modulations)

    return run


def observation(config: VamConfig) -> tuple[np.ndarray, np.ndarray]:
    """A random image and the mean proprioception, as `replan` takes them."""
    image = np.random.default_rng(0).integers(
        0, 256, (config.image.height, config.image.width, 3), dtype=np.uint8
    )
    return image, np.array(config.statistics.proprio.mean, dtype=np.float32)
