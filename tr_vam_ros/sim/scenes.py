"""Scene 1 (paper E.4): three fruits, a bin and a paper bag, of primitive shapes.

Metres, kilograms. Objects are free bodies; receptacles are put somewhere else each episode and
stand firm there (mocap bodies). Where things go is `placement`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tr_vam_ros.sim.contact_bits import NOTHING, OBJECT_BITS, STATIC_BITS
from tr_vam_ros.sim.rendering import import_mujoco
from tr_vam_ros.sim.yam_shapes import Box, Color, Rod, Vector, add_shape

mujoco = import_mujoco()


@dataclass(frozen=True, slots=True)
class Thing:
    """Something to manipulate: balls along a line, joined to rods, lying on the table.

    centers: (x, y) of the balls in the object's frame; one ball is a sphere.
    """

    name: str
    kind: str  # class of objects that an instruction names
    mass: float
    radius: float
    color: Color
    centers: tuple[tuple[float, float], ...] = ((0.0, 0.0),)


@dataclass(frozen=True, slots=True)
class Receptacle:
    """An open box on the table: half of its inner size, height of its rim, all metres."""

    name: str
    half_x: float
    half_y: float
    height: float
    color: Color
    rim_color: Color

    def holds(self, offset: np.ndarray) -> bool:
        """Is a point inside? `offset` (3,) from the middle of the receptacle's bottom."""
        x, y, z = offset
        return bool(abs(x) < self.half_x and abs(y) < self.half_y and 0.0 < z < self.height)


# Every fruit fits between the open fingers, which are 94 mm apart.
APPLE = Thing('apple', 'fruit', 0.15, 0.034, (0.85, 0.08, 0.08, 1.0))
ORANGE = Thing('orange', 'fruit', 0.14, 0.033, (1.0, 0.52, 0.0, 1.0))
BANANA = Thing(
    'banana',
    'fruit',
    0.12,
    0.017,
    (1.0, 0.88, 0.15, 1.0),
    ((-0.062, -0.016), (-0.026, 0.008), (0.026, 0.008), (0.062, -0.016)),
)
THINGS = (APPLE, ORANGE, BANANA)

BIN = Receptacle('bin', 0.075, 0.085, 0.11, (0.12, 0.30, 0.65, 1.0), (0.20, 0.42, 0.85, 1.0))
PAPER_BAG = Receptacle(
    'paper_bag', 0.06, 0.09, 0.17, (0.66, 0.47, 0.28, 1.0), (0.74, 0.56, 0.36, 1.0)
)
RECEPTACLES = (BIN, PAPER_BAG)

WALL = 0.008  # thickness: enough for a dropped fruit at 2 ms a step
_RIM_HALF = (0.008, 0.005)  # half width and half height of the rolled rim
_STEM: Color = (0.30, 0.20, 0.05, 1.0)
_HANDLE: Color = (0.45, 0.30, 0.15, 1.0)
# Sliding, torsional and rolling friction. The last one, in metres, lets a nudged apple stop.
_SKIN = (1.2, 0.02, 0.001)
_ALL_FRICTION = 6  # MuJoCo's condim: all three kinds


def add_scene(spec) -> None:
    """Adds scene 1 to the mujoco.MjSpec of the cell; bodies are named as their things."""
    for thing in THINGS:
        _add_thing(spec, thing)
    # A stem and a banana's ends tell the fruits from plain balls and sausages.
    apple, banana = spec.body(APPLE.name), spec.body(BANANA.name)
    top = (0.0, 0.0, APPLE.radius)
    _decorate(apple, Rod(top, (0.004, 0.0, APPLE.radius + 0.012), 0.0025, _STEM))
    for x, y in (BANANA.centers[0], BANANA.centers[-1]):
        start, end = (x + np.copysign(BANANA.radius + more, x) for more in (-0.004, 0.004))
        _decorate(banana, Rod((start, y, 0.0), (end, y - 0.003, 0.0), 0.006, _STEM))
    for receptacle in RECEPTACLES:
        body = spec.worldbody.add_body(name=receptacle.name, mocap=True)
        _add_box(body, receptacle)
    _add_handles(spec.body(PAPER_BAG.name))


def _add_thing(spec, thing: Thing) -> None:
    body = spec.worldbody.add_body(name=thing.name)
    body.add_freejoint(name=thing.name)
    fields = dict(
        rgba=thing.color, friction=_SKIN, condim=_ALL_FRICTION, **OBJECT_BITS.fields()
    )
    if len(thing.centers) == 1:
        body.add_geom(
            name=thing.name,
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=(thing.radius, 0.0, 0.0),
            mass=thing.mass,
            **fields,
        )
        return
    rods = list(zip(thing.centers[:-1], thing.centers[1:]))
    for number, (start, end) in enumerate(rods):
        body.add_geom(
            name=f'{thing.name}/{number}',
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=(*start, 0.0, *end, 0.0),
            size=(thing.radius, 0.0, 0.0),
            mass=thing.mass / len(rods),
            **fields,
        )


def _add_box(body, receptacle: Receptacle) -> None:
    """Four walls around the inner size, a darker floor on the table, and the rim on top."""
    half_wall, half_height = WALL / 2, receptacle.height / 2
    x, y = receptacle.half_x + half_wall, receptacle.half_y + half_wall
    rim_width, rim_height = _RIM_HALF
    sides: tuple[tuple[Vector, Vector], ...] = tuple(
        ((sign * x, 0.0, half_height), (half_wall, y + half_wall, half_height))
        for sign in (-1.0, 1.0)
    ) + tuple(
        ((0.0, sign * y, half_height), (x - half_wall, half_wall, half_height))
        for sign in (-1.0, 1.0)
    )
    for number, (center, half) in enumerate(sides):
        wall = Box(center, half, receptacle.color)
        add_shape(body, f'{body.name}/wall{number}', wall, STATIC_BITS, mass=0.0)
        rim = Box(
            (center[0], center[1], receptacle.height - rim_height),
            (max(half[0], rim_width), max(half[1], rim_width), rim_height + 0.001),
            receptacle.rim_color,
            solid=False,
        )
        add_shape(body, f'{body.name}/rim{number}', rim, STATIC_BITS, mass=0.0)
    dark = (*(0.7 * part for part in receptacle.color[:3]), 1.0)
    floor = Box((0.0, 0.0, half_wall), (x, y, half_wall), dark)
    add_shape(body, f'{body.name}/floor', floor, STATIC_BITS, mass=0.0)


def _add_handles(bag) -> None:
    """Two loops of twisted paper above the long sides; they give way, so nothing touches them."""
    top = PAPER_BAG.height
    corners = ((-0.035, top), (-0.025, top + 0.05), (0.025, top + 0.05), (0.035, top))
    for x in (-PAPER_BAG.half_x - WALL / 2, PAPER_BAG.half_x + WALL / 2):
        for (y0, z0), (y1, z1) in zip(corners[:-1], corners[1:]):
            _decorate(bag, Rod((x, y0, z0), (x, y1, z1), 0.004, _HANDLE))


def _decorate(body, shape: Rod) -> None:
    """Adds something to look at only."""
    add_shape(body, '', replace(shape, solid=False), NOTHING, mass=0.0)
