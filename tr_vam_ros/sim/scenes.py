"""Scene 1 (paper E.4): three fruits, a bin and a paper bag, of primitive shapes.

Metres, in `left_base`. Objects are free bodies; receptacles are placed anew each episode and do
not move (mocap bodies). The placement depends on the episode key alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tr_vam_ros.sim.contact_bits import OBJECT_BITS, STATIC_BITS
from tr_vam_ros.sim.rendering import import_mujoco
from tr_vam_ros.sim.tasks import EpisodeKey

mujoco = import_mujoco()

_BOX, _SPHERE, _CAPSULE, _CYLINDER = (
    mujoco.mjtGeom.mjGEOM_BOX,
    mujoco.mjtGeom.mjGEOM_SPHERE,
    mujoco.mjtGeom.mjGEOM_CAPSULE,
    mujoco.mjtGeom.mjGEOM_CYLINDER,
)


@dataclass(frozen=True, slots=True)
class Thing:
    """An object: its class, how high its centre lies when it rests, and how wide it is."""

    name: str
    kind: str
    rest_height: float
    radius: float  # of the circle around it, seen from above


@dataclass(frozen=True, slots=True)
class Receptacle:
    """An open box: half inner width and depth, height of its rim."""

    name: str
    half_x: float
    half_y: float
    height: float


FRUITS = (
    Thing('apple', 'fruit', 0.034, 0.036),
    Thing('orange', 'fruit', 0.033, 0.035),
    Thing('banana', 'fruit', 0.018, 0.075),
)
BIN = Receptacle('bin', 0.075, 0.085, 0.11)
PAPER_BAG = Receptacle('paper_bag', 0.06, 0.09, 0.17)
RECEPTACLES = (BIN, PAPER_BAG)

# Where things stand: fruits in a row near the arms, receptacles behind them, a little jitter.
_FRUIT_X, _FRUIT_Y = 0.31, (-0.14, -0.305, -0.47)
_RECEPTACLE_X, _RECEPTACLE_Y = 0.5, (-0.18, -0.43)
_FRUIT_JITTER, _RECEPTACLE_JITTER = 0.03, 0.015
_WALL = 0.004  # half thickness


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything of a scene goes: (x, y, yaw) by name."""

    objects: dict[str, tuple[float, float, float]]
    receptacles: dict[str, tuple[float, float, float]]


def place(key: EpisodeKey) -> Placement:
    """The placement of an episode: the same key, the same numbers."""
    digest = hashlib.sha256(f'placement of {key}'.encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], 'little'))
    objects = {}
    for thing, slot in zip(FRUITS, random.permutation(len(FRUITS))):
        dx, dy = random.uniform(-_FRUIT_JITTER, _FRUIT_JITTER, 2)
        # A banana across the row would touch its neighbour's place.
        yaw = random.uniform(-0.5, 0.5)
        objects[thing.name] = (_FRUIT_X + dx, _FRUIT_Y[slot] + dy / 2, yaw)
    receptacles = {}
    for receptacle, slot in zip(RECEPTACLES, random.permutation(len(RECEPTACLES))):
        dx, dy = random.uniform(-_RECEPTACLE_JITTER, _RECEPTACLE_JITTER, 2)
        receptacles[receptacle.name] = (_RECEPTACLE_X + dx, _RECEPTACLE_Y[slot] + dy, 0.0)
    return Placement(objects, receptacles)


def add_scene(spec: mujoco.MjSpec) -> None:
    """Adds the objects and receptacles of scene 1 to the cell."""
    _add_apple(spec)
    _add_orange(spec)
    _add_banana(spec)
    _add_bin(spec)
    _add_paper_bag(spec)


def _free_body(spec, name: str, height: float):
    body = spec.worldbody.add_body(name=name, pos=[1.0, 0, height])
    body.add_freejoint(name=name)
    return body


_GRIP = {'friction': [1.2, 0.02, 0.001], 'condim': 4, **OBJECT_BITS.fields()}


def _add_apple(spec) -> None:
    body = _free_body(spec, 'apple', 0.034)
    body.add_geom(name='apple', type=_SPHERE, size=[0.034, 0, 0], rgba=[0.85, 0.08, 0.08, 1],
                  mass=0.12, **_GRIP)
    body.add_geom(type=_CYLINDER, pos=[0, 0, 0.038], size=[0.003, 0.008, 0],
                  rgba=[0.3, 0.2, 0.05, 1], mass=0.001, contype=0, conaffinity=0)


def _add_orange(spec) -> None:
    body = _free_body(spec, 'orange', 0.033)
    body.add_geom(name='orange', type=_SPHERE, size=[0.033, 0, 0], rgba=[1.0, 0.52, 0.0, 1],
                  mass=0.12, **_GRIP)


def _add_banana(spec) -> None:
    body = _free_body(spec, 'banana', 0.018)
    bend = [(-0.062, -0.018), (-0.026, 0.006), (0.026, 0.006), (0.062, -0.018)]
    for index, (start, end) in enumerate(zip(bend[:-1], bend[1:])):
        body.add_geom(name=f'banana{index}', type=_CAPSULE, size=[0.017, 0, 0],
                      fromto=[*start, 0, *end, 0], rgba=[1.0, 0.88, 0.15, 1], mass=0.04, **_GRIP)


def _add_walls(body, receptacle: Receptacle, colour) -> None:
    x, y, half = receptacle.half_x + _WALL, receptacle.half_y + _WALL, receptacle.height / 2
    sides = (
        ([x, 0, half], [_WALL, y, half]),
        ([-x, 0, half], [_WALL, y, half]),
        ([0, y, half], [x, _WALL, half]),
        ([0, -y, half], [x, _WALL, half]),
        ([0, 0, _WALL], [x, y, _WALL]),
    )
    for index, (position, size) in enumerate(sides):
        shade = [c * (0.75 if index == 4 else 1.0) for c in colour[:3]]
        body.add_geom(name=f'{receptacle.name}_wall{index}', type=_BOX, pos=position, size=size,
                      rgba=[*shade, 1], **STATIC_BITS.fields())


def _add_bin(spec) -> None:
    body = spec.worldbody.add_body(name='bin', mocap=True, pos=[1.5, 0, 0])
    _add_walls(body, BIN, (0.12, 0.3, 0.65))
    x, y = BIN.half_x + 2 * _WALL, BIN.half_y + 2 * _WALL
    for position, size in (([x, 0], [0.008, y + 0.008]), ([-x, 0], [0.008, y + 0.008]),
                           ([0, y], [x, 0.008]), ([0, -y], [x, 0.008])):
        body.add_geom(type=_BOX, pos=[*position, BIN.height], size=[*size, 0.005],
                      rgba=[0.2, 0.42, 0.85, 1], contype=0, conaffinity=0)


def _add_paper_bag(spec) -> None:
    body = spec.worldbody.add_body(name='paper_bag', mocap=True, pos=[1.5, 0.5, 0])
    _add_walls(body, PAPER_BAG, (0.66, 0.47, 0.28))
    # Two handles of twisted paper stand above the rim of the long sides.
    for side in (-1, 1):
        x, top = side * (PAPER_BAG.half_x + _WALL), PAPER_BAG.height
        corners = [(-0.035, top), (-0.025, top + 0.05), (0.025, top + 0.05), (0.035, top)]
        for (y0, z0), (y1, z1) in zip(corners[:-1], corners[1:]):
            body.add_geom(type=_CAPSULE, fromto=[x, y0, z0, x, y1, z1], size=[0.004, 0, 0],
                          rgba=[0.45, 0.3, 0.15, 1], contype=0, conaffinity=0)
