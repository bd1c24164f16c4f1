"""Cosmos-Reason1 as a text encoder: a prompt to what all its layers say about each token.

Legend: b batch, n token, l layer, d width. Source: spec section 1 "Text"; the prompt's form, its
length and the normalisation are those of diffusers' `Cosmos2_5_PredictBasePipeline`, whose weights
this package loads. The encoder is a Qwen2.5-VL of 7 billion parameters: 16 GB in bfloat16, needed
for instructions that no cache holds, and freed at once. Its vision part never runs.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tr_vam_ros.errors import InputError

COSMOS_REASON = 'nvidia/Cosmos-Reason1-7B'
# The one that Cosmos-Predict2.5 was trained with (its own checkpoint list names it).
COSMOS_REASON_REVISION = '3210bec0495fdc7a8d3dbb8d58da5711eab4b423'

DTYPES = ('bfloat16', 'float16', 'float32')

_SYSTEM = 'You are a helpful assistant who will provide prompts to an image generator.'
_EPSILON = 1e-8  # of the normalisation, as in diffusers
_HUB_ID = re.compile(r'[A-Za-z0-9][\w.-]*/[\w.-]+')
_SAMPLE = 65_536  # bytes from each end of a weight file that tell it from another
_SUFFIXES = ('.json', '.txt', '.jinja', '.safetensors')


@dataclass(frozen=True)
class EncoderSource:
    """Where the encoder is and how it runs; nothing is opened before it is needed."""

    name: str = COSMOS_REASON  # a local folder, or a hub id
    revision: str = ''  # of a hub id; '' is the pinned one of COSMOS_REASON, else main
    download: bool = False  # whether a hub id may be fetched; else it must be in the hub's cache
    device: str = 'auto'  # 'auto': a GPU where there is one
    dtype: str = 'bfloat16'

    def __post_init__(self) -> None:
        if not (Path(self.name).is_dir() or _HUB_ID.fullmatch(self.name)):
            raise InputError(
                f'encoder {self.name}: is no folder; give one, or a hub id such as {COSMOS_REASON}'
            )
        try:
            kind = 'cpu' if self.device == 'auto' else torch.device(self.device).type
        except RuntimeError as error:
            raise InputError(
                f'encoder device {self.device!r}: unknown; use auto, cpu or cuda'
            ) from error
        if kind == 'cuda' and not torch.cuda.is_available():
            raise InputError(f'encoder device {self.device!r}: there is no GPU; use auto or cpu')
        if self.dtype not in DTYPES:
            raise InputError(f'encoder dtype {self.dtype!r}: use one of {", ".join(DTYPES)}')

    @property
    def hub_revision(self) -> str:
        return self.revision or (
            COSMOS_REASON_REVISION if self.name == COSMOS_REASON else 'main'
        )

    def identity(self) -> str:
        """Names the weights in caches: hub id and revision, or a fingerprint of a folder.

        The fingerprint reads both ends of every weight file and all of the small ones, so that
        16 GB need not be read to know them.
        """
        folder = Path(self.name)
        if not folder.is_dir():
            return f'{self.name}@{self.hub_revision}'
        digest = hashlib.sha256()
        for part in dict.fromkeys(_parts(folder)):
            for path in sorted(p for p in part.iterdir() if p.suffix in _SUFFIXES):
                size = path.stat().st_size
                digest.update(f'{path.name} {size} '.encode())
                with open(path, 'rb') as file:
                    if path.suffix != '.safetensors':
                        digest.update(file.read())
                        continue
                    digest.update(file.read(_SAMPLE))
                    file.seek(max(size - _SAMPLE, 0))
                    digest.update(file.read())
        return f'folder:{digest.hexdigest()}'

    def folder(self) -> Path:
        """The folder with the files; raises InputError if a hub id is not there to be had."""
        if Path(self.name).is_dir():
            return Path(self.name)
        from huggingface_hub import snapshot_download

        try:
            found = snapshot_download(
                self.name,
                revision=self.hub_revision,
                local_files_only=not self.download,
                allow_patterns=[f'*{suffix}' for suffix in _SUFFIXES],
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = f' ({_one_line(error)})' if self.download else ''
            remedy = (
                'check the network, the name and that its licence is accepted' if self.download
                else 'allow the download (`tr-vam embed --download`) or give a folder'
            )
            raise InputError(
                f'encoder {self.name}: revision {self.hub_revision} is not to be had'
                f'{reason or " from the local hub cache"}; {remedy}'
            ) from error
        return Path(found)


class ReasonEncoder:
    """The loaded encoder: call it with a prompt."""

    def __init__(self, source: EncoderSource, places: int, embed_dim: int) -> None:
        """Load it; prompts are padded or cut to `places` tokens.

        Raises InputError if the files are missing or incomplete, or if the width of all layers
        is not `embed_dim`; the latter before any weight is read.
        """
        # Imported here: transformers takes seconds, and a run with known instructions needs none.
        from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

        weights, tokenizer = _parts(source.folder())
        _check_config(weights, embed_dim)
        device = source.device
        if device == 'auto':
            device = 'cuda' if torch.cuda.is_available() else 'cpu'
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
            model, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(
                weights,
                dtype=getattr(torch, source.dtype),
                local_files_only=True,
                output_loading_info=True,
            )
            self._model = model.eval().to(device)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f'encoder {weights}: cannot be loaded ({_one_line(error)}); '
                'it needs the files of a Qwen2.5-VL and of its tokenizer, and memory for them'
            ) from error
        if report['missing_keys'] or report['mismatched_keys']:
            # transformers would start them at random and only warn.
            lacking = sorted(map(str, {*report['missing_keys'], *report['mismatched_keys']}))
            raise InputError(
                f'encoder {weights}: {len(lacking)} tensors are missing or of another shape, '
                f'the first is {lacking[0]}; get complete weights'
            )
        if not self._tokenizer.chat_template:
            raise InputError(
                f'encoder {tokenizer}: the tokenizer has no chat template; '
                'add the chat_template.jinja of Qwen2.5-VL'
            )
        self._places = places

    @torch.inference_mode()
    def __call__(self, prompt: str) -> torch.Tensor:
        """(1, n, l * d) in the encoder's dtype: all layers after the embedding, each normalised.

        Padding is not masked, as in diffusers: Qwen's tokenizer pads at the end, where causal
        attention hides it from the words; the video model was trained to see it.
        """
        messages = [
            {'role': role, 'content': [{'type': 'text', 'text': text}]}
            for role, text in (('system', _SYSTEM), ('user', prompt))
        ]
        tokens = self._tokenizer.apply_chat_template(
            messages,
            tokenize=True,
            add_generation_prompt=False,
            max_length=self._places,
            truncation=True,
            padding='max_length',
            return_tensors='pt',
            return_dict=True,
        )['input_ids']
        layers = self._model(
            tokens.to(self._model.device),
            output_hidden_states=True,
            use_cache=False,
            logits_to_keep=1,  # the word scores are of no use
        ).hidden_states[1:]
        return torch.cat([_normalised(layer) for layer in layers], dim=-1)


@contextlib.contextmanager
def loaded_encoder(
    source: EncoderSource, places: int, embed_dim: int
) -> Iterator[ReasonEncoder]:
    """The encoder inside the block; its memory is free after it. Errors as of ReasonEncoder."""
    encoder = ReasonEncoder(source, places, embed_dim)
    try:
        yield encoder
    finally:
        del encoder._model  # the caller's name for the encoder may live on
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _normalised(layer: torch.Tensor) -> torch.Tensor:
    """Zero mean and unit deviation over the features of each token."""
    mean, std = layer.mean(dim=-1, keepdim=True), layer.std(dim=-1, keepdim=True)
    return (layer - mean) / (std + _EPSILON)


def _parts(folder: Path) -> tuple[Path, Path]:
    """The folders of weights and tokenizer: a pipeline keeps them apart, a model together."""
    if (folder / 'text_encoder').is_dir() and (folder / 'tokenizer').is_dir():
        return folder / 'text_encoder', folder / 'tokenizer'
    return folder, folder


def _check_config(folder: Path, embed_dim: int) -> None:
    try:
        config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
        text = {**config, **(config.get('text_config') or {})}
        kind, layers, width = (
            config.get('model_type'), text['num_hidden_layers'], text['hidden_size']
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f'encoder {folder}: its config.json cannot be read ({_one_line(error)}); '
            'give the folder of a Qwen2.5-VL such as Cosmos-Reason1-7B'
        ) from error
    if kind != 'qwen2_5_vl':
        raise InputError(
            f'encoder {folder}: is a {kind}, expected a qwen2_5_vl such as Cosmos-Reason1-7B'
        )
    if layers * width != embed_dim:
        raise InputError(
            f'encoder {folder}: {layers} layers of {width} make {layers * width} features, '
            f'text.embed_dim of the model is {embed_dim}; use the encoder it was trained with'
        )


def _one_line(error: BaseException) -> str:
    return ' '.join(str(error).split())[:300]
