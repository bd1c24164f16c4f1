"""Where weights come from: a folder, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.tensor_files import refuse_pickle

_HUB_ID = re.compile(r'[A-Za-z0-9][\w.-]*/[\w.-]+')


def find_weights(
    source: str | os.PathLike[str],
    *,
    files: Sequence[str],
    revision: str | None = None,
    local_files_only: bool = False,
) -> Path:
    """The folder of `source`: itself, or the Hub's snapshot of it.

    Args:
        source: a folder, a hub id 'owner/name', or 'owner/name@revision'. A folder of that name
            comes first.
        files: patterns of the files to download; none may admit a pickle.
        revision: branch, tag or commit of a hub id; None is its main branch. A commit pins it.
        local_files_only: use what was downloaded before, ask no server.

    Raises InputError if there is nothing, or nothing without a network.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        refuse_pickle(path)
        raise InputError(f'{source}: is a file; name the folder that holds it')
    name, _, pinned = str(source).partition('@')
    if not _HUB_ID.fullmatch(name):
        raise InputError(
            f"{source}: no such folder; name one, or a Hub repository as 'owner/name@revision'"
        )
    if pinned and revision and pinned != revision:
        raise InputError(f'{source}: names another revision than {revision}; give one of them')
    return _download(name, pinned or revision, files, local_files_only)


def _download(
    name: str, revision: str | None, files: Sequence[str], local_files_only: bool
) -> Path:
    what = f'{name}@{revision or "main"}'
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(files),
                local_files_only=local_files_only,
            )
        )
    except GatedRepoError as error:
        raise InputError(
            f'{what}: its owner asks you to accept a licence; do so at '
            f'https://huggingface.co/{name} and run `hf auth login`'
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f'{what}: no such folder, and no such repository on the Hub; check the name, '
            'or run `hf auth login` if it is private'
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(f'{what}: the repository has no such revision; check it') from error
    except HFValidationError as error:
        raise InputError(f'{what}: is no name of a Hub repository; check it') from error
    # Every other one: what the HTTP client raises (proxies, certificates) is no class of the Hub's.
    except Exception as error:
        why = 'the Hub may not be asked' if local_files_only else f'no download ({_reason(error)})'
        raise InputError(
            f'{what}: no such folder, not or not wholly in the cache, and {why}; connect and run '
            f'it again, or fetch it elsewhere with `hf download {name}` and name that folder'
        ) from error


def _reason(error: Exception) -> str:
    root = error.__cause__ or error
    return f'{type(root).__name__}: {" ".join(str(root).split())[:200]}'
