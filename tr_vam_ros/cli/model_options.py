"""The options of every command that runs a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError


@dataclass
class ModelOptions:
    preset: str = 'tiny_yam'
    """Model preset of config/vam, or the path of a YAML file; its weights are random."""
    checkpoint: str = ''
    """Checkpoint folder or Hub id ('owner/name@revision'), instead of a preset."""
    guidance: Annotated[str, tyro.conf.arg(metavar='off|flat|adaptive|replay')] = 'adaptive'
    """Guidance schedule."""
    replay: Path | None = None
    """Scales for guidance 'replay': a JSON list, or the file of `demo --json`."""
    on_end: Annotated[str, tyro.conf.arg(metavar='error|repeat')] = 'error'
    """What a replay does after its last scale."""
    set: tuple[str, ...] = ()
    """Values of the configuration, for example: guidance.cap=1 video.extract_index=3."""
    seed: int = 0
    """Seed of the random weights, the noise and the scene."""

    def bringup(self) -> dict[str, object]:
        """Arguments of a bring-up; raises InputError for a combination that cannot run."""
        from tr_vam_ros.vam import VamConfig
        from tr_vam_ros.vam.guidance import GuidanceSchedule
        from tr_vam_ros.vam.recorded_scales import read_scales
        from tr_vam_ros.vam.settings import with_settings

        if self.checkpoint:  # loads torch: not where a preset is meant
            from tr_vam_ros.vam.checkpoint_files import read_config
            from tr_vam_ros.vam.weight_source import find_weights

            folder = find_weights(self.checkpoint, files=('config.json', 'statistics.json'))
            config = read_config(folder)
        else:
            config = VamConfig.from_yaml(self.preset)
        config = with_settings(config, self.set)
        size = config.image.height, config.image.width
        yam.check_model(self.checkpoint or self.preset, size, config.head.action_dim)
        scales = read_scales(self.replay) if self.replay else ()
        GuidanceSchedule(self.guidance, scales, self.on_end)
        spaced = [setting for setting in self.set if ' ' in setting]
        if spaced:
            raise InputError(f'setting {spaced[0]!r}: holds a space; leave it out')
        return {
            'preset': self.preset,
            'checkpoint': self._checkpoint,
            'guidance': self.guidance,
            'replay': str(self.replay.absolute()) if self.replay else '',
            'on_end': self.on_end,
            'settings': ' '.join(self.set),
            'seed': self.seed,
        }

    @property
    def weights(self) -> str:
        """What runs, in words."""
        return self.checkpoint or f'random, preset {self.preset}, seed {self.seed}'

    @property
    def _checkpoint(self) -> str:
        """Nodes run in another folder: a path is made absolute, a Hub id stays."""
        path = Path(self.checkpoint).expanduser()
        return str(path.absolute()) if self.checkpoint and path.exists() else self.checkpoint
