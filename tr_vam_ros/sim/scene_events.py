"""Grasps, releases, contacts and success, read off the simulator's contacts.

Success (paper E.4): the robot picks up the named object first and it reaches the named receptacle.
Here: the first thing ever grasped is of the task's class, and the first grasped thing that comes
to lie in a receptacle is of that class and lies in the named one. A delivery into the wrong one
decides the episode too: there is no success after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim.rendering import import_mujoco
from tr_vam_ros.sim.scenes import RECEPTACLES, THINGS
from tr_vam_ros.sim.tasks import Task

mujoco = import_mujoco()

# A state counts once it has held for so many updates in a row (0.05 s at one update every
# 10 ms): contacts flicker while a finger slides, and a fruit may bounce off a rim.
STEADY_UPDATES = 5

Event = tuple[str, str]
Pairs = set[tuple[str, str]]


class _Debounced:
    """A value that changes once the new one has been seen STEADY_UPDATES times in a row."""

    def __init__(self) -> None:
        self.value = ''
        self._candidate, self._seen = '', 0

    def update(self, value: str) -> bool:
        """True when `self.value` has just changed."""
        if value == self.value:
            self._seen = 0
            return False
        self._seen = self._seen + 1 if value == self._candidate else 1
        self._candidate = value
        if self._seen < STEADY_UPDATES:
            return False
        self.value, self._seen = value, 0
        return True


@dataclass(slots=True)
class _Track:
    """What is known about one thing: which arm holds it, in which receptacle it lies."""

    kind: str
    arm: _Debounced = field(default_factory=_Debounced)
    place: _Debounced = field(default_factory=_Debounced)
    grasped: bool = False  # ever, in this episode


class SceneEvents:
    """Watches one simulation. `update` is to be called at a fixed period of simulated time."""

    def __init__(self, model, data) -> None:
        self._data = data
        self._labels = [_label(model, geom) for geom in range(model.ngeom)]
        self._bodies = {
            name: model.body(name).id for name in (t.name for t in (*THINGS, *RECEPTACLES))
        }
        self._queue: list[Event] = []
        self.begin(None)

    def begin(self, task: Task | None) -> None:
        """Forget everything and watch for the success of `task`; None: there is no success."""
        self._queue.clear()
        self._task = task
        self._decided = task is None
        self._tracks = {thing.name: _Track(thing.kind) for thing in THINGS}
        self._touching: dict[tuple[str, str], _Debounced] = {
            pair: _Debounced() for pair in (('left', 'table'), ('right', 'table'), yam.ARMS)
        }

    def poll(self) -> list[Event]:
        """What happened since the last call, oldest first."""
        events, self._queue = self._queue, []
        return events

    def update(self) -> None:
        """Look at the present contacts and positions."""
        pairs = self._pairs()
        for name, track in self._tracks.items():
            self._queue.extend(self._follow(name, track, pairs))
        self._queue.extend(self._contacts(pairs))

    def _follow(self, name: str, track: _Track, pairs: Pairs) -> Iterator[Event]:
        before = track.arm.value
        if track.arm.update(_holder(name, before, pairs)):
            if before:
                yield 'release', f'{before}: {name}'
            if track.arm.value:
                if not any(other.grasped for other in self._tracks.values()):
                    self._decided |= self._task is None or track.kind != self._task.target
                track.grasped = True
                yield 'grasp', f'{track.arm.value}: {name}'
        if track.place.update(self._place(name, track)) and track.place.value:
            if track.grasped and not self._decided:
                self._decided = True
                if track.kind == self._task.target and track.place.value == self._task.receptacle:
                    yield 'success', f'{name} in {track.place.value}'

    def _place(self, name: str, track: _Track) -> str:
        """The receptacle in which a thing that no arm holds lies now, or ''."""
        if track.arm.value:
            return ''
        position = self._data.xpos[self._bodies[name]]
        for receptacle in RECEPTACLES:
            body = self._bodies[receptacle.name]
            turn = self._data.xmat[body].reshape(3, 3)
            if receptacle.holds((position - self._data.xpos[body]) @ turn):
                return receptacle.name
        return ''

    def _contacts(self, pairs: Pairs) -> Iterator[Event]:
        """The first touch of an arm and the table or the other arm; the next after a pause."""
        sides = {tuple(sorted({_side(a), _side(b)})) for a, b in pairs}
        for pair, touching in self._touching.items():
            now = pair in sides
            if now and not touching.value:
                # A touch counts at once, its end only when it lasts.
                touching.value = 'touching'
                yield 'contact', f'{pair[0]}: {pair[1]}'
            else:
                touching.update('touching' if now else '')

    def _pairs(self) -> Pairs:
        """Labels of what touches what, each pair in both orders."""
        labels = self._labels
        pairs = set()
        for first, second in self._data.contact.geom.tolist():
            pairs.add((labels[first], labels[second]))
            pairs.add((labels[second], labels[first]))
        return pairs


def _holder(name: str, before: str, pairs: Pairs) -> str:
    """The arm that holds a thing: with both fingers, and then as long as one still touches."""
    for arm in yam.ARMS:
        fingers = [(name, f'{arm}_finger{number}') in pairs for number in (1, 2)]
        if all(fingers) or (before == arm and any(fingers)):
            return arm
    return ''


def _side(label: str) -> str:
    """'left' or 'right' for any of an arm's links, else the label itself."""
    prefix = label.split('_')[0]
    return prefix if prefix in yam.ARMS else label


def _label(model, geom: int) -> str:
    """The body that a geom belongs to; table and floor, which belong to none, by their names."""
    body = model.geom_bodyid[geom]
    return model.geom(geom).name if body == 0 else model.body(body).name
