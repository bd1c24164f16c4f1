"""The three networks of a policy, made without weights: these never stand in memory twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.action_head import ActionHead
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.text import make_text
from tr_vam_ros.vam.video_backbone import VideoBackbone
from tr_vam_ros.vam.video_tokens import NoiseLevelTag

STORED_TYPES = ('F32', 'BF16')
TEXT_CACHE = 'text_cache.safetensors'


@dataclass
class Networks:
    """What a checkpoint's tensors are named after: `backbone.*`, `text.*`, `head.*`."""

    backbone: VideoBackbone
    text: nn.Module
    head: ActionHead

    def __iter__(self) -> Iterator[tuple[str, nn.Module]]:
        return iter((('backbone', self.backbone), ('text', self.text), ('head', self.head)))

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor that a checkpoint stores, by its name there."""
        return {
            f'{part}.{name}': tensor
            for part, network in self
            for name, tensor in network.state_dict().items()
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.state().items()}

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take `tensors` as they are, without a copy; all of `shapes`, and nothing else."""
        for part, network in self:
            inside = {
                name.removeprefix(f'{part}.'): tensor
                for name, tensor in tensors.items()
                if name.startswith(f'{part}.')
            }
            network.load_state_dict(inside, strict=True, assign=True)


def save_text_files(text: nn.Module, folder: Path) -> None:
    """What a text conditioning was loaded with besides its weights: projected instructions."""
    if hasattr(text, 'load_cache'):
        known = [prompt for prompt in text.cache.travelled_prompts if text.knows(prompt)]
        if known:
            text.cache.save(folder / TEXT_CACHE, known, text.weights())


def load_text_files(text: nn.Module, folder: Path) -> None:
    if hasattr(text, 'load_cache') and (folder / TEXT_CACHE).is_file():
        text.load_cache(folder / TEXT_CACHE)


def empty_networks(config: VamConfig) -> Networks:
    """Networks whose weights are shapes alone, on the meta device; `fill` gives them memory.

    Buffers that no checkpoint stores have their values.
    """
    with torch.device('meta'):
        networks = Networks(
            VideoBackbone(config),
            make_text(config.text, config.transformer.text_embed_dim),
            ActionHead(config.head, config.transformer.width),
        )
    networks.backbone.padding_mask = networks.backbone._padding_mask(config)
    networks.head.video_tokens.tag.frequencies = NoiseLevelTag(1).frequencies
    return networks


def check_filled(networks: Networks) -> None:
    """Raises RuntimeError if something was made on the meta device and never got a value.

    A new buffer that is not stored belongs into `empty_networks`.
    """
    for part, network in networks:
        for path, module in network.named_modules():
            inside = itertools.chain(
                module.named_parameters(recurse=False),
                module.named_buffers(recurse=False),
                vars(module).items(),
            )
            for name, value in inside:
                if isinstance(value, torch.Tensor) and value.is_meta:
                    raise RuntimeError(f'{part}.{path}.{name} was left without a value')


def is_narrow(networks: Networks) -> bool:
    """Whether the video model or the text keeps weights in bfloat16."""
    parameters = itertools.chain(networks.backbone.parameters(), networks.text.parameters())
    return any(parameter.dtype == torch.bfloat16 for parameter in parameters)


def choose_dtype(name: str | torch.dtype | None) -> torch.dtype | None:
    """The type to keep weights in, of 'float32', 'bfloat16', a torch type or None (as stored)."""
    choices = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
    if name is None or name in choices.values():
        return name
    if name not in choices:
        raise InputError(f'dtype {name}: unknown; choose one of {", ".join(choices)}')
    return choices[name]


def target_dtype(name: str, stored: str, dtype: torch.dtype | None, where: Path) -> torch.dtype:
    """The type in which tensor `name`, stored as `stored`, is kept.

    `dtype` is for the weights of video model and text. The head runs in float32, and statistics
    of latents are numbers to compute with, not weights.
    """
    if name.startswith('head.') or name.startswith('backbone.latents_'):
        return torch.float32
    if dtype is not None:
        return dtype
    if stored not in STORED_TYPES:
        raise InputError(
            f'{where}: {name} is stored as {stored}, expected {" or ".join(STORED_TYPES)}; '
            'give dtype float32 or bfloat16 to convert it'
        )
    return torch.float32 if stored == 'F32' else torch.bfloat16
