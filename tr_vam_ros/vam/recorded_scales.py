"""The list of scales that guidance 'replay' repeats, from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tr_vam_ros.errors import InputError


def read_scales(path: Path) -> tuple[float, ...]:
    """s of every replan in order, from a JSON list of numbers or from what `demo --json` wrote.

    Raises InputError if the file cannot be read or holds neither.
    """
    expected = "expected a list of numbers, or a file that 'tr-vam demo --json' wrote"
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise InputError(f'replay {path}: cannot be read ({error}); {expected}') from error
    scales = _of_episodes(data) if isinstance(data, dict) else data
    if not isinstance(scales, list) or not all(_is_number(scale) for scale in scales):
        raise InputError(f'replay {path}: holds something else; {expected}')
    return tuple(float(scale) for scale in scales)


def _of_episodes(data: dict[str, Any]) -> list[Any] | None:
    try:
        return [r['scale'] for episode in data['episodes'] for r in episode['replans']]
    except (KeyError, TypeError):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
