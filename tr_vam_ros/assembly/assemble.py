"""A checkpoint from public weights: video model, text projection, action head, adapter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from tr_vam_ros.assembly.backbone_source import FILES, REVISIONS, BackboneSource
from tr_vam_ros.assembly.pi0_head import initialise_from_pi0
from tr_vam_ros.assembly.report import Fresh, NotTaken, Report, Taken
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.action_head import ActionHead
from tr_vam_ros.vam.adapters import attach_adapter, merge_adapter
from tr_vam_ros.vam.checkpoint import save_networks
from tr_vam_ros.vam.checkpoint_files import check_target
from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.networks import (
    Networks,
    check_filled,
    choose_dtype,
    empty_networks,
    target_dtype,
)
from tr_vam_ros.vam.random_weights import initialise_head, seeded
from tr_vam_ros.vam.tensor_files import (
    MAX_SHARD_BYTES,
    compare_tensors,
    copy_tensor,
    tensor_bytes,
)
from tr_vam_ros.vam.text import make_text
from tr_vam_ros.vam.weight_source import find_weights

HEAD_FILES = ('*.safetensors', '*.safetensors.index.json')
ADAPTER_FILES = ('*.safetensors', 'adapter_config.json')
ADAPTERS = ('kept', 'merged')


def assemble(
    config: VamConfig,
    out: str | os.PathLike[str],
    *,
    backbone: str,
    head: str = 'random',
    adapter: str | None = None,
    adapters: str = 'kept',
    dtype: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    local_files_only: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Write the checkpoint `out`; returns what was taken, what was not, and why.

    Args:
        backbone: folder or hub id with diffusers' transformer/ and vae/.
        head: folder or hub id of pi0 or pi0.5, or 'random'.
        adapter: folder or hub id of a LoRA of the transformer.
        adapters: 'kept' beside the weights, or 'merged' into them.
        dtype: of the weights of video model and text; None keeps the source's.
        seed: of what is random.
        on_progress: called with bytes read and bytes in all.

    Everything is checked before a tensor is read. Memory holds the result and a few megabytes.
    Raises InputError for sources that do not fit, with the list, or a target that may not be
    written.
    """
    if adapters not in ADAPTERS:
        raise InputError(f"adapters '{adapters}': unknown; use {' or '.join(ADAPTERS)}")
    kept_type = choose_dtype(dtype)
    check_target(Path(out).expanduser().resolve(), overwrite)
    report = Report()
    source_folder = _find(backbone, FILES, local_files_only)
    head_folder = None if head == 'random' else _find(head, HEAD_FILES, local_files_only)
    adapter_folder = None if adapter is None else _find(adapter, ADAPTER_FILES, local_files_only)
    source = BackboneSource(source_folder, config)

    networks = empty_networks(config)
    taken = _choose(source, networks, config, report)
    networks.head = _make_head(config, head, head_folder, seed, report)
    tensors = _read(source, taken, kept_type, on_progress)
    tensors |= source.latent_statistics()
    tensors |= _fresh_text(config, networks, tensors, kept_type, seed, report)
    tensors |= {f'head.{name}': value for name, value in networks.head.state_dict().items()}
    networks.fill(tensors)
    check_filled(networks)
    del tensors

    report.sources.insert(0, f'video model: {_describe(backbone, source_folder)}')
    transformer = networks.backbone.transformer
    if adapter_folder is not None:
        modules = attach_adapter(transformer, adapter_folder)
        if adapters == 'merged':
            merge_adapter(transformer)
        report.sources.append(
            f'adapter: {_describe(adapter, adapter_folder)}, {modules} modules, {adapters}'
        )
    report.sources.append(f"statistics: of preset {config.name}, until a data set's replace them")
    state = networks.state().values()
    report.parameters, report.bytes = sum(t.numel() for t in state), tensor_bytes(state)
    save_networks(
        config, networks, out,
        overwrite=overwrite, sources=report.sources, max_shard_bytes=max_shard_bytes,
    )
    return report


