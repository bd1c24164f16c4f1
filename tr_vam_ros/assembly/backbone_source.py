"""The video model from diffusers' layout: folders `transformer/` and `vae/` (spec section 1).

Names stay diffusers' own, under `backbone.`, but for the projection of the text: diffusers keeps
it in the transformer (`crossattn_proj`), this package beside it, because it runs once an episode.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.tensor_files import TensorFiles

FILES = tuple(
    f'{folder}/{pattern}'
    for folder in ('transformer', 'vae')
    for pattern in ('config.json', '*.safetensors', '*.safetensors.index.json')
)

# Repositories that keep diffusers' layout outside their main branch.
REVISIONS = {'nvidia/Cosmos-Predict2.5-2B': 'diffusers/base/post-trained'}

_STEM = 'diffusion_pytorch_model'
_PROJECTION = 'crossattn_proj.'


class BackboneSource:
    """Transformer and VAE of a folder, under the names of a checkpoint of `config`."""

    def __init__(self, folder: Path, config: VamConfig) -> None:
        """Reads configurations and headers alone.

        Raises InputError, listing the differences, if the folder holds another model than the
        one that `config` describes, or no model.
        """
        self.folder = folder
        transformer = _read_config(folder / 'transformer', CosmosTransformer3DModel)
        vae = _read_config(folder / 'vae', AutoencoderKLWan)
        differences = [
            *_differences('transformer', *_transformer_sizes(transformer, config)),
            *_differences('vae', *_vae_sizes(vae, config)),
        ]
        if differences:
            raise InputError(
                f"{folder}: is another model than preset '{config.name}' describes: "
                f'{"; ".join(differences)}; choose the preset that was made for it'
            )
        self._vae_config = vae
        self._places = {
            _target(part, name): (files, name)
            for part in ('transformer', 'vae')
            for files in [TensorFiles(folder / part, _STEM)]
            for name in files.stored
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            target: files.stored[name].shape for target, (files, name) in self._places.items()
        }

    def name(self, target: str) -> str:
        """The tensor's name in its source, with the folder."""
        files, name = self._places[target]
        return f'{files.folder.name}.{name}'

    def stored_type(self, target: str) -> str:
        files, name = self._places[target]
        return files.stored[name].dtype

    def size(self, target: str) -> int:
        """In bytes, as stored."""
        files, name = self._places[target]
        return files.stored[name].bytes

    def read(self, targets: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Target and mapped tensor, as `TensorFiles.read`."""
        by_files: dict[TensorFiles, dict[str, str]] = {}
        for target in targets:
            files, name = self._places[target]
            by_files.setdefault(files, {})[name] = target
        for files, names in by_files.items():
            for name, mapped in files.read([name for name in files.stored if name in names]):
                yield names[name], mapped

    def latent_statistics(self) -> dict[str, torch.Tensor]:
        """Mean and deviation of the VAE's latents; they stand in its configuration."""
        return {
            f'backbone.{name}': torch.tensor(self._vae_config[name]).view(1, -1, 1, 1, 1)
            for name in ('latents_mean', 'latents_std')
        }


def _target(part: str, name: str) -> str:
    if part == 'transformer' and name.startswith(_PROJECTION):
        return f'text.projection.{name.removeprefix(_PROJECTION)}'
    return f'backbone.{part}.{name}'


def _transformer_sizes(
    found: Mapping[str, Any], config: VamConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What decides about the transformer's weights and their meaning: expected, found."""
    expected = {**asdict(config.transformer), 'extra_pos_embed_type': None}
    # A padding mask that the transformer appends itself is one of our input channels.
    found = {**found, 'in_channels': found['in_channels'] + int(found['concat_padding_mask'])}
    for optional in ('controlnet_block_every_n', 'img_context_dim_in'):
        expected[optional] = None
        found[optional] = found.get(optional) or None
    if config.text.encoder == 'cosmos_reason1':
        expected |= {
            'use_crossattn_projection': True,
            'crossattn_proj_in_channels': config.text.embed_dim,
            'encoder_hidden_states_channels': config.transformer.text_embed_dim,
        }
    return expected, found


def _vae_sizes(
    found: Mapping[str, Any], config: VamConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    channels = {name: len(found[name]) for name in ('latents_mean', 'latents_std')}
    expected = {**asdict(config.vae), 'is_residual': False, 'attn_scales': []}
    return (
        {**expected, **{name: config.vae.z_dim for name in channels}}, {**found, **channels}
    )


def _differences(part: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, (list, tuple)) else value

    return [
        f'{part} {name} is {plain(found.get(name))}, the preset has {plain(value)}'
        for name, value in expected.items()
        if plain(found.get(name)) != plain(value)
    ]


def _read_config(folder: Path, model: type) -> dict[str, Any]:
    """Arguments of the class; those that the file does not name have diffusers' defaults."""
    file = folder / 'config.json'
    try:
        data = json.loads(file.read_text(encoding='utf-8'))
        name = data['_class_name']
    except FileNotFoundError as error:
        raise InputError(
            f'{file}: is missing; name a folder in the layout of diffusers, with transformer/ '
            'and vae/'
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'{file}: is no configuration of diffusers ({type(error).__name__}); '
            'copy or download it again'
        ) from error
    if name != model.__name__:
        raise InputError(f'{file}: is a {name}, expected a {model.__name__}; name another folder')
    arguments = inspect.signature(model.__init__).parameters
    defaults = {
        name: argument.default
        for name, argument in arguments.items()
        if argument.default is not inspect.Parameter.empty
    }
    return {**defaults, **data}
