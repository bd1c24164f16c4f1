"""The options of every command that runs a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tr_vam_ros.errors import InputError


@dataclass
class ModelOptions:
    preset: str = 'tiny_yam'
    """Model preset of config/vam, or the path of a YAML file; its weights are random."""
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

        with_settings(VamConfig.from_yaml(self.preset), self.set)
        scales = read_scales(self.replay) if self.replay else ()
        GuidanceSchedule(self.guidance, scales, self.on_end)
        spaced = [setting for setting in self.set if ' ' in setting]
        if spaced:
            raise InputError(f'setting {spaced[0]!r}: holds a space; leave it out')
        return {
            'preset': self.preset,
            'guidance': self.guidance,
            'replay': str(self.replay.absolute()) if self.replay else '',
            'on_end': self.on_end,
            'settings': ' '.join(self.set),
            'seed': self.seed,
        }
