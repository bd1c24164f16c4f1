"""The simulated cell as one object: step it, command it, look at it. No ROS, no wall clock."""

from __future__ import annotations

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.sim import scenes
from tr_vam_ros.sim.placement import place
from tr_vam_ros.sim.rendering import import_mujoco, open_renderer
from tr_vam_ros.sim.scene_events import SceneEvents
from tr_vam_ros.sim.tasks import EpisodeKey, find_task
from tr_vam_ros.sim.yam_cameras import (
    CameraModel,
    add_cameras,
    add_noise,
    camera_model,
    camera_number,
)
from tr_vam_ros.sim.yam_model import JOINTS, STROKE_PER_TRAVEL, TIMESTEP, build_spec

mujoco = import_mujoco()

STEP_NS = round(TIMESTEP * 1e9)
EVENT_STEPS = 5  # events are looked for every 10 ms, as often as joint states are published
# Software rendering of one 224x168 view: 32 ms with MuJoCo's defaults, 6 ms with these, and no
# difference that is seen at this size.
MULTISAMPLES, SLICES, STACKS = 0, 14, 7
# What lies on the table before the first episode names its own scene.
FIRST_SCENE = EpisodeKey(scene=1, task=1, seed=0, episode=0)


class YamWorld:
    """One instance belongs to one thread, as the renderer's context does.

    The same calls give the same bits, on the same machine. A 14-wide array is in the order of
    `yam.JOINT_NAMES` and in ROS units: rad, and metres of one finger's travel.
    """

    def __init__(
        self,
        *,
        width: int = yam.VIEW_WIDTH,
        height: int = yam.VIEW_HEIGHT,
        noise_seed: int = 0,
        rendering: bool = True,
    ) -> None:
        """Arms at home, grippers open, scene 1 on the table.

        width, height: picture size in pixels. noise_seed: of the cameras' noise, >= 0.
        rendering: False where nobody looks; `render` then raises InputError.
        """
        spec = build_spec()
        add_cameras(spec)
        scenes.add_scene(spec)
        self.model = spec.compile()
        quality = self.model.vis.quality
        quality.offsamples, quality.numslices, quality.numstacks = MULTISAMPLES, SLICES, STACKS
        self.data = mujoco.MjData(self.model)
        self._size = (width, height)
        self._noise_seed = noise_seed
        self._rendering = rendering
        self._renderers: dict[tuple[int, int], mujoco.Renderer] = {}
        self._steps = 0
        joints = [self.model.joint(name) for name in yam.JOINT_NAMES]
        self._positions = np.array([joint.qposadr[0] for joint in joints])
        self._velocities = np.array([joint.dofadr[0] for joint in joints])
        self._actuators = np.array([self.model.actuator(name).id for name in yam.JOINT_NAMES])
        self._events = SceneEvents(self.model, self.data)
        # The drives servo position and velocity, kp (q* - q) + kd (v* - v); MuJoCo's know a
        # position only, so the velocity target rides on it: q* + v* kd / kp.
        self._lead = np.array([*(j.motor.kd / j.motor.kp for j in JOINTS), 0.0] * 2)
        self._stroke = np.where(yam.GRIPPERS, STROKE_PER_TRAVEL, 1.0)
        self._set_arms(yam.ros_from_model(yam.HOME))
        self.place_scene(FIRST_SCENE)

    def close(self) -> None:
        """Frees the renderers; a later `render` makes new ones."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    @property
    def time_ns(self) -> int:
        """Simulated time since the world was made, ns: whole steps, so nothing drifts."""
        return self._steps * STEP_NS

    @property
    def time(self) -> float:
        """`time_ns` in seconds."""
        return self.time_ns * 1e-9

    def set_targets(self, positions: np.ndarray, velocities: np.ndarray | None = None) -> None:
        """Position and velocity targets of the servos, (14,) each. Default velocity: 0.

        Targets beyond the hard limits are taken for the limits. Raises InputError when a target
        is not finite or there are not 14.
        """
        self._check(positions)
        targets = np.asarray(positions)
        if velocities is not None:
            self._check(velocities)
            targets = targets + velocities * self._lead
        self.data.ctrl[self._actuators] = targets * self._stroke

    def step(self) -> None:
        """Advances by one step of 2 ms."""
        mujoco.mj_step(self.model, self.data)
        self._steps += 1
        if self._steps % EVENT_STEPS == 0:
            self._events.update()

    def joint_state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, velocities, efforts, each float64 (14,).

        An effort is what the drive delivered in the last step, gravity compensation included:
        N m, and N on one finger.
        """
        return (
            self.data.qpos[self._positions],
            self.data.qvel[self._velocities],
            self.data.qfrc_actuator[self._velocities],
        )

    def pose(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Where something is now, in left_base: position float64 (3,), rotation matrix (3, 3).

        name: a thing, a receptacle (middle of its bottom), a link such as `left_flange`, or
        `left_tool`, `right_tool`, the point between the fingertips. Privileged: no robot knows it
        of things. Raises InputError on an unknown name.
        """
        mujoco.mj_kinematics(self.model, self.data)
        for view in (self.data.body, self.data.site):
            try:
                found = view(name)
            except KeyError:
                continue
            return found.xpos.copy(), found.xmat.reshape(3, 3).copy()
        raise InputError(
            f'{name!r}: nothing in the cell has this name; '
            "try 'apple', 'bin', 'left_flange' or 'left_tool'"
        )

    def place_scene(self, key: EpisodeKey) -> None:
        """Places the scene of an episode; time and arms stay. Same key, same scene, bit for bit.

        The arms should be above the things, as at home: what stands in a thing's place pushes it
        away. Events that nobody has polled belong to the scene before and are dropped.
        """
        placement = place(key)
        for thing in scenes.THINGS:
            pose = placement.things[thing.name]
            self.move(thing.name, (pose.x, pose.y, thing.radius), pose.yaw)
        for receptacle in scenes.RECEPTACLES:
            pose = placement.receptacles[receptacle.name]
            index = self.model.body(receptacle.name).mocapid[0]
            self.data.mocap_pos[index] = (pose.x, pose.y, 0.0)
            self.data.mocap_quat[index] = _turn(pose.yaw)
        # The solver starts from the last step's forces: those of the old scene mean nothing now.
        self.data.qacc_warmstart[:] = 0.0
        mujoco.mj_forward(self.model, self.data)
        self._events.begin(find_task(key.task))

    def move(self, thing: str, position: tuple[float, float, float], yaw: float = 0.0) -> None:
        """Puts a thing somewhere else, at rest: metres in left_base, rad."""
        joint = self.data.joint(thing)
        joint.qpos[:3], joint.qpos[3:] = position, _turn(yaw)
        joint.qvel[:] = 0.0

    def poll_events(self) -> list[tuple[str, str]]:
        """What happened since the last call, oldest first: (kind, text).

        Kinds: `grasp` and `release` ('left: apple'), `contact` ('left: table', 'left: right') and
        `success` ('apple in bin'); `scene_events` says when.
        """
        return self._events.poll()

    def camera_info(self, camera: str, size: tuple[int, int] | None = None) -> CameraModel:
        """Intrinsics of a camera at a picture size; raises InputError on an unknown camera."""
        camera_number(camera)
        return camera_model(*(size or self._size))

    def render(self, camera: str, size: tuple[int, int] | None = None) -> np.ndarray:
        """What a camera sees now, uint8 (height, width, 3) RGB, upright, with sensor noise.

        size: (width, height) in pixels, default the world's. The noise is drawn from camera and
        time, so the same moment gives the same bits. Raises InputError on an unknown camera, or
        when nothing can draw.
        """
        number = camera_number(camera)
        if not self._rendering:
            raise InputError('this world was made with rendering=False; make one that renders')
        size = size or self._size
        if size not in self._renderers:
            self._renderers[size] = open_renderer(self.model, *size)
        # A step ends with new joint positions but leaves the links where it found them.
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        renderer = self._renderers[size]
        renderer.update_scene(self.data, camera)
        return add_noise(renderer.render(), (self._noise_seed, number, self.time_ns))

    @staticmethod
    def _check(targets: np.ndarray) -> None:
        if np.shape(targets) != (yam.DOF,) or not np.isfinite(targets).all():
            raise InputError(
                f'servo targets {targets}: must be {yam.DOF} finite numbers, one a joint; '
                'check what commands the cell'
            )

    def _set_arms(self, positions: np.ndarray) -> None:
        self.data.qpos[self._positions] = positions
        for arm in yam.ARMS:
            mimic, finger = f'{arm}_gripper_mimic', f'{arm}_gripper'
            self.data.joint(mimic).qpos[0] = self.data.joint(finger).qpos[0]
        self.set_targets(positions)


def _turn(yaw: float) -> tuple[float, float, float, float]:
    """Quaternion (w, x, y, z) of a turn about z."""
    return np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)
