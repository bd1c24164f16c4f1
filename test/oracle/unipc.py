"""The video solver in closed form: UniPC of order 2 with B(h) = exp(-h) - 1 on a flow.

A sample is x = alpha x0 + sigma eps with alpha = 1 - sigma; the model predicts x0. Half the log
of the signal-to-noise ratio is lambda = log(alpha / sigma). Source: UniPC (Zhao et al. 2023),
equations of UniP-2 and UniC-2, and spec section 1 "Sigma grid".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

LOWEST_NOISE = 0.001  # of the unshifted grid: one of 1000 training steps
# The scheduler keeps off sigma 1, where lambda is infinite.
SIGMA_ONE = 1.0 - 1e-6
ORDER = 2


def sigma_grid(steps: int, shift: float) -> list[float]:
    """The sigmas at which the network is called, as the spec writes them."""
    last = shifted(LOWEST_NOISE, shift)
    u = [1.0 + (last - 1.0) * i / (steps - 1) if i else 1.0 for i in range(steps)]
    return [shifted(value, shift) for value in u]


def shifted(u: float, shift: float) -> float:
    return shift * u / (1 + (shift - 1) * u)


def solver_sigmas(grid: list[float]) -> list[float]:
    """The grid as the solver walks it, in float32, and the clean end.

    The precision counts: in float32, 1 - SIGMA_ONE is 1.3 % off.
    """
    return [float(np.float32(min(sigma, SIGMA_ONE))) for sigma in grid] + [0.0]


def denoise(
    velocity: Callable[[torch.Tensor, float], torch.Tensor],
    noise: torch.Tensor,
    grid: list[float],
    stop: int,
) -> torch.Tensor:
    """The sample predicted for index `stop` of the grid; `len(grid)` is the clean one.

    velocity(sample, sigma) is eps - x0, called once at each index below `stop`.
    """
    sigmas = solver_sigmas(grid)
    clean: list[torch.Tensor] = []  # predicted x0 at each index
    corrected: list[torch.Tensor] = []
    predicted = noise
    for i in range(stop):
        clean.append(predicted - sigmas[i] * velocity(predicted, sigmas[i]))
        corrected.append(
            corrector(i, order(i - 1, len(grid)), sigmas, clean, corrected) if i else predicted
        )
        predicted = predictor(i, order(i, len(grid)), sigmas, clean, corrected)
    return predicted


def order(index: int, steps: int) -> int:
    """Of the step from `index`: 1 at first, for want of a past, and 1 at last."""
    return min(ORDER, index + 1, steps - index)


def predictor(
    i: int,
    order: int,
    sigmas: list[float],
    clean: list[torch.Tensor],
    corrected: list[torch.Tensor],
) -> torch.Tensor:
    """UniP: the sample at i + 1 from the corrected one at i."""
    h = log_ratio(sigmas[i + 1]) - log_ratio(sigmas[i])
    b = math.expm1(-h)
    slope = torch.zeros_like(clean[i])
    if order == ORDER:
        r = (log_ratio(sigmas[i - 1]) - log_ratio(sigmas[i])) / h
        slope = 0.5 * (clean[i - 1] - clean[i]) / r
    kept = sigmas[i + 1] / sigmas[i] * corrected[i]
    return kept - (1 - sigmas[i + 1]) * b * (clean[i] + slope)


def corrector(
    i: int,
    order: int,
    sigmas: list[float],
    clean: list[torch.Tensor],
    corrected: list[torch.Tensor],
) -> torch.Tensor:
    """UniC: the sample at i again, from i - 1, with what the network said at i."""
    h = log_ratio(sigmas[i]) - log_ratio(sigmas[i - 1])
    b = math.expm1(-h)
    news = clean[i] - clean[i - 1]
    slope = 0.5 * news
    if order == ORDER:
        # c1 + c2 = g1 and r c1 + c2 = g2, where B g1 and B g2 are the phi functions of -h.
        r = (log_ratio(sigmas[i - 2]) - log_ratio(sigmas[i - 1])) / h
        phi_1 = b / -h - 1
        phi_2 = phi_1 / -h - 1 / 2
        g1, g2 = phi_1 / b, 2 * phi_2 / b
        c1 = (g1 - g2) / (1 - r)
        c2 = g1 - c1
        slope = c1 * (clean[i - 2] - clean[i - 1]) / r + c2 * news
    kept = sigmas[i] / sigmas[i - 1] * corrected[i - 1]
    return kept - (1 - sigmas[i]) * b * (clean[i - 1] + slope)


def log_ratio(sigma: float) -> float:
    return math.log((1 - sigma) / sigma) if sigma else math.inf
