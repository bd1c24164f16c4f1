"""Projected instructions on disk, so that driving needs no text encoder.

A context is (n, d) bfloat16, the precision in which the video model multiplies it: 1 MB for 512
places of 1024. It depends on the prompt and on `TextWeights`; both are part of an entry's name
and are compared again when it is read. Source: spec section 1 "Text".
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file

from tr_vam_ros.errors import InputError

FILE_IN_CHECKPOINT = 'text_cache.safetensors'

_FORMAT = 'tr_vam_ros text contexts 1'
_UNREADABLE = (OSError, safetensors.SafetensorError, KeyError, TypeError, json.JSONDecodeError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextWeights:
    """What a context depends on besides its prompt."""

    projection: str  # fingerprint of the projection's tensors
    encoder: str  # identity of the encoder: hub id and revision, or a fingerprint of its folder
    places: int  # n: the prompt is padded or cut to this many tokens


def default_folder() -> Path:
    """`~/.cache/tr_vam_ros/text`, or under XDG_CACHE_HOME where that is an absolute path."""
    base = Path(os.environ.get('XDG_CACHE_HOME', ''))
    return (base if base.is_absolute() else Path.home() / '.cache') / 'tr_vam_ros' / 'text'


class TextCache:
    """A folder of one file per context, and files of many that travel inside checkpoints.

    Every write is a rename of a complete file: processes that share the folder see an entry
    whole or not at all. A damaged entry is none, and is made again. Call from one thread.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self._travelled: list[_ContextFile] = []
        self._unsaved: dict[tuple[str, TextWeights], torch.Tensor] = {}

    @property
    def travelled_prompts(self) -> list[str]:
        """What the files that were loaded hold, each once."""
        return list(dict.fromkeys(p for file in self._travelled for p in file.prompts))

    def get(self, prompt: str, weights: TextWeights) -> torch.Tensor | None:
        """The context (n, d) bfloat16 of `prompt`, or None.

        Files that were loaded come first, and count whatever encoder they were made with: whoever
        made the checkpoint chose it. Raises InputError if such a file is damaged.
        """
        known = [weights]
        for file in self._travelled:
            if dataclasses.replace(file.weights, encoder=weights.encoder) == weights:
                if prompt in file.prompts:
                    return file.read(prompt)
                known.append(file.weights)  # this folder may hold more of the same encoder
        for candidate in known:
            if (prompt, candidate) in self._unsaved:
                return self._unsaved[prompt, candidate]
            path = self._path(prompt, candidate)
            if path.exists():
                try:
                    return _ContextFile(path, candidate).read(prompt)
                except (InputError, KeyError) as error:
                    _log.warning('%s; it will be made again', error)
        return None

    def put(self, prompt: str, weights: TextWeights, context: torch.Tensor) -> None:
        """Keep a context (n, d). A folder that cannot be written costs a warning, no drive."""
        context = context.detach().to('cpu', torch.bfloat16).contiguous()
        path = self._path(prompt, weights)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, weights, {prompt: context})
        except (OSError, safetensors.SafetensorError) as error:
            _log.warning(
                'text cache %s: cannot be written (%s); this process alone keeps the instruction',
                self.folder, error,
            )
            self._unsaved[prompt, weights] = context

    def check_writable(self) -> None:
        """Raises InputError if contexts cannot be kept; for who must not find out too late."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise InputError(
                f'text cache {self.folder}: cannot be written ({error.strerror}); name another'
            ) from error
        if self._unsaved:
            raise InputError(
                f'text cache {self.folder}: {len(self._unsaved)} contexts could not be written; '
                'free space, then embed again'
            )

    def load(self, path: str | os.PathLike[str]) -> TextWeights:
        """Add the contexts of one file, as `save` makes it; they are read when they are needed.

        Returns the weights it was made with: with others it is of no use. Raises InputError if
        the file is missing, damaged or of another kind.
        """
        file = _ContextFile(Path(path))
        self._travelled.append(file)
        return file.weights

    def save(
        self, path: str | os.PathLike[str], prompts: Iterable[str], weights: TextWeights
    ) -> tuple[int, int]:
        """Add `prompts` to the one file at `path`, which is made if there is none.

        Entries of other weights would never be found again and are left out. Returns how many
        the file holds now, and how many were left out. Raises InputError if a prompt has no
        context or the file cannot be written.
        """
        path = Path(path)
        with _locked(path.absolute().parent):
            contexts, left_out = {}, 0
            if path.exists():
                with contextlib.suppress(InputError):  # damaged: it is made again
                    file = _ContextFile(path)
                    if file.weights == weights:
                        contexts = {prompt: file.read(prompt) for prompt in file.prompts}
                    else:
                        left_out = len(file.prompts)
            for prompt in prompts:
                context = self.get(prompt, weights)
                if context is None:
                    raise InputError(f'text cache: {prompt!r} has no context yet; embed it first')
                contexts[prompt] = context
            try:
                _write(path, weights, contexts)
            except (OSError, safetensors.SafetensorError) as error:
                raise InputError(
                    f'{path}: cannot be written ({error}); make its folder writable, or free space'
                ) from error
        return len(contexts), left_out

    def _path(self, prompt: str, weights: TextWeights) -> Path:
        group = hashlib.sha256(_json(dataclasses.asdict(weights)).encode()).hexdigest()[:32]
        return self.folder / group / f'{_name(prompt)}.safetensors'


class _ContextFile:
    """A safetensors file of contexts: its header at once, each tensor when it is asked for."""

    def __init__(self, path: Path, expected: TextWeights | None = None) -> None:
        self.path = path
        with self._reading() as file:
            header = file.metadata() or {}
            if header.get('format') != _FORMAT:
                raise InputError(
                    f'{path}: is no file of text contexts ({_FORMAT}); '
                    'make one with `tr-vam embed --into-checkpoint`'
                )
            self.weights = TextWeights(**json.loads(header['weights']))
            self.prompts: dict[str, str] = json.loads(header['prompts'])  # to checksums
        if expected not in (None, self.weights):
            raise InputError(f'{path}: was made with other weights than its name says')

    def read(self, prompt: str) -> torch.Tensor:
        """The context; raises InputError if it does not match its checksum."""
        with self._reading() as file:
            context = file.get_tensor(_name(prompt)).clone()  # not a view of the file
        if context.dim() != 2 or _checksum(context) != self.prompts[prompt]:
            raise InputError(self._damage(f'{prompt!r} does not match its checksum'))
        return context

    @contextlib.contextmanager
    def _reading(self) -> Iterator[safetensors.safe_open]:
        try:
            with safetensors.safe_open(self.path, framework='pt') as file:
                yield file
        except _UNREADABLE as error:
            raise InputError(self._damage(' '.join(str(error).split()))) from error

    def _damage(self, reason: str) -> str:
        return (
            f'{self.path}: cannot be read ({reason}); '
            'remove it and make it again with `tr-vam embed`, or copy it again'
        )


def _write(path: Path, weights: TextWeights, contexts: dict[str, torch.Tensor]) -> None:
    """A complete file or none: written beside `path`, then renamed."""
    tensors = {_name(prompt): context for prompt, context in contexts.items()}
    header = {
        'format': _FORMAT,
        'weights': _json(dataclasses.asdict(weights)),
        'prompts': _json({prompt: _checksum(context) for prompt, context in contexts.items()}),
    }
    unfinished = path.with_name(f'.{path.name}.{uuid.uuid4().hex}')
    try:
        unfinished.touch()
        mode = unfinished.stat().st_mode
        save_file(tensors, unfinished, metadata=header)
        unfinished.chmod(mode)  # as any new file: safetensors lets nobody else read its own
        with open(unfinished, 'rb+') as file:
            os.fsync(file.fileno())  # else a power cut may leave the name without the content
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time reads, adds to and replaces a file of `folder`."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f'{folder}: cannot be opened ({error.strerror}); make it first') from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the last writer wins
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _checksum(context: torch.Tensor) -> str:
    return hashlib.sha256(context.contiguous().view(torch.uint8).numpy()).hexdigest()


def _name(prompt: str) -> str:
    return hashlib.sha256(_json(prompt).encode()).hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
