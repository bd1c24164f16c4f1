"""Episodes and their replan requests: keys, indices, deadlines. No motion, no ROS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.timeline import SECOND

MAX_INSTRUCTION = 2000  # characters
# Observation times are rounded up to whole controller updates, so that a simulator that steps in
# updates can stop exactly there.
OBSERVATION_GRID_NS = 4_000_000
NO_ROWS = np.zeros((0, yam.DOF))


@dataclass(frozen=True, slots=True)
class Request:
    """Fields of ReplanRequest."""

    request_id: int
    episode_key: str
    replan_index: int
    instruction: str
    not_before_ns: int
    executed_rows: int
    frozen_rows: np.ndarray = field(default_factory=lambda: NO_ROWS)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Fields of ActionChunk."""

    request_id: int
    episode_key: str
    replan_index: int
    joint_names: Sequence[str]
    horizon: int
    period: float
    actions: Sequence[float]
    error: str = ''
    observed_ns: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeEvent:
    """Fields of Episode."""

    event: str  # start, closing, end
    key: str
    index: int
    instruction: str
    stamp_ns: int
    outcome: str = ''
    reason: str = ''


def check_instruction(text: str) -> str:
    """The instruction without surrounding blanks; raises InputError if empty or too long."""
    text = text.strip()
    if not text:
        raise InputError('instruction: empty; say what to do, for example "pick up the apple"')
    if len(text) > MAX_INSTRUCTION:
        raise InputError(
            f'instruction: {len(text)} characters, at most {MAX_INSTRUCTION} are allowed; shorten it'
        )
    return text


class Episodes:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._instruction = settings.instruction
        self._count = 0
        self._request_id = 0
        self._latest_ns = 0  # the last time at which an episode began or ended
        self._deadline_ns = 0
        self._closing_ns: int | None = None
        self._paused_ns: int | None = None
        self.key = ''
        self.index = 0
        self.request: Request | None = None
        self.succeeded = ''
        self._last: EpisodeEvent | None = None

    def change(self, instruction: str, episode_seconds: float) -> None:
        """Instruction ('' keeps the present one) and length of the episodes that begin from now on.

        Raises InputError on an instruction that is too long, and changes nothing.
        """
        if instruction:
            self._instruction = check_instruction(instruction)
        self._settings = replace(self._settings, episode_seconds=episode_seconds)

    def check(self, instruction: str | None) -> None:
        check_instruction(self._instruction if instruction is None else instruction)

    def begin(self, now_ns: int, rest_ns: int, instruction: str | None) -> EpisodeEvent:
        if instruction is not None:
            self._instruction = instruction
        self._instruction = check_instruction(self._instruction)
        self.index = self._count
        self.key = f'{self._settings.episode_prefix}/ep{self.index}'
        self._count += 1
        self.request, self._closing_ns, self._paused_ns, self.succeeded = None, None, None, ''
        if self._settings.lockstep:
            # The clock stands where the last episode ended, whenever this is called.
            self._latest_ns = self._latest_ns or now_ns
        else:
            self._latest_ns = max(self._latest_ns, now_ns, rest_ns)
        return EpisodeEvent('start', self.key, self.index, self._instruction, self._latest_ns)

    def first_request(self, not_before_ns: int) -> Request:
        not_before_ns = _on_grid(not_before_ns)
        if self._settings.episode_seconds > 0:
            self._deadline_ns = not_before_ns + int(self._settings.episode_seconds * SECOND)
        else:
            self._deadline_ns = 0
        self.request = self._make(0, not_before_ns, 0)
        return self.request

    def following(self, rest_ns: int, executed_rows: int) -> Request | EpisodeEvent:
        """What follows a motion that ends at `rest_ns`: the next request, or the closing."""
        not_before_ns = _on_grid(rest_ns + int(self._settings.settle * SECOND))
        if self._deadline_ns and not_before_ns >= self._deadline_ns:
            self._closing_ns = not_before_ns
            return EpisodeEvent('closing', self.key, self.index, self._instruction, not_before_ns)
        self.request = self._make(self.request.replan_index + 1, not_before_ns, executed_rows)
        return self.request

    def ahead(self, now_ns: int, executed_rows: int, frozen_rows: np.ndarray) -> Request:
        """The next request of arms that move: observe now."""
        self.request = self._make(self.request.replan_index + 1, now_ns, executed_rows)
        self.request = replace(self.request, frozen_rows=frozen_rows)
        return self.request

    def again(self, **changes) -> Request:
        """The last request under a new id, with `changes`, after a chunk that was refused."""
        self._request_id += 1
        self.request = replace(self.request, request_id=self._request_id, **changes)
        return self.request

    @property
    def closing(self) -> bool:
        """Whether the last motion of the episode is under way."""
        return self._closing_ns is not None

    def close(self, rest_ns: int) -> None:
        """No further chunk is awaited; the episode is over when the arms rest."""
        self._closing_ns = rest_ns

    def pause(self, now_ns: int) -> None:
        """No chunk is awaited, and the episode's time stands still, until `resume`."""
        self._paused_ns = now_ns

    def resume(self, now_ns: int, not_before_ns: int) -> Request:
        if self._deadline_ns:
            self._deadline_ns += now_ns - self._paused_ns
        self._paused_ns = None
        return self.again(not_before_ns=_on_grid(not_before_ns), frozen_rows=NO_ROWS)

    def awaits(self, chunk: Chunk) -> bool:
        wanted = self.request
        return (
            wanted is not None
            and self._closing_ns is None
            and self._paused_ns is None
            and (chunk.request_id, chunk.episode_key, chunk.replan_index)
            == (wanted.request_id, wanted.episode_key, wanted.replan_index)
        )

    def over(self, now_ns: int) -> bool:
        if self._closing_ns is not None:
            return now_ns >= self._closing_ns
        if self._paused_ns is not None:
            return False
        return bool(self._deadline_ns) and self.request is not None and now_ns >= self._deadline_ns

    def end(self, now_ns: int, rest_ns: int, outcome: str, reason: str) -> EpisodeEvent:
        if self._closing_ns is not None:
            stamp_ns = self._closing_ns
        elif self._settings.lockstep:
            observed_ns = self.request.not_before_ns if self.request else 0
            stamp_ns = _on_grid(max(rest_ns, self._latest_ns, observed_ns))
        else:
            stamp_ns = now_ns
        event = EpisodeEvent(
            'end', self.key, self.index, self._instruction, stamp_ns, outcome, reason
        )
        self._latest_ns = max(self._latest_ns, stamp_ns)
        self._last = event
        self.key, self.request, self._closing_ns, self._paused_ns = '', None, None, None
        return event

    def mark_last(self, outcome: str, reason: str) -> EpisodeEvent:
        """The end of the last episode again, as an operator judges it.

        Raises InputError if no episode has ended yet.
        """
        if self._last is None:
            raise InputError('mark: no episode has run yet')
        self._last = replace(self._last, outcome=outcome, reason=reason)
        return self._last

    def forget_time(self) -> None:
        self._latest_ns = 0

    def _make(self, index: int, not_before_ns: int, executed_rows: int) -> Request:
        self._request_id += 1
        return Request(
            self._request_id, self.key, index, self._instruction, not_before_ns, executed_rows
        )


def _on_grid(time_ns: int) -> int:
    return -(-time_ns // OBSERVATION_GRID_NS) * OBSERVATION_GRID_NS
