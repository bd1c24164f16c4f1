"""Episodes and their replan requests: keys, indices, deadlines. No motion, no ROS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.timeline import SECOND

MAX_INSTRUCTION = 2000  # characters
# Observation times are rounded up to whole controller updates, so that a simulator that steps in
# updates can stop exactly there.
OBSERVATION_GRID_NS = 4_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """Fields of ReplanRequest."""

    request_id: int
    episode_key: str
    replan_index: int
    instruction: str
    not_before_ns: int
    executed_rows: int


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
        self.key = ''
        self.index = 0
        self.request: Request | None = None
        self.succeeded = ''

    def check(self, instruction: str | None) -> None:
        check_instruction(self._instruction if instruction is None else instruction)

    def begin(self, now_ns: int, rest_ns: int, instruction: str | None) -> EpisodeEvent:
        if instruction is not None:
            self._instruction = instruction
        self._instruction = check_instruction(self._instruction)
        self.index = self._count
        self.key = f'{self._settings.episode_prefix}/ep{self.index}'
        self._count += 1
        self.request, self._closing_ns, self.succeeded = None, None, ''
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

    def again(self) -> Request:
        """The same request under a new id, after a chunk that was refused."""
        self._request_id += 1
        self.request = replace(self.request, request_id=self._request_id)
        return self.request

    def awaits(self, chunk: Chunk) -> bool:
        wanted = self.request
        return (
            wanted is not None
            and self._closing_ns is None
            and (chunk.request_id, chunk.episode_key, chunk.replan_index)
            == (wanted.request_id, wanted.episode_key, wanted.replan_index)
        )

    def over(self, now_ns: int) -> bool:
        if self._closing_ns is not None:
            return now_ns >= self._closing_ns
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
        self.key, self.request, self._closing_ns = '', None, None
        return event

    def forget_time(self) -> None:
        self._latest_ns = 0

    def _make(self, index: int, not_before_ns: int, executed_rows: int) -> Request:
        self._request_id += 1
        return Request(
            self._request_id, self.key, index, self._instruction, not_before_ns, executed_rows
        )


def _on_grid(time_ns: int) -> int:
    return -(-time_ns // OBSERVATION_GRID_NS) * OBSERVATION_GRID_NS
