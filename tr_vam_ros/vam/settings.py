"""Single values of a configuration from the command line: `guidance.cap=1.5`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import VamConfig


def with_settings(config: VamConfig, settings: Sequence[str]) -> VamConfig:
    """A copy of `config` in which each 'section.key=value' holds; values are YAML.

    Raises InputError for a setting of another form, an unknown key or a bad value.
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition('=')
        *sections, key = name.split('.')
        if not (equals and sections and all(name.split('.'))):
            raise InputError(
                f"setting {setting!r}: expected 'section.key=value', for example guidance.cap=1.5"
            )
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            reason = ' '.join(str(error).split())
            raise InputError(f'setting {setting!r}: the value is not YAML ({reason})') from error
        section = changes
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return config.changed(changes) if changes else config
