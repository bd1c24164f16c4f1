"""The bimanual YAM cell without its scene, as a MuJoCo specification: table, arms, servos.

Kinematics, masses and gains are the numbers of the station `yam_station_linear_4310_d405` (joint
origins and axes, link masses, centres of mass, principal inertias) and of the vendor SDK (kp,
kd). The shapes are our own primitives (`yam_shapes`). Limits come from `embodiments.yam`.

World frame: left_base. Metres, radians, kilograms, newtons; quaternions w x y z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim import yam_shapes
from tr_vam_ros.sim.contact_bits import ARM_BITS
from tr_vam_ros.sim.rendering import import_mujoco

mujoco = import_mujoco()

TIMESTEP = 0.002
BASES = {'left': (0.0, 0.0, 0.0), 'right': (0.0, -0.61, 0.0)}
# The gripper's grasp point along the flange's z.
TOOL_OFFSET = (0.0, 0.0, 0.14465)


@dataclass(frozen=True, slots=True)
class Link:
    """Inertia about the centre of mass. It is published as principal values without their axes:
    the smallest stands on the axis along which the link is longest."""

    name: str
    mass: float
    com: tuple[float, float, float]  # link frame
    inertia: tuple[float, float, float]  # about x, y, z


@dataclass(frozen=True, slots=True)
class Motor:
    """A joint drive: position servo torque = kp (target - q) - kd dq, within +-torque."""

    kp: float  # N m / rad
    kd: float  # N m s / rad
    torque: float  # N m: the motor protocol's encoding range
    armature: float  # kg m^2, rotor seen at the joint (MuJoCo Menagerie's YAM)


@dataclass(frozen=True, slots=True)
class Joint:
    xyz: tuple[float, float, float]  # in the parent link
    rpy: tuple[float, float, float]  # about the parent's fixed x, y, z
    axis: tuple[float, float, float]
    motor: Motor
    child: Link


DM4340 = Motor(kp=80.0, kd=5.0, torque=28.0, armature=0.032)
DM4310 = Motor(kp=10.0, kd=1.5, torque=10.0, armature=0.0018)
_PI = np.pi

BASE = Link('base', 0.873654, (-3.8e-5, 2.4e-5, 0.024768), (1.5706e-3, 1.6940e-3, 6.783e-4))
JOINTS = (
    Joint(
        (0.0, 0.0, 0.068), (0.0, _PI / 2, _PI), (-1.0, 0.0, 0.0), DM4340,
        Link('link1', 0.101218, (-0.0233636, -0.00172503, -0.00727828),
             (4.718e-5, 1.0625e-4, 1.3491e-4)),
    ),
    Joint(
        (-0.0455, -0.0339, -0.02), (0.0, 0.0, -_PI), (0.0, 1.0, 0.0), DM4340,
        Link('link2', 1.46908, (0.000134495, -0.0331253, 0.129165),
             (0.0146686, 0.014599, 8.0009e-4)),
    ),
    Joint(
        (0.0, -0.0688, 0.264), (0.0, 0.0, -_PI), (0.0, 1.0, 0.0), DM4340,
        Link('link3', 0.982553, (-0.0556042, -0.0340514, -0.135083),
             (7.6520e-3, 7.6296e-3, 8.7644e-4)),
    ),
    Joint(
        (-0.0600003, -0.0688, -0.244999), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0), DM4310,
        Link('link4', 0.462165, (-0.0550959, 0.032726, -0.0575534),
             (7.8789e-4, 7.6643e-4, 2.8779e-4)),
    ),
    Joint(
        (-0.0405003, 0.0338995, -0.0739989), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0), DM4310,
        Link('link5', 0.403307, (0.0375847, -3.55e-5, -8.259e-4),
             (1.9569e-4, 2.1979e-4, 1.6965e-4)),
    ),
    Joint(
        (0.0404996, 0.0, -0.0356), (_PI, 0.0, _PI / 2), (0.0, 0.0, 1.0), DM4310,
        Link('flange', 0.553219, (2.49e-4, -3.57e-5, 0.0293133),
             (3.2441e-4, 3.6976e-4, 4.0969e-4)),
    ),
)  # fmt: skip
FINGER = Link('finger', 0.069657, (0.0, 0.0, 0.12), (6e-5, 6e-5, 2.8e-5))
FINGERS = {'finger1': 1.0, 'finger2': -1.0}  # which way it opens along the flange's x

# One motor drives both fingers: the servo acts on the stroke, the sum of both travels. The SDK
# limits it to 50 N. Its stiffness saturates that at 25 mm of missing stroke, so that a commanded
# "closed" squeezes any fruit with the full force; damping is critical for the moving mass.
STROKE_PER_TRAVEL = 2.0
GRIP_FORCE = 50.0  # N
STROKE_KP = 2000.0  # N/m
STROKE_KD = 48.0  # N s/m
# Rotor and rack seen at one finger, kg. The rotor alone would be 30 kg by the numbers (1.8e-3
# kg m^2 through 0.096 m a 6.57 rad), which would make a 2 ms contact step needlessly stiff.
FINGER_ARMATURE = 0.5


def build_spec():
    """mujoco.MjSpec with options, lights, table and both arms; nothing to manipulate yet.

    Joints, bodies and actuators are named as `embodiments.yam` names the joints: body
    `left_link3`, joint and actuator `left_joint3`, actuator `left_gripper` on the stroke, site
    `left_tool`.
    """
    spec = mujoco.MjSpec()
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # Elliptic cones with a stiffer tangent keep a squeezed fruit from creeping out.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.compiler.degree = False
    yam_shapes.add_surroundings(spec)
    for arm in yam.ARMS:
        _add_arm(spec, arm)
    return spec


def _add_arm(spec, arm: str) -> None:
    prefix = f'{arm}_'
    body = _add_link(spec.worldbody, arm, BASE, BASES[arm], (1.0, 0.0, 0.0, 0.0))
    limits = yam.ARM_SLICES[arm]
    lower = yam.COMMAND_LOWER[limits] - yam.HARD_LIMIT_MARGIN
    upper = yam.COMMAND_UPPER[limits] + yam.HARD_LIMIT_MARGIN
    for number, joint in enumerate(JOINTS):
        name = yam.ARM_JOINT_NAMES[arm][number]
        quat = np.empty(4)
        mujoco.mju_euler2Quat(quat, np.array(joint.rpy), 'XYZ')
        body = _add_link(body, arm, joint.child, joint.xyz, quat)
        body.add_joint(
            name=name,
            type=mujoco.mjtJoint.mjJNT_HINGE,
            axis=joint.axis,
            range=(lower[number], upper[number]),
            armature=joint.motor.armature,
            actfrcrange=(-joint.motor.torque, joint.motor.torque),
            # Compensation is the motors' work: part of the effort, within the torque range.
            actgravcomp=True,
        )
        servo = _add_servo(spec, name, joint.motor.kp, joint.motor.kd, joint.motor.torque)
        servo.trntype = mujoco.mjtTrn.mjTRN_JOINT
        servo.target = name
        servo.ctrlrange = (lower[number], upper[number])
    body.add_site(name=f'{prefix}tool', pos=TOOL_OFFSET, size=(0.002,) * 3, group=4)
    _add_gripper(spec, body, arm)


def _add_gripper(spec, flange, arm: str) -> None:
    names = {'finger1': f'{arm}_gripper', 'finger2': f'{arm}_gripper_mimic'}
    for finger, sign in FINGERS.items():
        link = Link(finger, FINGER.mass, FINGER.com, FINGER.inertia)
        body = _add_link(flange, arm, link, (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
        body.add_joint(
            name=names[finger],
            type=mujoco.mjtJoint.mjJNT_SLIDE,
            axis=(sign, 0.0, 0.0),
            range=(0.0, yam.GRIPPER_TRAVEL),
            armature=FINGER_ARMATURE,
        )
    # mimic = 0 + 1 * gripper
    spec.add_equality(
        name=f'{arm}_fingers',
        type=mujoco.mjtEq.mjEQ_JOINT,
        objtype=mujoco.mjtObj.mjOBJ_JOINT,
        name1=names['finger2'],
        name2=names['finger1'],
        data=(0.0, 1.0, *(0.0,) * 9),
    )
    stroke = spec.add_tendon(name=f'{arm}_stroke')
    for name in names.values():
        stroke.wrap_joint(name, 1.0)
    servo = _add_servo(spec, names['finger1'], STROKE_KP, STROKE_KD, GRIP_FORCE)
    servo.trntype = mujoco.mjtTrn.mjTRN_TENDON
    servo.target = stroke.name
    servo.ctrlrange = (0.0, STROKE_PER_TRAVEL * yam.GRIPPER_TRAVEL)


def _add_link(parent, arm: str, link: Link, pos, quat):
    """A child body with its inertia, gravity compensation, shapes and contact bits."""
    body = parent.add_body(name=f'{arm}_{link.name}', pos=pos, quat=quat, gravcomp=1.0)
    body.explicitinertial = True
    body.mass, body.ipos, body.inertia = link.mass, link.com, link.inertia
    yam_shapes.add_link_shapes(body, link.name, ARM_BITS[arm])
    return body


def _add_servo(spec, name: str, kp: float, kd: float, force: float):
    """An actuator of force kp (ctrl - length) - kd velocity, within +-force."""
    servo = spec.add_actuator(name=name)
    servo.gaintype = mujoco.mjtGain.mjGAIN_FIXED
    servo.gainprm[0] = kp
    servo.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    servo.biasprm[:3] = (0.0, -kp, -kd)
    servo.forcelimited = True
    servo.forcerange = (-force, force)
    servo.ctrllimited = True
    return servo
