"""Where the time of a replan went."""

from __future__ import annotations

import time


class Stopwatch:
    """Wall time since the last lap, added up by stage."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """The time since the last lap belongs to `stage`."""
        now = time.perf_counter()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def milliseconds(self) -> dict[str, float]:
        """Milliseconds by stage, and 'total' since the start."""
        seconds = {**self._stages, 'total': self._last - self._start}
        return {stage: 1e3 * value for stage, value in seconds.items()}
