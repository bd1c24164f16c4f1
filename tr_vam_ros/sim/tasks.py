"""The eight evaluation tasks (paper, table 13) and the key that names an episode.

An episode key is `scene{S}/task{T}/seed{N}/ep{E}`: it feeds the policy's noise generator and the
placement of the scene, so the same key is the same episode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tr_vam_ros.errors import InputError


@dataclass(frozen=True, slots=True)
class Task:
    number: int
    scene: int
    instruction: str
    target: str  # class of the object that must move
    receptacle: str


TASKS = {
    task.number: task
    for task in (
        Task(1, 1, 'Throw away the fruits into the bin', 'fruit', 'bin'),
        Task(2, 1, 'Place the fruits into the paper bag', 'fruit', 'paper_bag'),
        Task(3, 2, 'Place snacks into the paper bag', 'snack', 'paper_bag'),
        Task(4, 2, 'Throw away the snacks into the bin', 'snack', 'bin'),
        Task(5, 2, 'Place plastic bottle into the paper bag', 'bottle', 'paper_bag'),
        Task(6, 2, 'Throw away the plastic bottle into the bin', 'bottle', 'bin'),
        Task(7, 3, 'Place snacks into the bin', 'snack', 'bin'),
        Task(8, 3, 'Arrange snacks on the shelf', 'snack', 'shelf'),
    )
}
# Scenes the simulated cell can build so far.
BUILT_SCENES = (1,)

_KEY = re.compile(r'scene(\d+)/task(\d+)/seed(\d+)/ep(\d+)')


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    scene: int
    task: int
    seed: int
    episode: int

    def __str__(self) -> str:
        return f'scene{self.scene}/task{self.task}/seed{self.seed}/ep{self.episode}'

    @classmethod
    def parse(cls, text: str) -> EpisodeKey:
        """Raises InputError when `text` is not a key of the simulated cell."""
        match = _KEY.fullmatch(text)
        if not match:
            raise InputError(
                f'episode key {text[:80]!r}: the cell needs scene<S>/task<T>/seed<N>/ep<E>, '
                'for example scene1/task1/seed0/ep0'
            )
        key = cls(*(int(group) for group in match.groups()))
        task = find_task(key.task)
        if task.scene != key.scene:
            raise InputError(
                f'episode key {text!r}: task {key.task} belongs to scene {task.scene}, '
                f'not {key.scene}'
            )
        return key


def find_task(number: int) -> Task:
    """The task of table 13; raises InputError if it does not exist or its scene is not built."""
    if number not in TASKS:
        raise InputError(f'task {number}: unknown; choose one of 1 to {len(TASKS)} (table 13)')
    task = TASKS[number]
    if task.scene not in BUILT_SCENES:
        runnable = ', '.join(str(t.number) for t in TASKS.values() if t.scene in BUILT_SCENES)
        raise InputError(
            f'task {number}: needs scene {task.scene}, which the simulated cell does not have yet; '
            f'choose one of {runnable}'
        )
    return task
