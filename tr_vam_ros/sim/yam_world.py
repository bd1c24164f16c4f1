"""The simulated cell as one object: step it, command it, look at it. No ROS, no wall clock."""

from __future__ import annotations

import numpy as np

from tr_vam_ros.embodiments import yam
from tr_vam_ros.sim import scenes
from tr_vam_ros.sim.rendering import import_mujoco, open_renderer
from tr_vam_ros.sim.scene_events import SceneEvents
from tr_vam_ros.sim.tasks import EpisodeKey, find_task
from tr_vam_ros.sim.yam_cameras import CameraModel, add_cameras, camera_model, camera_number
from tr_vam_ros.sim.yam_model import JOINTS, STROKE_PER_TRAVEL, TIMESTEP, build_spec

mujoco = import_mujoco()

STEP_NS = round(TIMESTEP * 1e9)
NOISE_LEVELS = 2  # of 255: as with a real sensor no picture comes twice, so a frozen one shows
# Software rendering of one 224x168 view: 32 ms with MuJoCo's defaults, 6 ms with these, and no
# difference that is seen at this size.
MULTISAMPLES, SLICES, STACKS = 0, 14, 7


class YamWorld:
    """One instance belongs to one thread, as the renderer's context does."""

    def __init__(self, *, width: int = yam.VIEW_WIDTH, height: int = yam.VIEW_HEIGHT) -> None:
        """Arms at home, grippers open, the scene not placed yet. Picture size in pixels."""
        spec = build_spec()
        add_cameras(spec)
        scenes.add_scene(spec)
        self.model = spec.compile()
        self.model.vis.quality.offsamples = MULTISAMPLES
        self.model.vis.quality.numslices, self.model.vis.quality.numstacks = SLICES, STACKS
        self.data = mujoco.MjData(self.model)
        self._width, self._height = width, height
        self._renderer = None
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

    def close(self) -> None:
        """Frees the renderer; a later `render` makes a new one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    @property
    def time_ns(self) -> int:
        """Simulated time since the world was made, ns: whole steps, so nothing drifts."""
        return self._steps * STEP_NS

    def set_targets(self, positions: np.ndarray, velocities: np.ndarray | None = None) -> None:
        """Position and velocity targets of the servos, ROS units, (14,). Default velocity: 0."""
        lead = 0.0 if velocities is None else velocities * self._lead
        self.data.ctrl[self._actuators] = (positions + lead) * self._stroke

    def step(self) -> None:
        """Advances by one step of 2 ms."""
        mujoco.mj_step(self.model, self.data)
        self._steps += 1

    def joint_state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, velocities, efforts, each float64 (14,), ROS units."""
        return (
            self.data.qpos[self._positions],
            self.data.qvel[self._velocities],
            self.data.actuator_force[self._actuators],
        )

    def place_scene(self, key: EpisodeKey) -> None:
        """Places the scene of an episode; time and arms stay. Same key, same scene, bit for bit."""
        placement = scenes.place(key)
        for thing in scenes.FRUITS:
            x, y, yaw = placement.objects[thing.name]
            joint = self.data.joint(thing.name)
            joint.qpos[:] = [x, y, thing.rest_height, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]
            joint.qvel[:] = 0
        for receptacle in scenes.RECEPTACLES:
            x, y, _ = placement.receptacles[receptacle.name]
            index = self.model.body(receptacle.name).mocapid[0]
            self.data.mocap_pos[index] = [x, y, 0]
        # The solver starts from the last step's forces: those of the old scene mean nothing now.
        self.data.qacc_warmstart[:] = 0
        mujoco.mj_forward(self.model, self.data)
        self._events.begin(find_task(key.task))

    def poll_events(self) -> list[tuple[str, str]]:
        """What happened since the last call: (kind, text), see SimEvent. Call every 10 ms."""
        return self._events.poll()

    def camera_info(self, camera: str) -> CameraModel:
        """Intrinsics of a camera; raises InputError on a name the cell does not have."""
        camera_number(camera)
        return camera_model(self._width, self._height)

    def render(self, camera: str) -> np.ndarray:
        """What a camera sees now, uint8 (height, width, 3) RGB, upright, with sensor noise.

        The noise is drawn from camera and time, so the same moment gives the same bits. Raises
        InputError on a name the cell does not have or when nothing can draw.
        """
        number = camera_number(camera)
        if self._renderer is None:
            self._renderer = open_renderer(self.model, self._width, self._height)
        self._renderer.update_scene(self.data, camera)
        picture = self._renderer.render().astype(np.int16)
        noise = np.random.default_rng([number, self.time_ns]).integers(
            -NOISE_LEVELS, NOISE_LEVELS + 1, picture.shape, dtype=np.int8
        )
        return np.clip(picture + noise, 0, 255).astype(np.uint8)

    def _set_arms(self, positions: np.ndarray) -> None:
        self.data.qpos[self._positions] = positions
        for arm in yam.ARMS:
            self.data.joint(f'{arm}_gripper_mimic').qpos[0] = self.data.joint(
                f'{arm}_gripper'
            ).qpos[0]
        self.set_targets(positions)
        mujoco.mj_forward(self.model, self.data)
