"""A folder that is replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, which takes its place when the block ends without an error.

    On an error nothing is left of the new folder, and `target` is as it was. A process killed
    without a chance to clean up leaves a hidden folder `.<name>.<digits>.new` or, between the two
    renames, the old one as `.<name>.<digits>.old`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = f'.{target.name}.{uuid.uuid4().hex[:8]}'
    new, old = target.with_name(f'{hidden}.new'), target.with_name(f'{hidden}.old')
    new.mkdir()
    try:
        yield new
        _sync(new)
        had_one = target.exists()
        if had_one:
            target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            if had_one:
                old.rename(target)
            raise
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    # The new one is in place; what cannot be removed of the old one is only in the way.
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Everything onto the disk: a rename that outlives a power cut must not outlive the data."""
    for path in [folder, *folder.rglob('*')]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
