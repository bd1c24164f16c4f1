"""Rows of the next chunk that are already being executed, inside the Euler loop.

Asynchronous execution: while the policy thinks, the arms go on along the last chunk, so the first
rows of the next one are decided before it exists. Each step steers the chunk towards them through
the Jacobian of its own clean estimate, so the rows that follow fit on. Source: Black, Galliker,
Levine, "Real-Time Execution of Action Chunking Flow Policies" (2025), eq. 2 to 4, with a hard mask.

Legend: a action row, f frozen row, k action dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class FrozenRows:
    rows: torch.Tensor  # (f, k), normalised
    weight: float  # beta, the strongest pull

    def steer(
        self,
        chunk: torch.Tensor,
        sigma: float,
        velocity_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """The velocity (1, a, k) at a noisy chunk (1, a, k), pulled towards the frozen rows."""
        with torch.enable_grad():
            noisy = chunk.detach().requires_grad_()
            velocity = velocity_of(noisy)
            clean = noisy - sigma * velocity
            error = torch.zeros_like(clean)
            error[:, : len(self.rows)] = self.rows - clean[:, : len(self.rows)].detach()
            (pull,) = torch.autograd.grad(clean, noisy, error)
        return velocity.detach() - self._strength(sigma) * pull

    def _strength(self, sigma: float) -> float:
        """(1 - tau) / (tau r^2) with tau = 1 - sigma and r^2 = sigma^2 / (tau^2 + sigma^2)."""
        tau = 1.0 - sigma
        if tau == 0.0:
            return self.weight
        return min(self.weight, (tau**2 + sigma**2) / (tau * sigma))
