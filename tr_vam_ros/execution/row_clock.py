"""How many rows the arms have executed by when: what decides which rows a late chunk skips.

The clock runs at one row a period where a chunk is executed as its policy timed it, slower where
it is slowed down or comes to rest, and stands while the arms stand. Rows skipped at a hand-over
are read from it, so they are the rows really executed since the observation, never an estimate
of latency.
"""

from __future__ import annotations

import numpy as np

from tr_vam_ros.execution.timeline import SECOND

KEPT_NS = 60 * SECOND  # an observation older than this answers no request


class RowClock:
    """Rows executed since it was made, a float that never decreases; linear between knots."""

    def __init__(self, time_ns: int) -> None:
        self._times = np.array([time_ns], dtype=np.int64)
        self._rows = np.zeros(1)

    def at(self, time_ns: int) -> float:
        return float(np.interp(time_ns, self._times, self._rows))

    def when(self, rows: float) -> int:
        """The first time, ns, at which `rows` are executed; the last known one if they never are."""
        last = min(int(np.searchsorted(self._rows, rows)), len(self._rows) - 1)
        if last == 0 or rows >= self._rows[last]:
            return int(self._times[last])
        before = self._rows[last - 1]
        share = (rows - before) / (self._rows[last] - before)
        return int(self._times[last - 1] + share * (self._times[last] - self._times[last - 1]))

    def speed(self, time_ns: int, period: float) -> float:
        """1 where rows pass at the policy's own rate, 0 at rest."""
        around = int(period * SECOND) // 2
        passed = self.at(time_ns + around) - self.at(time_ns - around)
        return passed * period * SECOND / (2 * around)

    def continue_from(self, from_ns: int, times: np.ndarray, passed: np.ndarray) -> None:
        """From `from_ns` on: `passed` (n,) rows more at `times` (n,), both increasing."""
        rows = self.at(from_ns)
        kept = (self._times < from_ns) & (self._times > from_ns - KEPT_NS)
        self._times = np.concatenate([self._times[kept], [from_ns], times])
        self._rows = np.concatenate([self._rows[kept], [rows], rows + passed])
