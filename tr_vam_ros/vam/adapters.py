"""LoRA adapters of the video transformer: attach, merge, and tell them apart from its weights.

Two layouts are read: peft's folder (adapter_config.json, adapter_model.safetensors) and
diffusers' file pytorch_lora_weights.safetensors, which is also what is written (spec section 5).
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel
from torch import nn

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.tensor_files import compare_tensors, count, listed, open_file, refuse_pickle

ADAPTER_FILE = 'pytorch_lora_weights.safetensors'
_PEFT_CONFIG, _PEFT_FILE = 'adapter_config.json', 'adapter_model.safetensors'
_METADATA = 'lora_adapter_metadata'  # diffusers keeps the LoRA's configuration in the file

# What each saver puts before the transformer's own module names: peft, diffusers' pipelines.
_PREFIXES = ('base_model.model.', 'transformer.')
_LORA_NAME = re.compile(r'(?P<module>.+)\.lora_(?P<side>[AB])\.weight')


def attach_adapter(transformer: CosmosTransformer3DModel, folder: Path) -> int:
    """Load the adapter in `folder` beside the transformer's weights; the number of its modules.

    Raises InputError for a folder without an adapter, one made for other modules or shapes, or
    one that leaves the transformer's output as it was.
    """
    tensors, config = _read(folder)
    _check(transformer, tensors, folder)
    before = _probe(transformer)
    with _as_input_error(folder):
        transformer.load_lora_adapter(tensors, prefix=None, metadata=config)
    transformer.eval()  # the new layers come in training mode, where dropout acts
    if torch.equal(before, _probe(transformer)):
        raise InputError(
            f'{folder}: the adapter changes nothing in what the transformer says; it was saved '
            'before its training, or switched off: name another, or leave it out'
        )
    return len(tensors) // 2


def merge_adapter(transformer: CosmosTransformer3DModel) -> None:
    """Add the adapter to the weights, in their type, and remove it."""
    transformer.fuse_lora()
    transformer.unload_lora()


def adapter_name(transformer: CosmosTransformer3DModel) -> str | None:
    """The attached adapter, if there is one; raises InputError for several, or a merged one."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in transformer.modules() if isinstance(module, BaseTunerLayer)]
    if not layers:
        return None
    if any(layer.merged for layer in layers):
        raise InputError('adapter: is added to the weights but still there; use merge_adapter')
    names = list(transformer.peft_config)
    if len(names) != 1:
        raise InputError(
            f'adapter: {len(names)} are attached ({", ".join(names)}); a checkpoint carries one: '
            'merge the others'
        )
    return names[0]


def save_adapter(transformer: CosmosTransformer3DModel, name: str, folder: Path) -> None:
    with _without_cast_warning():
        transformer.save_lora_adapter(folder, adapter_name=name, weight_name=ADAPTER_FILE)


def without_adapter(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights under the names they have where no adapter is attached."""
    return {
        name.replace('.base_layer.', '.'): tensor
        for name, tensor in state.items()
        if '.lora_' not in name
    }


def _read(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
    """Tensors by the transformer's own names, and the arguments of peft's LoraConfig."""
    file, config = folder / ADAPTER_FILE, None
    if not file.is_file() and (folder / _PEFT_CONFIG).is_file():
        from peft import LoraConfig

        file = folder / _PEFT_FILE
        with _as_input_error(folder):
            config = LoraConfig.from_pretrained(str(folder)).to_dict()
    if not file.is_file():
        for other in sorted(folder.glob('*')):
            refuse_pickle(other)
        raise InputError(
            f'{folder}: holds no adapter; expected {ADAPTER_FILE}, or {_PEFT_CONFIG} and '
            f'{_PEFT_FILE}'
        )
    with open_file(file) as handle:
        tensors = {_own_name(name): handle.get_tensor(name).clone() for name in handle.keys()}
        metadata = handle.metadata() or {}
    if config is None and _METADATA in metadata:
        with _as_input_error(folder):
            config = {_own_name(key): v for key, v in json.loads(metadata[_METADATA]).items()}
    return tensors, config


@contextlib.contextmanager
def _as_input_error(folder: Path) -> Iterator[None]:
    """peft and diffusers say what they cannot use in errors of many kinds."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = f'{type(error).__name__}: {" ".join(str(error).split())}'
        raise InputError(
            f"{folder}: the adapter's configuration cannot be used ({reason[:300]}); "
            'save the adapter again with the installed peft'
        ) from error


@contextlib.contextmanager
def _without_cast_warning() -> Iterator[None]:
    """diffusers warns of a cast of `learnable_pos_embed`, which this transformer does not have."""
    logger = logging.getLogger('diffusers.models.modeling_utils')
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _own_name(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _check(
    transformer: CosmosTransformer3DModel, tensors: Mapping[str, torch.Tensor], folder: Path
) -> None:
    matches = {name: _LORA_NAME.fullmatch(name) for name in tensors}
    strange = sorted(name for name, match in matches.items() if match is None)
    if strange or not tensors:
        raise InputError(
            f'{folder}: {count(strange, "tensor")} no LoRA of Linear layers ({listed(strange)}); '
            'expected <module>.lora_A.weight and <module>.lora_B.weight'
        )
    linears = {
        name: module for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear)
    }
    expected: dict[str, tuple[int, ...]] = {}
    for match in matches.values():
        module = linears.get(match['module'])
        if module is not None:
            side_a = tensors.get(f'{match["module"]}.lora_A.weight')
            rank = len(side_a) if side_a is not None else 0
            expected[f'{match["module"]}.lora_A.weight'] = rank, module.in_features
            expected[f'{match["module"]}.lora_B.weight'] = module.out_features, rank
    compare_tensors(
        f'{folder}: adapter',
        expected,
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        'it was made for another transformer: name one that fits the backbone',
    )


def _probe(transformer: CosmosTransformer3DModel) -> torch.Tensor:
    """What the transformer says to a fixed small input: two frames of one patch, two words."""
    config = transformer.config
    generator = torch.Generator().manual_seed(0)
    weight = transformer.proj_out.weight
    size = 2, *config.patch_size[1:]
    latent = torch.randn(1, config.in_channels, *size, generator=generator)
    context = torch.randn(1, 2, config.text_embed_dim, generator=generator)
    device = weight.device
    with torch.inference_mode(), torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=weight.dtype == torch.bfloat16
    ):
        return transformer(
            hidden_states=latent.to(device),
            timestep=torch.full((1, 1, 2, 1, 1), 0.5, device=device),
            encoder_hidden_states=context.to(device),
            return_dict=False,
        )[0]
