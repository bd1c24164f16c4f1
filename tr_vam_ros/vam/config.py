"""The configuration of one video-action model; nothing here imports torch.

Defaults are the paper's (vam_spec.md, normative); a preset in `config/vam/*.yaml` states what it
changes and every size of its networks.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.network_config import (
    HeadConfig,
    TextConfig,
    TransformerConfig,
    VaeConfig,
    require,
    require_positive,
)
from tr_vam_ros.vam.typed_yaml import build, read_mapping

GUIDANCE_SCHEDULES = ('off', 'flat', 'adaptive', 'replay')
NULL_TEXTS = ('zeros_before_projection', 'zeros_after_projection', 'empty_prompt')
BRANCH_NOISES = ('common', 'independent')
# What is done to a camera's picture that has not the aspect of its view.
RESIZE_MODES = ('stretch', 'crop', 'pad')


@dataclass(frozen=True)
class ImageConfig:
    """Pixels of the stacked camera image as it arrives (paper E.2: three 224x168 views)."""

    height: int
    width: int
    # What it is resized to before encoding; 0 keeps the side. tiny_libero halves the image.
    encode_height: int = 0
    encode_width: int = 0
    # How cameras of another aspect were brought to this size in training (embodiments/views.py).
    resize_mode: str = 'stretch'

    def __post_init__(self) -> None:
        require_positive(self, 'height', 'width')
        require(
            self.resize_mode in RESIZE_MODES,
            f"resize_mode is '{self.resize_mode}'; use one of {', '.join(RESIZE_MODES)}",
        )
        require(
            (self.encode_height > 0) == (self.encode_width > 0)
            and min(self.encode_height, self.encode_width) >= 0,
            f'encode_height and encode_width are {self.encode_height} and {self.encode_width}; '
            'give both greater than 0, or neither',
        )

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of what the VAE sees, before padding."""
        return self.encode_height or self.height, self.encode_width or self.width


@dataclass(frozen=True)
class VideoConfig:
    """Partial video denoising (paper App. A.2, spec section 1)."""

    frames: int = 5  # latent frames the head reads: 17 video frames
    plan_frames: int = 24  # latent frames of the extended-horizon plan branch
    steps: int = 6
    shift: float = 5.0
    extract_index: int = 2  # index on the sigma grid at which features are read: sigma .883
    feature_block: int = 20  # k, 1-indexed: features are the output of this block
    anchor_timestep: float = 1.0e-4  # timestep of the clean frame 0
    pad: str = 'pixels'  # what is padded to the patch grid: 'pixels' or 'latent'

    def __post_init__(self) -> None:
        require_positive(
            self, 'frames', 'plan_frames', 'steps', 'shift', 'feature_block', 'anchor_timestep'
        )
        require(self.frames >= 2, f'frames is {self.frames}; TR needs one future frame: 2 or more')
        require(
            self.plan_frames >= self.frames,
            f'plan_frames is {self.plan_frames}; it must be at least frames ({self.frames})',
        )
        require(
            0 <= self.extract_index < self.steps,
            f'extract_index is {self.extract_index}; it must be 0 to {self.steps - 1}',
        )
        require(self.pad in ('pixels', 'latent'), f"pad is '{self.pad}'; use pixels or latent")


@dataclass(frozen=True)
class GuidanceConfig:
    """Algorithm 3 (spec section 3); a weight of 0 switches its branch off."""

    language_weight: float = 0.1
    plan_weight: float = 0.3
    cap: float = 2.0
    null_text: str = 'zeros_before_projection'  # paper D.4; others in NULL_TEXTS
    branch_noise: str = 'common'  # all branches share it; or 'independent'
    frozen_rows_weight: float = 0.0  # pull towards rows under way in async mode; 5 is usual

    def __post_init__(self) -> None:
        for name in ('language_weight', 'plan_weight', 'cap', 'frozen_rows_weight'):
            value = getattr(self, name)
            require(value >= 0, f'{name} is {value}; it must be 0 or more')
        for name, choices in (('null_text', NULL_TEXTS), ('branch_noise', BRANCH_NOISES)):
            value = getattr(self, name)
            require(value in choices, f"{name} is '{value}'; use one of {', '.join(choices)}")