def _find(source: str, files: tuple[str, ...], local_files_only: bool) -> Path:
    return find_weights(
        source, files=files, revision=REVISIONS.get(source), local_files_only=local_files_only
    )


def _describe(source: str, folder: Path) -> str:
    """The source as a reader elsewhere can find it: a hub id with the commit it stood at."""
    if folder.parent.name != 'snapshots':  # not the Hub's cache
        return folder.name
    return f'{source.partition("@")[0]}@{folder.name}'


def _choose(
    source: BackboneSource, networks: Networks, config: VamConfig, report: Report
) -> set[str]:
    """What to take; raises InputError unless that is the whole video model."""
    expected = networks.shapes()
    found = source.shapes
    if config.text.encoder != 'cosmos_reason1':
        # The text path is our own; its projection is welcome where it fits.
        for name in [name for name in found if name.startswith('text.')]:
            shape = found[name]
            if shape != expected.get(name):
                report.not_taken.append(
                    NotTaken(source.name(name), f'is {shape}, the text has {expected.get(name)}')
                )
                del found[name]
    needed = {
        name: shape for name, shape in expected.items()
        if name.startswith('backbone.') and name not in source.latent_statistics()
    }
    needed |= {
        name: shape for name, shape in expected.items()
        if name.startswith('text.')
        and (name in found or config.text.encoder == 'cosmos_reason1')
    }
    compare_tensors(
        str(source.folder), needed, found,
        f"it is not the video model of preset '{config.name}': name another, or download it again",
    )
    report.taken.extend(Taken(source.name(name), name) for name in sorted(found))
    report.taken.extend(
        Taken(f'vae.config.{name.removeprefix("backbone.")}', name)
        for name in source.latent_statistics()
    )
    return set(found)


def _read(
    source: BackboneSource,
    taken: set[str],
    dtype: torch.dtype | None,
    on_progress: Callable[[int, int], None] | None,
) -> dict[str, torch.Tensor]:
    total, done, tensors = sum(source.size(name) for name in taken), 0, {}
    for name, mapped in source.read(taken):
        kept = target_dtype(name, source.stored_type(name), dtype, source.folder)
        tensors[name] = copy_tensor(mapped, torch.device('cpu'), kept)
        del mapped  # or its file stays mapped
        done += source.size(name)
        if on_progress:
            on_progress(done, total)
    return tensors


def _make_head(
    config: VamConfig, source: str, folder: Path | None, seed: int, report: Report
) -> ActionHead:
    with seeded(seed):
        head = ActionHead(config.head, config.transformer.width)
        initialise_head(head)
    if folder is None:
        reason = f'random, seed {seed}'
        report.fresh.extend(Fresh(f'head.{name}', reason) for name in head.state_dict())
        report.sources.append(f'action head: {reason}')
        return head
    before = len(report.taken)
    kind = initialise_from_pi0(head, folder, report)
    count = len(report.taken) - before
    report.sources.append(
        f'action head: {kind} action expert of {_describe(source, folder)}, '
        f'{count} of {len(head.state_dict())} tensors; the rest random, seed {seed}'
    )
    return head


def _fresh_text(
    config: VamConfig,
    networks: Networks,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype | None,
    seed: int,
    report: Report,
) -> dict[str, torch.Tensor]:
    """Random tensors for what the text path has and no source."""
    missing = [
        f'text.{name}' for name in networks.text.state_dict() if f'text.{name}' not in tensors
    ]
    if not missing:
        return {}
    with seeded(seed):
        made = make_text(config.text, config.transformer.text_embed_dim).state_dict()
    report.fresh.extend(Fresh(name, f'random, seed {seed}') for name in missing)
    # One type for the whole text path: the projection's, if a source had one.
    types = {value.dtype for name, value in tensors.items() if name.startswith('text.')}
    dtype = next(iter(types), dtype)
    return {name: made[name.removeprefix('text.')].to(dtype) for name in missing}
