"""The video-action model (VAM).

What needs torch loads on first use, so that configuration and schedules import in an instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.flow_schedule import sigma_grid
from tr_vam_ros.vam.guidance import adaptive_scale

# Not lazy: loading the submodule later would bind the module to the function's name.
from tr_vam_ros.vam.temporal_ratio import temporal_ratio

if TYPE_CHECKING:
    from tr_vam_ros.vam.policy import VideoActionPolicy

__all__ = ['VamConfig', 'VideoActionPolicy', 'adaptive_scale', 'sigma_grid', 'temporal_ratio']


def __getattr__(name: str) -> Any:
    if name == 'VideoActionPolicy':
        from tr_vam_ros.vam.policy import VideoActionPolicy

        return VideoActionPolicy
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
