"""The bring-ups of the graph, described once, as data. Launch files and `tr-vam up` both read them.

A bring-up knows which nodes run and which parameters they need; it starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.settings import MODES
from tr_vam_ros.sim.tasks import EpisodeKey, find_task
from tr_vam_ros.vam.config import GUIDANCE_SCHEDULES

CLOCKS = ('real_time', 'lockstep')
NAMESPACE = '/tr_vam'

# The simulator renders on the thread that answers trajectories, beside a model on the same two
# cores; the real robot's 50 ms would fire on load.
SIM_ACCEPT_TIMEOUT = 0.5


PROFILES = 'FASTRTPS_DEFAULT_PROFILES_FILE'


def image_profile() -> Path:
    """The Fast DDS profile of image publishers: in the checkout, or where colcon installed it."""
    checkout = Path(__file__).resolve().parents[1] / 'config' / 'fastdds_images.xml'
    if checkout.exists():
        return checkout
    from ament_index_python.packages import get_package_share_directory

    return Path(get_package_share_directory('tr_vam_ros')) / 'config' / 'fastdds_images.xml'


@dataclass(frozen=True)
class NodeSpec:
    """One node: the executable of `scripts/` and its parameters."""

    executable: str
    parameters: dict[str, Any] = field(default_factory=dict)
    publishes_images: bool = False  # gets the larger shared-memory segment

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its process, beside the inherited ones."""
        return {PROFILES: str(image_profile())} if self.publishes_images else {}

    def arguments(self) -> list[str]:
        """Command-line arguments for the executable."""
        arguments = ['--ros-args', '-r', f'__ns:={NAMESPACE}']
        for name, value in self.parameters.items():
            arguments += ['-p', f'{name}:={_yaml(value)}']
        return arguments


def yam_sim(
    *,
    task: int = 1,
    seed: int = 0,
    guidance: str = 'adaptive',
    preset: str = 'tiny_yam',
    checkpoint: str = '',
    replay: str = '',
    on_end: str = 'error',
    settings: str = '',
    clock: str = 'real_time',
    mode: str = 'sync',
    dry_run: bool = False,
    episode_seconds: float = 20.0,
    record: str = '',
) -> list[NodeSpec]:
    """The whole graph on the simulated YAM cell. Raises InputError on a value nobody has.

    checkpoint: folder or Hub id; its weights instead of a preset's random ones.
    replay, on_end: file of scales and what follows the last one, for guidance 'replay'.
    mode: 'async' asks for the next chunk while the arms move. dry_run: trajectories go to the
        preview topics, the arms stand.
    settings: values of the model's configuration, 'section.key=value' with spaces between.
    """
    chosen = find_task(task)
    _one_of('guidance', guidance, GUIDANCE_SCHEDULES)
    _one_of('clock', clock, CLOCKS)
    _one_of('mode', mode, MODES)
    if clock == 'lockstep' and (mode == 'async' or dry_run):
        what = 'dry_run' if dry_run else 'mode async'
        raise InputError(f'{what}: the lockstep clock waits for each motion; use clock real_time')
    if seed < 0:
        raise InputError(f'seed {seed}: must be 0 or more')
    lockstep = clock == 'lockstep'
    prefix = str(EpisodeKey(chosen.scene, task, seed, 0)).rsplit('/', 1)[0]
    sim_time = {'use_sim_time': True} if lockstep else {}
    nodes = [
        NodeSpec('yam_sim', {'clock': clock}, publishes_images=True),
        NodeSpec('camera_stack', {'lockstep': lockstep, **sim_time}, publishes_images=True),
        NodeSpec(
            'policy',
            {
                'preset': preset,
                'checkpoint': checkpoint,
                'guidance': guidance,
                'replay': replay,
                'on_end': on_end,
                'settings': settings,
                'seed': seed,
                **sim_time,
            },
        ),
        NodeSpec(
            'chunk_executor',
            {
                'simulated': True,
                'clock': clock,
                'mode': mode,
                'dry_run': dry_run,
                'episode_prefix': prefix,
                'instruction': chosen.instruction,
                'episode_seconds': float(episode_seconds),
                'accept_timeout': SIM_ACCEPT_TIMEOUT,
                **sim_time,
            },
        ),
    ]
    if record:
        nodes.append(NodeSpec('recorder', {'directory': record, **sim_time}))
    return nodes


BRINGUPS = {'yam_sim': yam_sim}


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f'{name} {value!r}: unknown; choose one of {", ".join(choices)}')


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)
