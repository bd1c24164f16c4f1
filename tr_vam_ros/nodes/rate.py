"""How often something happens."""

from __future__ import annotations

from collections import deque

WINDOW = 2.0  # s


class Rate:
    """Events a second over the last two seconds of whatever clock it is told."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def add(self, now: float) -> None:
        self._times.append(now)

    def hertz(self, now: float) -> float:
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if len(self._times) < 2:
            return 0.0
        return (len(self._times) - 1) / (self._times[-1] - self._times[0])