@dataclass(frozen=True)
class Normalisation:
    """Per-dimension statistics in embodiment units: normalised = (x - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.std),
            f'mean has {len(self.mean)} entries, std {len(self.std)}; they must match',
        )
        require(min(self.std, default=1.0) > 0, 'std has an entry that is not greater than 0')


@dataclass(frozen=True)
class StatisticsConfig:
    proprio: Normalisation
    action: Normalisation


@dataclass(frozen=True)
class VamConfig:
    name: str
    image: ImageConfig
    video: VideoConfig
    transformer: TransformerConfig
    vae: VaeConfig
    text: TextConfig
    head: HeadConfig
    guidance: GuidanceConfig
    statistics: StatisticsConfig

    def __post_init__(self) -> None:
        require(
            self.video.feature_block <= self.transformer.num_layers,
            f'video.feature_block is {self.video.feature_block}; '
            f'the transformer has {self.transformer.num_layers} blocks',
        )
        require(
            self.vae.z_dim == self.transformer.out_channels,
            f'vae.z_dim ({self.vae.z_dim}) must equal transformer.out_channels '
            f'({self.transformer.out_channels})',
        )
        stride = self.vae.spatial_compression
        require(
            self.video.pad == 'pixels'
            or all(side % stride == 0 for side in self.image.encoded_size),
            f"video.pad 'latent' needs image sides divisible by {stride}; use pad: pixels",
        )
        for label, dim in (('proprio', self.head.proprio_dim), ('action', self.head.action_dim)):
            count = len(getattr(self.statistics, label).mean)
            require(
                count == dim,
                f'statistics.{label} has {count} entries, head.{label}_dim is {dim}; '
                'they must match',
            )

    @classmethod
    def from_yaml(cls, source: str | os.PathLike[str]) -> VamConfig:
        """Read a YAML file, or a preset of `config/vam` by its bare name ('tiny_yam').

        A file may stand on another one: `extends: tiny_yam` or a path beside it.
        Raises InputError on an unknown preset, an unknown or missing key, or a bad value.
        """
        return cls.from_mapping(*_read(source))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str) -> VamConfig:
        """From nested mappings as `to_mapping` makes them; `where` names them in errors."""
        return build(cls, data, where)

    def to_mapping(self) -> dict[str, Any]:
        """Nested dictionaries and lists that JSON and YAML hold; `from_mapping` reads them."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def changed(self, changes: Mapping[str, Mapping[str, Any]]) -> VamConfig:
        """A copy with `{section: {key: value}}` replaced; checked like a file."""
        return self.from_mapping(_merged(self.to_mapping(), changes), self.name)

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of a latent frame, padded to whole patches."""
        stride = self.vae.spatial_compression
        _, patch_height, patch_width = self.transformer.patch_size
        height, width = self.image.encoded_size
        return (
            _round_up(height, stride * patch_height) // stride,
            _round_up(width, stride * patch_width) // stride,
        )

    @property
    def feature_grid(self) -> tuple[int, int]:
        """Rows and columns of transformer tokens in one latent frame."""
        (height, width), (_, patch_height, patch_width) = (
            self.latent_size, self.transformer.patch_size,
        )
        return height // patch_height, width // patch_width


def _read(source: str | os.PathLike[str], chain: tuple[Path, ...] = ()) -> tuple[dict, str]:
    """The mapping of a file over those that it extends, and the name of the file."""
    path = Path(source)
    is_bare_name = path.suffix not in ('.yaml', '.yml') and len(path.parts) == 1
    path = _preset_path(path.name) if is_bare_name else path
    if path in chain:
        raise InputError(f'{path}: extends itself; remove one `extends`')
    data = dict(read_mapping(path))
    base = data.pop('extends', None)
    if base is None:
        return data, path.name
    if not isinstance(base, str):
        raise InputError(f'{path.name}.extends: got {base!r}, expected a preset or a file')
    is_file = base.endswith(('.yaml', '.yml'))
    below, _ = _read(path.parent / base if is_file else base, (*chain, path))
    return _merged(below, data), path.name


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else above replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            value = _merged(merged[key], value)
        merged[key] = value
    return merged


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _preset_folders() -> list[Path]:
    """The source tree, then every sourced ROS workspace that has this package installed."""
    folders = [Path(__file__).resolve().parents[2] / 'config' / 'vam']
    for prefix in filter(None, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)):
        folders.append(Path(prefix) / 'share' / 'tr_vam_ros' / 'config' / 'vam')
    return folders


def _preset_path(name: str) -> Path:
    presets = {
        path.stem: path for folder in reversed(_preset_folders()) for path in folder.glob('*.yaml')
    }
    if name not in presets:
        available = ', '.join(sorted(presets)) or 'none'
        raise InputError(
            f"unknown preset '{name}'; available are {available}, or give the path of a .yaml file"
        )
    return presets[name]
