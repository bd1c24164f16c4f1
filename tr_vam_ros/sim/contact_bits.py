"""Who may touch whom: MuJoCo lets two shapes collide when one's type is in the other's mask.

An arm meets the table, the other arm, receptacles and objects, but not itself: its coarse shapes
overlap at the joints, and the executor's limits keep it from folding into itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContactBits:
    type: int
    mask: int

    def fields(self) -> dict[str, int]:
        """As arguments of MjsBody.add_geom."""
        return {'contype': self.type, 'conaffinity': self.mask}


_STATIC, _OBJECT, _LEFT, _RIGHT = 1, 2, 4, 8

NOTHING = ContactBits(0, 0)
STATIC_BITS = ContactBits(_STATIC, _OBJECT | _LEFT | _RIGHT)  # table and receptacles
OBJECT_BITS = ContactBits(_OBJECT, _STATIC | _OBJECT | _LEFT | _RIGHT)
ARM_BITS = {
    'left': ContactBits(_LEFT, _STATIC | _OBJECT | _RIGHT),
    'right': ContactBits(_RIGHT, _STATIC | _OBJECT | _LEFT),
}
