"""In which type the video model multiplies."""

from __future__ import annotations

import torch

from tr_vam_ros.errors import InputError

PRECISIONS = ('auto', 'float32', 'bfloat16')


def choose_precision(name: str) -> torch.dtype:
    """The torch type of 'float32', 'bfloat16' or 'auto'; raises InputError for another.

    'auto' is bfloat16 where the hardware multiplies it faster than float32: on a GPU, and on a CPU
    with instructions for it (AMX halves the time of a guided replan, AVX-512 BF16 takes off a
    tenth). On other CPUs bfloat16 is slower.
    """
    if name not in PRECISIONS:
        raise InputError(f'precision {name!r}: unknown; choose one of {", ".join(PRECISIONS)}')
    if name == 'auto':
        return torch.bfloat16 if torch.cuda.is_available() or _multiplies_bfloat16() else torch.float32
    return getattr(torch, name)


def _multiplies_bfloat16() -> bool:
    has = torch.cpu.get_capabilities()
    return bool(has.get('amx_bf16') or has.get('avx512_bf16'))
