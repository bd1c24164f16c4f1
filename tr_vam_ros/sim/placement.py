"""Where the things of a scene stand in an episode: a function of the episode key alone.

Metres and radians in left_base. Fruits lie in the middle, in reach of both arms; the receptacles
stand behind them, left and right or the other way round. Fruits keep a finger's width from each
other and from the receptacles, so that an arm can get between.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tr_vam_ros.sim.scenes import RECEPTACLES, THINGS, WALL, Receptacle, Thing
from tr_vam_ros.sim.tasks import EpisodeKey

MIDDLE_Y = -0.305  # between the arms
FRUIT_X = (0.21, 0.34)
FRUIT_Y = (MIDDLE_Y - 0.15, MIDDLE_Y + 0.15)
RECEPTACLE_X = 0.48
RECEPTACLE_Y = (MIDDLE_Y + 0.135, MIDDLE_Y - 0.135)
RECEPTACLE_JITTER = 0.015
CLEARANCE = 0.03  # a finger is 24 mm thick
TRIES = 20


@dataclass(frozen=True, slots=True)
class Pose:
    x: float
    y: float
    yaw: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Poses on the table, by name."""

    things: dict[str, Pose]
    receptacles: dict[str, Pose]


def place(key: EpisodeKey) -> Placement:
    """The placement of an episode.

    It does not depend on the task: the tasks of a scene, at the same seed and episode, show the
    policy the same table, and the instruction alone tells them apart.
    """
    name = f'placement of scene{key.scene}/seed{key.seed}/ep{key.episode}'
    digest = hashlib.sha256(name.encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], 'little'))
    receptacles = {}
    for receptacle, slot in zip(RECEPTACLES, random.permutation(len(RECEPTACLES))):
        dx, dy = random.uniform(-RECEPTACLE_JITTER, RECEPTACLE_JITTER, 2).tolist()
        receptacles[receptacle.name] = Pose(RECEPTACLE_X + dx, RECEPTACLE_Y[slot] + dy)
    while True:  # again from the start where the first ones leave the last no room
        things: dict[str, Pose] = {}
        for thing in THINGS:
            for _ in range(TRIES):
                pose = _anywhere(random)
                if _is_free(thing, pose, things, receptacles):
                    things[thing.name] = pose
                    break
        if len(things) == len(THINGS):
            return Placement(things, receptacles)


def circles(thing: Thing, pose: Pose) -> np.ndarray:
    """Centres (n, 2) of the circles of `thing.radius` that cover the thing seen from above.

    Between two balls lie further ones, close enough that the rod leaves them by under 1 mm.
    """
    ends = np.array(thing.centers)
    fractions = np.linspace(0.0, 1.0, 4)[:, None]
    centers = np.concatenate(
        [ends[:1], *(a + (b - a) * fractions for a, b in zip(ends[:-1], ends[1:]))]
    )
    cos, sin = np.cos(pose.yaw), np.sin(pose.yaw)
    return centers @ np.array([[cos, sin], [-sin, cos]]) + (pose.x, pose.y)


def gap(receptacle: Receptacle, pose: Pose, points: np.ndarray) -> float:
    """Smallest distance from the receptacle's outer walls to points (n, 2); 0 on top of it."""
    half = np.array([receptacle.half_x, receptacle.half_y]) + WALL
    outside = np.maximum(np.abs(points - (pose.x, pose.y)) - half, 0.0)
    return float(np.linalg.norm(outside, axis=1).min())


def _anywhere(random: np.random.Generator) -> Pose:
    x, y = random.uniform(*FRUIT_X), random.uniform(*FRUIT_Y)
    return Pose(x, y, random.uniform(-np.pi, np.pi))


def _is_free(
    thing: Thing, pose: Pose, placed: dict[str, Pose], receptacles: dict[str, Pose]
) -> bool:
    points = circles(thing, pose)
    for other in THINGS:
        if other.name in placed:
            others = circles(other, placed[other.name])
            distance = np.linalg.norm(points[:, None] - others[None], axis=2).min()
            if distance < thing.radius + other.radius + CLEARANCE:
                return False
    return all(
        gap(receptacle, receptacles[receptacle.name], points) >= thing.radius + CLEARANCE
        for receptacle in RECEPTACLES
    )
