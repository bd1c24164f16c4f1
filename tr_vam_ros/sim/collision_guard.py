"""Looks along a path of both arms, before it is sent, for contact that nobody wants.

Three kinds: an arm with the table, with the other arm, with itself. What lies on the table is not
known here and not looked for. The shapes are those of the simulated cell, within a centimetre of
the real arm; MuJoCo tells what overlaps.
"""

from __future__ import annotations

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim.rendering import import_mujoco
from tr_vam_ros.sim.yam_model import build_spec

mujoco = import_mujoco()

# A path is looked at every so many radians of its fastest joint: 18 mm of a stretched arm.
STEP = 0.03
# Picking from a table scrapes it: fingertips may be commanded this far into it, m.
FINGERTIP_SCRAPE = 0.005
# Deeper than where the path begins by this much counts: arms that already touch must get apart.
DEEPER = 0.002
# Links of one arm that are no further apart than this along its chain overlap by design.
NEIGHBOURS = 2
# Places along the chain; both fingers hang on the flange and meet when the gripper closes.
CHAIN = {
    'base': 0, 'link1': 1, 'link2': 2, 'link3': 3, 'link4': 4, 'link5': 5, 'flange': 6,
    'finger1': 7, 'finger2': 7,
}  # fmt: skip


class CollisionGuard:
    """One instance belongs to one thread."""

    def __init__(self) -> None:
        self._model = _model()
        self._data = mujoco.MjData(self._model)
        self._positions = np.array([self._model.joint(n).qposadr[0] for n in yam.JOINT_NAMES])
        self._mimics = np.array(
            [self._model.joint(f'{arm}_gripper_mimic').qposadr[0] for arm in yam.ARMS]
        )
        bodies = self._model.geom_bodyid.tolist()
        self._labels = [self._model.body(body).name if body else 'table' for body in bodies]

    def __call__(self, path: np.ndarray) -> str:
        """Why a path must not be sent, '' if it may: path (n, 14), model units, from where the
        arms are."""
        allowed = {pair: depth + DEEPER for pair, depth in self._contacts(path[0]).items()}
        for number, (before, row) in enumerate(zip(path[:-1], path[1:]), start=1):
            parts = max(1, int(np.ceil(np.abs(row - before)[~yam.GRIPPERS].max() / STEP)))
            for share in np.arange(1, parts + 1) / parts:
                for pair, depth in self._contacts(before + share * (row - before)).items():
                    if depth > allowed.get(pair, _allowed(pair)):
                        return (
                            f'action chunk: {pair[0]} would run into {pair[1]} '
                            f'({1000 * depth:.0f} mm) at step {number} of {len(path) - 1}; '
                            'refused whole: check the checkpoint, or set collision_guard to false'
                        )
        return ''

    def _contacts(self, pose: np.ndarray) -> dict[tuple[str, str], float]:
        """How deep, m, which bodies are in each other at a pose (14,)."""
        values = yam.ros_from_model(pose)
        self._data.qpos[self._positions] = values
        self._data.qpos[self._mimics] = values[yam.GRIPPERS]
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_collision(self._model, self._data)
        contact = self._data.contact
        depths: dict[tuple[str, str], float] = {}
        for (first, second), distance in zip(contact.geom.tolist(), contact.dist.tolist()):
            # Sorted, the table stands behind the links, which begin with left and right.
            pair = tuple(sorted((self._labels[first], self._labels[second])))
            depths[pair] = max(depths.get(pair, 0.0), -distance)
        return depths


def _allowed(pair: tuple[str, str]) -> float:
    fingertip = pair[1] == 'table' and 'finger' in pair[0]
    return FINGERTIP_SCRAPE if fingertip else 0.0


def _model():
    """The cell in which an arm also meets itself, but not where it is made to overlap."""
    spec = build_spec()
    for geom in spec.worldbody.geoms:
        geom.contype = geom.conaffinity = 0
    # A plane in place of the table's box: MuJoCo's depth of two boxes is half of what it is. It
    # goes on beyond the table's edge, where an arm has no business below the top either.
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=(2.0, 2.0, 0.1), contype=1, conaffinity=1
    )
    for arm in yam.ARMS:
        for link, place in CHAIN.items():
            for geom in spec.body(f'{arm}_{link}').geoms:
                if geom.contype:
                    geom.contype = geom.conaffinity = 1
            for other, further in CHAIN.items():
                if other > link and abs(further - place) <= NEIGHBOURS:
                    spec.add_exclude(bodyname1=f'{arm}_{link}', bodyname2=f'{arm}_{other}')
        for fixed in ('base', 'link1'):  # they stand on the table, whatever the joints do
            spec.add_exclude(bodyname1=f'{arm}_{fixed}', bodyname2='world')
    return spec.compile()
