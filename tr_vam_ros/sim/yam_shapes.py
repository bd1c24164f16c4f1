"""What the cell looks like and where it is solid: primitive shapes of table, links and lights.

The shapes are ours, drawn around the joint origins and centres of mass; they are within about a
centimetre of the real arm. Each link's shapes stand in its own frame (see yam_model.JOINTS).
Metres; rgba 0..1.
"""

from __future__ import annotations

from dataclasses import dataclass

from tr_vam_ros.sim.contact_bits import NOTHING, STATIC_BITS, ContactBits
from tr_vam_ros.sim.rendering import import_mujoco

mujoco = import_mujoco()

Vector = tuple[float, float, float]
Color = tuple[float, float, float, float]

SHELL: Color = (0.86, 0.87, 0.89, 1.0)
SHELL_DARKER: Color = (0.70, 0.72, 0.75, 1.0)
MOTOR: Color = (0.16, 0.17, 0.19, 1.0)
ACCENT: Color = (0.95, 0.42, 0.08, 1.0)
RUBBER: Color = (0.07, 0.07, 0.08, 1.0)
TABLE: Color = (0.80, 0.74, 0.65, 1.0)
TABLE_SEAM: Color = (0.70, 0.63, 0.53, 1.0)
FLOOR: Color = (0.36, 0.38, 0.41, 1.0)
ROOM: Color = (0.90, 0.93, 0.96, 1.0)

# Table top z = 0, around both arms; seams make its plane readable in a picture.
TABLE_CENTER: Vector = (0.36, -0.305, -0.02)
TABLE_HALF_SIZE: Vector = (0.56, 0.72, 0.02)
SEAM_SPACING = 0.18
SEAM_HALF_WIDTH = 0.0015
FLOOR_HEIGHT = -0.75
NEAREST, FARTHEST = 0.01, 50.0
ROOM_HALF, WALL_HEIGHT, WALL_HALF_THICKNESS = 4.0, 5.0, 0.01

# Sliding, torsional and rolling friction; rubber pads hold a fruit at 50 N many times over.
ARM_FRICTION = (0.8, 0.01, 0.0005)
PAD_FRICTION = (1.5, 0.02, 0.001)


@dataclass(frozen=True, slots=True)
class Box:
    center: Vector
    half_size: Vector
    color: Color = SHELL
    solid: bool = True
    friction: Vector = ARM_FRICTION


@dataclass(frozen=True, slots=True)
class Rod:
    """From `start` to `end` with flat ends, or round ones beyond them."""

    start: Vector
    end: Vector
    radius: float
    color: Color = SHELL
    round: bool = True
    solid: bool = True


def _motor(start: Vector, end: Vector, radius: float) -> Rod:
    return Rod(start, end, radius, MOTOR, round=False)


# Radii of the motors' housings: DM4340 57 mm, DM4310 56 mm across.
_BIG, _SMALL = 0.031, 0.028
# Middle of the upper arm and forearm between the motor's two faces, along the joint axis.
_MIDDLE = 0.0344


def _finger(sign: float) -> tuple[Box, ...]:
    """Carriage, orange blade and rubber pad; closed, the pad's face lies in the plane x = 0.

    The pad reaches 10 mm past the tool point, so that the tool point is between the pads.
    """
    return (
        Box((sign * 0.012, 0.0, 0.083), (0.012, 0.016, 0.010), MOTOR),
        Box((sign * 0.0085, 0.0, 0.122), (0.0035, 0.012, 0.033), ACCENT),
        Box((sign * 0.0025, 0.0, 0.130), (0.0025, 0.011, 0.025), RUBBER, friction=PAD_FRICTION),
    )


LINK_SHAPES: dict[str, tuple[Box | Rod, ...]] = {
    'base': (
        Box((0.0, 0.0, 0.006), (0.065, 0.055, 0.006), MOTOR),
        Rod((0.0, 0.0, 0.012), (0.0, 0.0, 0.062), 0.042, SHELL_DARKER, round=False),
    ),
    # link1: x points down, z backwards; the shoulder's axis is y through (-.0455, ., -.02).
    'link1': (
        Rod((-0.004, 0.0, 0.0), (-0.022, 0.0, 0.0), 0.044, SHELL, round=False),
        Box((-0.036, 0.0, -0.014), (0.018, 0.030, 0.026), SHELL),
    ),
    'link2': (
        _motor((0.0, 0.006, 0.0), (0.0, -0.0748, 0.0), _BIG),
        Rod((0.0, -_MIDDLE, 0.0), (0.0, -_MIDDLE, 0.264), 0.026, SHELL),
        Rod((0.0, -_MIDDLE, 0.06), (0.0, -_MIDDLE, 0.075), 0.0275, ACCENT, False, solid=False),
    ),
    'link3': (
        _motor((0.0, 0.006, 0.0), (0.0, -0.0748, 0.0), _BIG),
        Rod((0.0, -_MIDDLE, 0.0), (-0.058, -_MIDDLE, -0.035), 0.024, SHELL_DARKER),
        Rod((-0.060, -_MIDDLE, -0.035), (-0.060, -_MIDDLE, -0.245), 0.024, SHELL_DARKER),
    ),
    'link4': (
        _motor((0.0, -0.004, 0.0), (0.0, 0.072, 0.0), _SMALL),
        Rod((0.0, 0.034, 0.0), (-0.050, 0.034, -0.060), 0.022, SHELL),
        _motor((-0.075, 0.034, -0.074), (-0.030, 0.034, -0.074), _SMALL),
    ),
    'link5': (
        Rod((0.0, 0.0, 0.0), (0.030, 0.0, 0.0), 0.022, SHELL_DARKER, round=False),
        _motor((0.0405, 0.0, 0.026), (0.0405, 0.0, -0.0356), _SMALL),
    ),
    # flange: z forward through the tool point, fingers along x, wrist camera on the -y side.
    'flange': (
        Rod((0.0, 0.0, 0.0), (0.0, 0.0, 0.052), 0.030, SHELL, round=False),
        Box((0.0, 0.0, 0.062), (0.078, 0.022, 0.011), MOTOR),
        Box((0.0, -0.0225, 0.062), (0.060, 0.001, 0.004), ACCENT, solid=False),
        # The camera's bracket, and the camera (a D405 is 42 x 42 x 23 mm) behind its lens.
        Box((0.0, -0.045, 0.050), (0.012, 0.026, 0.003), MOTOR),
        Box((0.0, -0.074, 0.062), (0.021, 0.020, 0.010), RUBBER),
    ),
    'finger1': _finger(1.0),
    'finger2': _finger(-1.0),
}


