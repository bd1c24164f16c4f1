"""Interleaved timing: what drifts with the machine falls on every case alike."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

_PEAK_SIDE = 2048  # of the square matrices whose product measures the machine's peak
_PEAK_REPETITIONS = 5


@dataclass(frozen=True)
class Timing:
    """Of one case over the repetitions."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    repetitions: int,
    progress: Callable[[str], None] = lambda case: None,
) -> dict[str, Timing]:
    """Each case once, then each again: `repetitions` rounds after one that is thrown away.

    Ratios within one result are meaningful; single times move with the machine's load.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    with torch.inference_mode():
        for round_number in range(repetitions + 1):
            for name, run in cases.items():
                progress(name)
                start = time.perf_counter()
                run()
                if round_number:
                    times[name].append(1e3 * (time.perf_counter() - start))
    return {name: Timing(tuple(values)) for name, values in times.items()}


def ratio(slow: Timing, fast: Timing) -> float:
    """How many times faster: the median of the ratios within each round."""
    pairs = zip(slow.milliseconds, fast.milliseconds, strict=True)
    return statistics.median(s / f for s, f in pairs)


def matrix_product_peak(dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of a large square matrix product: what this machine can give a network."""
    left, right = (torch.randn(_PEAK_SIDE, _PEAK_SIDE).to(dtype) for _ in range(2))
    best = float('inf')
    for _ in range(_PEAK_REPETITIONS):
        start = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - start)
    return 2 * _PEAK_SIDE**3 / best


def count_flops(run: Callable[[], object]) -> int:
    """Floating point operations of the matrix products and attention in one run."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def peak_memory_bytes() -> int:
    """Peak resident memory of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
