"""The files of a checkpoint's folder that are no tensors, and where a folder may be written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from tr_vam_ros import __version__
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.networks import TEXT_CACHE
from tr_vam_ros.vam.tensor_files import listed, open_file, refuse_pickle, weight_map

FORMAT_VERSION = 1
CONFIG, STATISTICS, CARD, ADAPTER = 'config.json', 'statistics.json', 'README.md', 'adapter'

# Patterns of what is downloaded; `*` also stands for folders, so this covers adapter/.
DOWNLOADED = (
    CONFIG, STATISTICS, CARD, '*.safetensors', '*.safetensors.index.json', 'adapter/*.json'
)

_OWN_FILES = (CONFIG, STATISTICS, CARD, ADAPTER, TEXT_CACHE)


def read_config(folder: Path) -> VamConfig:
    """The configuration of a checkpoint. Raises InputError if it is missing, newer or wrong."""
    if not folder.is_dir():
        raise InputError(f'checkpoint {folder}: is no folder; name the one with its {CONFIG}')
    if not (folder / CONFIG).is_file():
        for file in sorted(folder.glob('*')):
            refuse_pickle(file)
    data = dict(_read_json(folder / CONFIG))
    version = data.pop('format_version', FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f'{folder / CONFIG}: is of format {version} (tr_vam_ros '
            f'{data.get("package_version")}), this tr_vam_ros {__version__} reads up to '
            f'{FORMAT_VERSION}; update it'
        )
    data.pop('package_version', None)
    if 'statistics' not in data:
        data['statistics'] = _read_json(folder / STATISTICS)
    elif (folder / STATISTICS).exists():
        raise InputError(
            f'{folder}: statistics stand in {CONFIG} and in {STATISTICS}; remove one of them'
        )
    return VamConfig.from_mapping(data, str(folder / CONFIG))


def read_tensors(folder: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The named tensors; no other is read, and no other file opened or missed.

    Raises InputError if one is missing or damaged.
    """
    single, index = folder / 'model.safetensors', folder / 'model.safetensors.index.json'
    files = weight_map(index) if index.is_file() else {}
    tensors = {}
    for name in names:
        try:
            with open_file(files.get(name, single)) as handle:
                tensors[name] = handle.get_tensor(name).clone()
        except (InputError, SafetensorError) as error:
            raise InputError(f'{folder}: {name} cannot be read ({error})') from error
    return tensors


def write_config(config: VamConfig, folder: Path) -> None:
    data = config.to_mapping()
    # A file of their own: data sets change them, and people read them.
    statistics = data.pop('statistics')
    data = {'format_version': FORMAT_VERSION, 'package_version': __version__, **data}
    for name, content in ((CONFIG, data), (STATISTICS, statistics)):
        text = json.dumps(content, indent=1, ensure_ascii=False) + '\n'
        (folder / name).write_text(text, encoding='utf-8')


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(file.read_text(encoding='utf-8'))
    except FileNotFoundError as error:
        raise InputError(
            f'{file}: cannot be read (there is none); name the folder of a checkpoint, or copy it '
            'again'
        ) from error
    except (OSError, ValueError) as error:
        reason = ' '.join(str(error).split())
        raise InputError(f'{file}: cannot be read ({reason}); copy it again') from error
    if not isinstance(data, dict):
        raise InputError(f'{file}: got {type(data).__name__}, expected an object; copy it again')
    return data


def check_target(target: Path, overwrite: bool) -> None:
    """Raises InputError unless `target` is new, empty, or a checkpoint that may be replaced."""
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f'{target}: is a file; name a folder')
    inside = sorted(path.name for path in target.iterdir())
    if not inside:
        return
    foreign = [
        name for name in inside
        if name not in _OWN_FILES and not (name.startswith('model') and '.safetensors' in name)
    ]
    if foreign or not _is_config(target / CONFIG):
        raise InputError(
            f'{target}: holds what is no part of a checkpoint ({listed(foreign or inside)}); '
            'name a new folder'
        )
    if not overwrite:
        raise InputError(f'{target}: holds a checkpoint; allow overwriting, or name a new folder')


def _is_config(file: Path) -> bool:
    """Whether it is a checkpoint's: others call theirs config.json and model.safetensors, too."""
    try:
        return 'format_version' in _read_json(file)
    except InputError:
        return False


def check_space(target: Path, needed: int) -> None:
    parent = next(path for path in target.parents if path.exists())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise InputError(
            f'{target}: needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; free some space '
            'or name another place'
        )


def open_to_readers(folder: Path) -> None:
    """Every file with the mode of config.json: safetensors makes its own for their owner alone."""
    mode = (folder / CONFIG).stat().st_mode
    for path in folder.rglob('*'):
        if path.is_file():
            path.chmod(mode)
