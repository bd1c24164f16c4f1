"""Grasps, releases, contacts and success, read off the simulator's contacts.

Success (paper E.4): the robot picks up the named object first and it reaches the named receptacle.
"""

from __future__ import annotations

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim import scenes
from tr_vam_ros.sim.rendering import import_mujoco
from tr_vam_ros.sim.tasks import Task

mujoco = import_mujoco()

_THINGS = {thing.name: thing for thing in scenes.FRUITS}


class SceneEvents:
    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._model, self._data = model, data
        self._labels = [self._label(geom) for geom in range(model.ngeom)]
        self._task: Task | None = None
        self._held: dict[str, str] = {}  # object -> arm
        self._touching: set[tuple[str, str]] = set()
        self._first_grasped = ''
        self._done = False

    def begin(self, task: Task) -> None:
        self._task, self._first_grasped, self._done = task, '', False
        self._held.clear()
        self._touching.clear()

    def poll(self) -> list[tuple[str, str]]:
        pairs = self._pairs()
        events = [*self._grasps(pairs), *self._contacts(pairs)]
        if self._succeeded():
            self._done = True
            events.append(('success', f'{self._first_grasped} in {self._task.receptacle}'))
        return events

    def _grasps(self, pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
        events = []
        for name in _THINGS:
            arms = [
                arm
                for arm in yam.ARMS
                if all((name, f'{arm}_finger{number}') in pairs for number in (1, 2))
            ]
            touched = any((name, f'{a}_finger{n}') in pairs for a in yam.ARMS for n in (1, 2))
            if arms and name not in self._held:
                self._held[name] = arms[0]
                self._first_grasped = self._first_grasped or name
                events.append(('grasp', f'{arms[0]}: {name}'))
            elif not touched and name in self._held:
                events.append(('release', f'{self._held.pop(name)}: {name}'))
        return events

    def _contacts(self, pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
        """New contacts of an arm with the table or with the other arm."""
        touching = set()
        for first, second in pairs:
            sides = {label.split('_')[0] for label in (first, second)}
            if sides == {'left', 'right'}:
                touching.add(('left', 'right'))
            elif 'table' in sides and sides & set(yam.ARMS):
                touching.add(((sides & set(yam.ARMS)).pop(), 'table'))
        new = touching - self._touching
        self._touching = touching
        return [('contact', f'{first}: {second}') for first, second in sorted(new)]

    def _succeeded(self) -> bool:
        if self._done or self._task is None or not self._first_grasped:
            return False
        thing = _THINGS[self._first_grasped]
        if thing.kind != self._task.target or thing.name in self._held:
            return False
        receptacle = next(r for r in scenes.RECEPTACLES if r.name == self._task.receptacle)
        offset = self._data.body(thing.name).xpos - self._data.body(receptacle.name).xpos
        return bool(
            abs(offset[0]) < receptacle.half_x
            and abs(offset[1]) < receptacle.half_y
            and 0 < offset[2] < receptacle.height
        )

    def _pairs(self) -> set[tuple[str, str]]:
        """Labels of what touches what, each pair in both orders."""
        pairs = set()
        for first, second in np.asarray(self._data.contact.geom).tolist():
            a, b = self._labels[first], self._labels[second]
            pairs.update(((a, b), (b, a)))
        return pairs

    def _label(self, geom: int) -> str:
        """The body a geom belongs to; the table and floor by their own names."""
        body = self._model.geom_bodyid[geom]
        return self._model.geom(geom).name if body == 0 else self._model.body(body).name
