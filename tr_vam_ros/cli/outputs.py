"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from tr_vam_ros.errors import InputError


def check_file(name: str, path: Path | None, suffix: str = '') -> None:
    """Raises InputError if option `name` is a file that cannot be made; None passes.

    Called before the work, whose result would be lost.
    """
    if path is None:
        return
    if suffix and path.suffix != suffix:
        raise InputError(f'{name} {path}: the name must end in {suffix}')
    if not path.absolute().parent.is_dir():
        raise InputError(f'{name} {path}: its folder does not exist; make it first')
    if path.is_dir():
        raise InputError(f'{name} {path}: is a folder; name a file')
