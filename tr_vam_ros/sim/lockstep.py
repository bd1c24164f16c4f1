"""When a lockstep simulator may go on. No ROS, no physics.

The clock stands at an observation until everything that decides the next stretch of time is in:
both arms' trajectories and the time of the next observation. So the same seed gives the same
episode, however slow inference is and in whatever order messages come.
"""

from __future__ import annotations

from tr_vam_ros.embodiments import yam


class LockstepBarrier:
    def __init__(self) -> None:
        self._arms: set[str] = set()
        self._next_ns = 0  # time of the next observation, or of the episode's closing
        self._end_ns = 0

    def trajectory(self, arm: str) -> None:
        self._arms.add(arm)

    def observe_at(self, time_ns: int) -> None:
        """The next observation was asked for, or the episode closes at this time."""
        self._next_ns = max(self._next_ns, time_ns)

    def episode_ended(self, time_ns: int) -> None:
        """The episode is over: the clock may run to this time without anything else."""
        self._end_ns = max(self._end_ns, time_ns)

    def go_to(self, now_ns: int) -> int | None:
        """Time to advance to and stand still at again, or None while something is missing."""
        if self._end_ns > now_ns:
            target = self._end_ns
        elif self._next_ns > now_ns and len(self._arms) == len(yam.ARMS):
            target = self._next_ns
        else:
            return None
        self._arms.clear()
        return target
