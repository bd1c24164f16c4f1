"""A policy as a folder: config.json, statistics.json, safetensors, adapter, model card.

| file | what |
|---|---|
| config.json | `VamConfig` but for its statistics; versions of format and package |
| statistics.json | normalisation of proprioception and actions: {proprio, action: {mean, std}} |
| model*.safetensors | `backbone.*`, `text.*`, `head.*`; several with model.safetensors.index.json |
| adapter/ | a LoRA of the video transformer that is kept apart (`adapters.py`) |
| text_cache.safetensors | projected instructions, where the text encoder has a cache |
| README.md | the model card |

The layout is the Hub's: upload the folder as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.adapters import adapter_name, attach_adapter, save_adapter, without_adapter
from tr_vam_ros.vam.checkpoint_files import (
    ADAPTER,
    CARD,
    DOWNLOADED,
    check_space,
    check_target,
    open_to_readers,
    read_config,
    write_config,
)
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.folder_swap import replaced_folder
from tr_vam_ros.vam.guidance import GuidanceSchedule
from tr_vam_ros.vam.model_card import model_card
from tr_vam_ros.vam.networks import (
    Networks,
    check_filled,
    choose_dtype,
    empty_networks,
    is_narrow,
    load_text_files,
    save_text_files,
    target_dtype,
)
from tr_vam_ros.vam.policy import VideoActionPolicy
from tr_vam_ros.vam.precision import choose_precision
from tr_vam_ros.vam.settings import with_settings
from tr_vam_ros.vam.tensor_files import (
    MAX_SHARD_BYTES,
    TensorFiles,
    compare_tensors,
    copy_tensor,
    tensor_bytes,
    write_tensor_files,
)
from tr_vam_ros.vam.weight_source import find_weights

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def save_policy(
    policy: VideoActionPolicy,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    sources: Sequence[str] = (),
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write a checkpoint, whole or not at all; returns its folder.

    Args:
        folder: to make. It may exist if it is empty or, with `overwrite`, holds a checkpoint and
            nothing else; that one stays as it is until the new one is complete.
        sources: lines for the model card: where the weights come from.
        max_shard_bytes: a file is begun anew before it gets larger.

    Weights keep their types. An attached adapter stays apart, in `adapter/`.
    Raises InputError, and leaves `folder` as it was, if it may not or cannot be written.
    """
    return save_networks(
        policy.config, Networks(policy.backbone, policy.text, policy.head), folder,
        overwrite=overwrite, sources=sources, max_shard_bytes=max_shard_bytes,
    )


def save_networks(
    config: VamConfig,
    networks: Networks,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    sources: Sequence[str] = (),
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """As `save_policy`, of networks that need not be a policy yet."""
    target = Path(folder).expanduser().resolve()
    check_target(target, overwrite)
    transformer = networks.backbone.transformer
    adapter = adapter_name(transformer)
    tensors = without_adapter(networks.state())
    check_space(target, tensor_bytes(tensors.values()))
    parameters = sum(tensor.numel() for tensor in tensors.values())
    try:
        with replaced_folder(target) as new:
            write_tensor_files(tensors, new, max_shard_bytes)
            if adapter is not None:
                save_adapter(transformer, adapter, new / ADAPTER)
            save_text_files(networks.text, new)
            write_config(config, new)
            card = model_card(config, parameters, sources)
            (new / CARD).write_text(card, encoding='utf-8')
            open_to_readers(new)
    except (OSError, SafetensorError) as error:
        reason = ' '.join(str(error).split())
        raise InputError(
            f'{folder}: cannot be written ({reason}), and is as it was before; '
            'free some space or name another place'
        ) from error
    return target


def load_policy(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    device: str | torch.device = 'cpu',
    dtype: str | torch.dtype | None = None,
    precision: str | None = None,
    seed: int = 0,
    guidance: str = 'adaptive',
    replay_scales: Sequence[float] = (),
    on_end: str = 'error',
    settings: Sequence[str] = (),
    on_progress: Progress | None = None,
) -> VideoActionPolicy:
    """The policy in a folder or a Hub repository ('owner/name', 'owner/name@revision').

    Args:
        revision: branch, tag or commit of the repository; a commit pins it.
        local_files_only: use what was downloaded before, ask no server.
        dtype: type in which weights of video model and text are kept, 'float32' or 'bfloat16';
            None keeps the stored one. The head is float32.
        precision: of the video model's products, as in `from_config`. None is float32, so that a
            policy that was saved answers as before, or bfloat16 where the weights are kept in
            it; so is 'auto' there.
        seed, guidance, replay_scales, on_end: as in `from_config`.
        settings: values of the configuration that differ from the checkpoint's, as 'guidance.cap=1'.
        on_progress: called with bytes done and bytes in all.

    Host memory at its peak is the weights and a few megabytes, or less if `device` is a GPU.
    Raises InputError for a folder that holds no whole checkpoint, listing what is wrong.
    """
    schedule = GuidanceSchedule(guidance, tuple(replay_scales), on_end)
    choose_precision(precision or 'float32')
    dtype, device = choose_dtype(dtype), _check_device(device)
    folder = find_weights(
        source, files=DOWNLOADED, revision=revision, local_files_only=local_files_only
    )
    config = with_settings(read_config(folder), settings)
    networks = empty_networks(config)
    _fill(networks, TensorFiles(folder), device, dtype, on_progress)
    for _, network in networks:
        network.to(device)  # what is not stored; the weights are there already
    check_filled(networks)
    networks.backbone.precision = _products(networks, precision, folder)
    if (folder / ADAPTER).is_dir():
        attach_adapter(networks.backbone.transformer, folder / ADAPTER)
    load_text_files(networks.text, folder)
    return VideoActionPolicy(
        config, networks.backbone, networks.text, networks.head, seed=seed, schedule=schedule
    )


def _fill(
    networks: Networks,
    files: TensorFiles,
    device: torch.device,
    dtype: torch.dtype | None,
    on_progress: Progress | None,
) -> None:
    compare_tensors(
        str(files.folder), networks.shapes(), files.shapes,
        'weights and config.json do not belong together: copy or download both again',
    )
    total, done = sum(stored.bytes for stored in files.stored.values()), 0
    tensors = {}
    for name, mapped in files.read(files.stored):
        stored = files.stored[name]
        tensors[name] = copy_tensor(
            mapped, device, target_dtype(name, stored.dtype, dtype, files.folder)
        )
        del mapped  # or its file stays mapped
        done += stored.bytes
        if on_progress:
            on_progress(done, total)
    networks.fill(tensors)


def _products(networks: Networks, precision: str | None, folder: Path) -> torch.dtype:
    if not is_narrow(networks):
        return choose_precision(precision or 'float32')
    if precision == 'float32':
        raise InputError(
            f'precision float32: {folder} keeps weights in bfloat16; '
            'give dtype float32 too (twice the memory), or precision bfloat16'
        )
    return torch.bfloat16


def _check_device(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f'device {device}: cannot be used ({reason}); use cpu') from error
