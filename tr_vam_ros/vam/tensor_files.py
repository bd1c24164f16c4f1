"""Named tensors in safetensors files: read through a memory map, compared, written in shards.

Nothing here can open a pickle: torch.load is never called, and a pickle is refused by name.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tr_vam_ros.errors import InputError

PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl', '.pickle')

MAX_SHARD_BYTES = 1 << 30

# A mapped page counts as this process's memory until its file is closed: files are closed and
# opened anew after this many bytes, so that the weights never stand in memory twice.
_MAPPED_BYTES = 16 << 20

_LISTED = 10  # names in a message; a model has a thousand tensors


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor stands, and what its file's header says of it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # of safetensors: 'F32', 'BF16', ...
    bytes: int


class TensorFiles:
    """The tensors of `folder`: `<stem>.safetensors`, or the shards that its index names."""

    def __init__(self, folder: Path, stem: str = 'model') -> None:
        """Reads headers alone. Raises InputError for a missing or corrupt file, or a pickle."""
        self.folder = folder
        self.stored: dict[str, StoredTensor] = {}
        for file in _find_files(folder, stem):
            with open_file(file) as handle:
                for name in handle.keys():
                    if name in self.stored:
                        raise InputError(
                            f'{folder}: {name} stands in {self.stored[name].file.name} and in '
                            f'{file.name}; one of them is left over: copy the folder again'
                        )
                    self.stored[name] = _stored(handle, file, name)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self.stored.items()}

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Each name and its tensor on the CPU, file by file.

        The tensor is the mapped file itself: copy it, and let go of it before the next.
        """
        files: dict[Path, list[str]] = {}
        for name in names:
            files.setdefault(self.stored[name].file, []).append(name)
        for file, inside in files.items():
            while inside:
                mapped = 0
                with open_file(file) as handle:
                    while inside and mapped < _MAPPED_BYTES:
                        name = inside.pop(0)
                        mapped += self.stored[name].bytes
                        yield name, handle.get_tensor(name)


@contextlib.contextmanager
def open_file(file: Path) -> Iterator[safe_open]:
    """A safetensors file; raises InputError if it cannot be opened or is none."""
    refuse_pickle(file)
    try:
        handle = safe_open(file, framework='pt')
    except FileNotFoundError as error:
        raise InputError(f'{file}: is missing; copy or download the folder again') from error
    except (SafetensorError, OSError) as error:
        reason = ' '.join(str(error).split())
        raise InputError(
            f'{file}: is no readable safetensors file ({reason}); copy or download it again'
        ) from error
    with handle as opened:
        yield opened


def refuse_pickle(file: Path) -> None:
    """Raises InputError for a file that only pickle reads, by its name."""
    if file.suffix in PICKLES:
        raise InputError(
            f'{file}: is a pickle, which can run any code when it is opened, so it is not; '
            'convert it to .safetensors first, where you trust it'
        )


def copy_tensor(
    mapped: torch.Tensor, device: torch.device, dtype: torch.dtype | None
) -> torch.Tensor:
    """A tensor of its own on `device`, in `dtype` if that is given and it is a floating one.

    Always a copy, although a mapped tensor would do on the CPU: a file that changes must not
    change a running policy, and equal bits need memory of equal alignment.
    """
    dtype = dtype if dtype is not None and mapped.is_floating_point() else mapped.dtype
    return mapped.to(device=device, dtype=dtype, copy=True)


def compare_tensors(
    where: str,
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    remedy: str,
) -> None:
    """Raises InputError with a list unless names and shapes are the expected ones."""
    parts = []
    missing = sorted(expected.keys() - found.keys())
    if missing:
        parts.append(f'{count(missing, "tensor")} missing ({listed(missing)})')
    unexpected = sorted(found.keys() - expected.keys())
    if unexpected:
        parts.append(f'{count(unexpected, "tensor")} unexpected ({listed(unexpected)})')
    misshaped = [
        f'{name} is {found[name]}, expected {shape}'
        for name, shape in sorted(expected.items())
        if name in found and found[name] != shape
    ]
    if misshaped:
        parts.append(f'{count(misshaped, "tensor")} of another shape ({listed(misshaped)})')
    if parts:
        raise InputError(f'{where}: {"; ".join(parts)}; {remedy}')


def count(things: list[str], noun: str) -> str:
    return f'{len(things)} {noun}{"" if len(things) == 1 else "s"}'


def listed(names: list[str]) -> str:
    """The first ten names, and how many more there are."""
    rest = len(names) - _LISTED
    return ', '.join(names[:_LISTED]) + (f' and {rest} more' if rest > 0 else '')


def write_tensor_files(
    tensors: Mapping[str, torch.Tensor], folder: Path, max_shard_bytes: int
) -> list[Path]:
    """`model.safetensors`, or shards and `model.safetensors.index.json`, as the Hub has them.

    Host memory holds one shard at a time if the tensors are on a GPU, else nothing more.
    """
    split = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=max_shard_bytes)
    files = []
    for name, inside in split.filename_to_tensors.items():
        shard = {key: tensors[key].detach().to('cpu').contiguous() for key in inside}
        save_file(shard, folder / name, metadata={'format': 'pt'})
        files.append(folder / name)
    if split.is_sharded:
        index = {'metadata': split.metadata, 'weight_map': split.tensor_to_filename}
        text = json.dumps(index, indent=1) + '\n'
        (folder / 'model.safetensors.index.json').write_text(text, encoding='utf-8')
    return files


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _find_files(folder: Path, stem: str) -> list[Path]:
    single = folder / f'{stem}.safetensors'
    index = folder / f'{stem}.safetensors.index.json'
    if index.is_file():
        return _indexed_files(index)
    if single.is_file():
        return [single]
    for file in sorted(folder.glob('*')):
        refuse_pickle(file)
    raise InputError(
        f'{folder}: holds neither {single.name} nor {index.name}; '
        'name a folder with the weights, or download it again'
    )


def weight_map(index: Path) -> dict[str, Path]:
    """The file of each tensor; raises InputError unless it is an index of safetensors files."""
    try:
        names = dict(json.loads(index.read_text(encoding='utf-8'))['weight_map'])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'{index}: has no weight_map of shards ({type(error).__name__}); '
            'copy or download it again'
        ) from error
    for name in set(names.values()):
        # An index comes from elsewhere; it must not name files outside its folder.
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise InputError(f'{index}: names {name!r}, expected a file of its own folder')
        refuse_pickle(index.parent / name)
    return {tensor: index.parent / name for tensor, name in names.items()}


def _indexed_files(index: Path) -> list[Path]:
    files = sorted(set(weight_map(index).values()))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise InputError(
            f'{index.parent}: {count(missing, "shard")} missing ({listed(missing)}); '
            'copy or download the folder again'
        )
    return files


def _stored(handle: safe_open, file: Path, name: str) -> StoredTensor:
    part = handle.get_slice(name)
    shape, dtype = tuple(part.get_shape()), part.get_dtype()
    digits = ''.join(character for character in dtype.split('_')[0] if character.isdigit())
    size = int(digits or 8) // 8  # 'BF16' 2, 'F8_E4M3' 1, 'BOOL' 1
    for side in shape:
        size *= side
    return StoredTensor(file, shape, dtype, size)