def add_link_shapes(body, link: str, bits: ContactBits) -> None:
    """Adds the shapes of a link to its MjsBody, named `<body>/<number>`. They weigh nothing."""
    for number, shape in enumerate(LINK_SHAPES[link]):
        add_shape(body, f'{body.name}/{number}', shape, bits, mass=0.0)


def add_shape(body, name: str, shape: Box | Rod, bits: ContactBits, mass: float, **fields) -> None:
    """One shape as an MjsGeom; `bits` count where the shape is solid."""
    fields |= (bits if shape.solid else NOTHING).fields()
    if isinstance(shape, Box):
        body.add_geom(
            name=name,
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=shape.center,
            size=shape.half_size,
            rgba=shape.color,
            friction=shape.friction,
            mass=mass,
            **fields,
        )
    else:
        kind = mujoco.mjtGeom.mjGEOM_CAPSULE if shape.round else mujoco.mjtGeom.mjGEOM_CYLINDER
        body.add_geom(
            name=name,
            type=kind,
            fromto=(*shape.start, *shape.end),
            size=(shape.radius, 0.0, 0.0),
            rgba=shape.color,
            friction=ARM_FRICTION,
            mass=mass,
            **fields,
        )


def add_surroundings(spec) -> None:
    """Table (geom `table`), floor, and light from above that keeps every face readable."""
    world = spec.worldbody
    add_shape(world, 'table', Box(TABLE_CENTER, TABLE_HALF_SIZE, TABLE), STATIC_BITS, mass=0.0)
    x, y, _ = TABLE_CENTER
    half_depth, half_width, _ = TABLE_HALF_SIZE
    seams = int(half_width // SEAM_SPACING)
    for number in range(-seams, seams + 1):
        center = (x, y + number * SEAM_SPACING, 0.0)
        seam = Box(center, (half_depth, SEAM_HALF_WIDTH, 0.0002), TABLE_SEAM, solid=False)
        add_shape(world, f'seam/{number}', seam, NOTHING, mass=0.0)
    world.add_geom(
        name='floor',
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        pos=(0.0, 0.0, FLOOR_HEIGHT),
        size=(ROOM_HALF, ROOM_HALF, 0.1),
        rgba=FLOOR,
        **STATIC_BITS.fields(),  # it catches what falls off the table
    )
    # Walls: without them everything above the floor's edge is black. A sky box, the usual way,
    # costs a software renderer 4 ms for three pictures of 10 ms in all.
    middle = FLOOR_HEIGHT + WALL_HEIGHT / 2
    for number, (x, y) in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1))):
        center = (x * ROOM_HALF, y * ROOM_HALF, middle)
        half_size = (
            ROOM_HALF * abs(y) + WALL_HALF_THICKNESS,
            ROOM_HALF * abs(x) + WALL_HALF_THICKNESS,
            WALL_HEIGHT / 2,
        )
        wall = Box(center, half_size, ROOM, solid=False)
        add_shape(world, f'room/{number}', wall, NOTHING, mass=0.0)
    # A camera sees from 1 cm to 50 m: MuJoCo counts in extents, which it would take from the room.
    spec.stat.extent = 1.0
    spec.visual.map.znear, spec.visual.map.zfar = NEAREST, FARTHEST
    spec.visual.headlight.ambient = (0.38,) * 3
    spec.visual.headlight.diffuse = (0.22,) * 3
    spec.visual.headlight.specular = (0.05,) * 3
    for name, position in {'light_left': (0.1, 0.7, 1.8), 'light_right': (0.7, -1.2, 1.8)}.items():
        toward = [c - p for c, p in zip(TABLE_CENTER, position)]
        world.add_light(
            name=name,
            pos=position,
            dir=toward,
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
            diffuse=(0.32,) * 3,
            specular=(0.1,) * 3,
            castshadow=False,  # a shadow pass costs as much as the picture on a CPU
        )
