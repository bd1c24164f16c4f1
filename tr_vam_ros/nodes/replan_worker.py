"""One thread that answers replan requests one at a time. No ROS.

A newer request replaces a waiting one. Torch cannot be interrupted, so every request carries the
generation in which it was made; `cancel` begins a new generation, and a result of an old one is
dropped. `publish` runs while the lock is held: once `cancel` has returned nothing comes out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tr_vam_ros.errors import InputError
from tr_vam_ros.nodes.observations import Observation, Observations

WAKE_SECONDS = 0.05  # how often a wait looks at the clock


class Wanted(Protocol):
    """What the worker needs of a ReplanRequest."""

    request_id: int
    episode_key: str
    replan_index: int
    instruction: str
    frozen_count: int
    frozen_rows: Sequence[float]


class ReplanWorker:
    def __init__(
        self,
        policy: Any,
        observations: Observations,
        *,
        not_before_ns: Callable[[Wanted], int],
        now_ns: Callable[[], int],
        publish: Callable[[Wanted, Observation, Any, bool], None],
        refuse: Callable[[Wanted, Observation, str], None],
        report: Callable[[str], None],
        patience_ns: int,
        thinking: Callable[[bool], None] = lambda on: None,
    ) -> None:
        """publish: its last argument is True for an answer that went out before.

        refuse: as `publish`, for a replan that failed, with the reason: out of memory, a bad
            instruction, weights that produce no numbers. An observation that does not come is
            no such failure: the request waits, and may be asked again.

        report: takes an error for the user; '' says that the last one is over.

        thinking: told True before and False after each inference, on the worker's thread.
        """
        self._policy = policy
        self._observations = observations
        self._not_before_ns, self._now_ns = not_before_ns, now_ns
        self._publish, self._refuse, self._report = publish, refuse, report
        self._patience_ns = patience_ns
        self._thinking = thinking
        self._lock = threading.Lock()
        self._generation = 0
        self._waiting: tuple[int, Wanted] | None = None
        self._busy_id: tuple[str, int] | None = None
        self._answered: tuple[Wanted, Observation, Any] | None = None
        self._episode: tuple[str, str] | None = None  # what the policy was last reset to
        self._change: Callable[[], None] | None = None  # of the policy, before its next episode
        self._wake = observations.changed
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name='replan', daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Wanted) -> None:
        """Takes a request; a repeated one is answered from what is known or under way."""
        identity = (request.episode_key, request.request_id)
        with self._lock:
            if self._answered is not None:
                known = self._answered[0]
                if (known.episode_key, known.request_id) == identity:
                    self._publish(*self._answered, True)
                    return
            if self._busy_id == identity:
                return
            self._generation += 1  # the running one is no longer wanted
            self._waiting = (self._generation, request)
            self._busy_id = identity
        with self._wake:
            self._wake.notify_all()

    def before_next_episode(self, change: Callable[[], None]) -> None:
        """Calls `change` on the worker's thread, between two episodes; a later one replaces it."""
        with self._lock:
            self._change = change

    def cancel(self) -> None:
        """Nothing is published after this returns, until the next `submit`."""
        with self._lock:
            self._generation += 1
            self._waiting = self._busy_id = self._answered = None

    def stop(self, timeout: float = 5.0) -> None:
        self.cancel()
        self._stopped = True
        with self._wake:
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped:
            with self._lock:
                job, self._waiting = self._waiting, None
            if job is None:
                with self._wake:
                    self._wake.wait(WAKE_SECONDS)
                continue
            try:
                observation = self._observe(*job)
            except InputError as error:
                self._fail(*job, None, str(error))
                continue
            if observation is None:
                continue
            try:
                self._answer(*job, observation)
            except InputError as error:
                self._fail(*job, observation, str(error))
            except Exception as error:  # noqa: BLE001 - the node outlives any fault of a replan
                self._fail(*job, observation, _reason(error))

    def _answer(self, generation: int, request: Wanted, observation: Observation) -> None:
        episode = (request.instruction, request.episode_key)
        if episode != self._episode:
            with self._lock:
                change, self._change = self._change, None
            if change is not None:
                change()
            self._policy.reset_episode(*episode)
            self._episode = episode
        self._thinking(True)
        try:
            replan = self._policy.replan(
                observation.image,
                observation.proprio,
                index=request.replan_index,
                commit=False,
                frozen_rows=_frozen_rows(request),
            )
        finally:
            self._thinking(False)
        with self._lock:
            if generation != self._generation:
                return
            self._policy.commit(replan)
            self._answered = (request, observation, replan)
            self._busy_id = None
            self._publish(*self._answered, False)
        self._report(replan.warning)

    def _observe(self, generation: int, request: Wanted) -> Observation | None:
        """Waits for the observation; None when the request is no longer wanted."""
        wanted_ns = self._not_before_ns(request)
        late = False
        with self._wake:
            while not self._stopped and generation == self._generation:
                observation = self._observations.pair(wanted_ns)
                if observation is not None:
                    return observation
                if not late and self._now_ns() > wanted_ns + self._patience_ns:
                    late = True
                    self._report(
                        f'no observation within {self._patience_ns / 1e9:g} s after it was asked '
                        'for: are camera_stack and the joint states running?'
                    )
                self._wake.wait(WAKE_SECONDS)
        return None

    def _fail(
        self, generation: int, request: Wanted, observation: Observation | None, message: str
    ) -> None:
        with self._lock:
            if generation == self._generation:
                self._busy_id = None
                if observation is not None:
                    self._refuse(request, observation, message)
        self._report(message)


def _reason(error: Exception) -> str:
    said = ' '.join(str(error).split())
    # Torch has an exception of its own for a GPU, and for the CPU a RuntimeError with these words.
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == 'OutOfMemoryError'
        or "can't allocate memory" in said
    ):
        return (
            f'replan failed: out of memory ({said or "no further word"}); use precision bfloat16, '
            "guidance 'off', a smaller preset or another device"
        )
    return f'replan failed: {type(error).__name__}: {said}'


def _frozen_rows(request: Wanted) -> np.ndarray | None:
    """float32 (f, k); None where the arms stand."""
    count, values = request.frozen_count, np.asarray(request.frozen_rows, dtype=np.float32)
    if count == 0 and len(values) == 0:
        return None
    if count == 0 or len(values) % count:
        raise InputError(
            f'replan request: {len(values)} values in frozen_rows are not {count} whole rows; '
            'send frozen_count times joints'
        )
    return values.reshape(count, -1)
