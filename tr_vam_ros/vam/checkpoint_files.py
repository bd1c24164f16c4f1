"""Single parts of a checkpoint folder: its configuration, and tensors by name.

The folder has config.json, and safetensors as one file or as shards with an index. What needs a
few tensors of many gigabytes reads those alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import safetensors
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import VamConfig

CONFIG = 'config.json'
WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'


def read_config(folder: Path) -> VamConfig:
    """The model of a checkpoint folder; raises InputError if it is none."""
    if not folder.is_dir():
        raise InputError(f'checkpoint {folder}: is no folder; give the folder with its {CONFIG}')
    return VamConfig.from_mapping(_read_json(folder / CONFIG), str(folder / CONFIG))


def read_tensors(folder: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The named tensors, and no other is read; raises InputError if one is missing or damaged."""
    names = list(names)
    if (folder / INDEX).exists():
        files = _read_json(folder / INDEX).get('weight_map')
        if not isinstance(files, dict):
            raise InputError(f'{folder / INDEX}: has no weight_map; copy the checkpoint again')
    else:
        files = dict.fromkeys(names, WEIGHTS)
    tensors = {}
    for name in names:
        path = folder / files.get(name, WEIGHTS)
        try:
            with safetensors.safe_open(path, framework='pt') as file:
                tensors[name] = file.get_tensor(name)
        except (OSError, safetensors.SafetensorError) as error:
            reason = ' '.join(str(error).split())
            raise InputError(
                f'{path}: {name} cannot be read ({reason}); copy the checkpoint again'
            ) from error
    return tensors


def _read_json(path: Path) -> dict:
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        reason = ' '.join(str(error).split())
        raise InputError(f'{path}: cannot be read ({reason}); copy the checkpoint again') from error
    if not isinstance(data, dict):
        raise InputError(f'{path}: holds no mapping; copy the checkpoint again')
    return data
