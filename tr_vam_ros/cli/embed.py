"""`tr-vam embed`: instructions into the text cache, so that driving needs no text encoder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tr_vam_ros.cli.outputs import check_file
from tr_vam_ros.errors import InputError

if TYPE_CHECKING:
    from tr_vam_ros.vam.reason_text import ReasonConditioning

# `guidance.null_text: empty_prompt` asks for it; it costs one megabyte.
EMPTY_PROMPT = ''


@dataclass(kw_only=True)
class Embed:
    """Encode instructions with Cosmos-Reason1, project them and keep them on disk.

    The encoder takes 16 GB; it is loaded once, if an instruction is not known yet. The empty prompt
    is always among them.
    """

    checkpoint: Path
    """Folder of the model whose projection is used."""
    instruction: tuple[str, ...] = ()
    """Instructions."""
    instructions: Path | None = None
    """Text file of instructions, one in a line; empty lines do not count."""
    encoder: str = 'nvidia/Cosmos-Reason1-7B'
    """Folder of the encoder (or of a Cosmos2.5 pipeline), or a hub id."""
    revision: str = ''
    """Revision of a hub id; by default the one that Cosmos-Predict2.5 was trained with."""
    download: bool = False
    """Fetch a hub id that is not in the local hub cache."""
    device: str = 'auto'
    """Where the encoder runs: auto, cpu, cuda, cuda:1."""
    dtype: str = 'bfloat16'
    """In which the encoder runs: bfloat16, float16, float32."""
    cache: Path | None = None
    """Folder of the cache; by default ~/.cache/tr_vam_ros/text (or below XDG_CACHE_HOME)."""
    into_checkpoint: bool = False
    """Write them into the checkpoint as well (text_cache.safetensors): they travel with it."""
    json: Path | None = None
    """JSON file to write: what was known and what was encoded."""


def main(arguments: list[str]) -> int:
    options = tyro.cli(Embed, args=arguments, prog='tr-vam embed')
    # Heavy imports come after the options: a wrong one is answered at once.
    from tr_vam_ros.vam.text_cache import FILE_IN_CHECKPOINT

    console = Console(highlight=False, soft_wrap=True)
    start = time.perf_counter()
    check_file('json', options.json)
    prompts = _prompts(options)
    text = _load_text(options)
    known = {prompt: text.knows(prompt) for prompt in prompts}
    new = [prompt for prompt in prompts if not known[prompt]]
    for prompt in prompts:
        console.print(f'{"hit " if known[prompt] else "miss"}  {_shown(prompt)}', markup=False)
    if new:
        text.cache.check_writable()  # now, and not after the encoder's minutes
        with _progress(console) as progress:
            task = progress.add_task(f'encoder {options.encoder}', total=len(new))
            text.embed(new, lambda _prompt: progress.advance(task))
        text.cache.check_writable()
    left_out = total = 0
    path = options.checkpoint / FILE_IN_CHECKPOINT
    if options.into_checkpoint:
        total, left_out = text.cache.save(path, prompts, text.weights())
    seconds = time.perf_counter() - start
    if options.json:
        report = {
            'checkpoint': str(options.checkpoint),
            'cache': str(text.cache.folder),
            'projection': text.weights().projection,
            'encoder': text.weights().encoder,
            'instructions': [{'text': prompt, 'hit': known[prompt]} for prompt in prompts],
            'hits': len(prompts) - len(new),
            'misses': len(new),
            'into_checkpoint': str(path) if options.into_checkpoint else None,
            'left_out': left_out,
            'seconds': seconds,
        }
        options.json.write_text(json.dumps(report, indent=1) + '\n')
    if left_out:
        console.print(
            f'{path}: left out {left_out} that were made with other weights', markup=False
        )
    console.print(
        f'{len(prompts)} instructions: {len(prompts) - len(new)} hits, {len(new)} misses, '
        f'{seconds:.1f} s; cache {text.cache.folder}'
        + (f'; {path} holds {total}' if options.into_checkpoint else ''),
        markup=False,
    )
    return 0


def _prompts(options: Embed) -> list[str]:
    """The instructions as a policy asks for them, each once, and the empty prompt."""
    from tr_vam_ros.vam.text_conditioning import check_instruction

    lines = list(options.instruction)
    if options.instructions is not None:
        try:
            text = options.instructions.read_text(encoding='utf-8')
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f'instructions {options.instructions}: cannot be read ({error}); '
                'give a text file, one instruction in a line'
            ) from error
        lines += [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError('embed: no instruction; give --instruction TEXT or --instructions FILE')
    return list(dict.fromkeys([*map(check_instruction, lines), EMPTY_PROMPT]))


def _load_text(options: Embed) -> ReasonConditioning:
    """The text path of the checkpoint: of its weights the projection alone is read."""
    import torch

    from tr_vam_ros.vam.checkpoint_files import read_config, read_tensors
    from tr_vam_ros.vam.reason_encoder import EncoderSource
    from tr_vam_ros.vam.reason_text import ReasonConditioning
    from tr_vam_ros.vam.text_cache import FILE_IN_CHECKPOINT, TextCache

    source = EncoderSource(
        options.encoder, options.revision, options.download, options.device, options.dtype
    )
    config = read_config(options.checkpoint)
    if config.text.encoder != 'cosmos_reason1':
        raise InputError(
            f'checkpoint {options.checkpoint}: its text.encoder is {config.text.encoder!r}, '
            'which needs no cache; embed is for cosmos_reason1'
        )
    with torch.device('meta'):  # its weights come from the files
        text = ReasonConditioning(
            config.text,
            config.transformer.text_embed_dim,
            cache=TextCache(options.cache),
            encoder=source,
        )
    names = {f'text.{name}': name for name in text.state_dict()}
    tensors = read_tensors(options.checkpoint, names)
    try:
        text.load_state_dict(
            {names[name]: tensor for name, tensor in tensors.items()}, assign=True
        )
    except RuntimeError as error:
        raise InputError(
            f'checkpoint {options.checkpoint}: its projection does not fit its configuration '
            f'({" ".join(str(error).split())}); copy it again'
        ) from error
    path = options.checkpoint / FILE_IN_CHECKPOINT
    if path.exists():
        encoder = TextCache(options.cache).load(path).encoder
        if encoder == text.weights().encoder:
            text.load_cache(path)
        elif options.into_checkpoint:
            raise InputError(
                f'{path}: was made with encoder {encoder}, this one is {text.weights().encoder}; '
                'give the same --encoder, or remove the file to make it anew'
            )
    return text


def _progress(console: Console) -> Progress:
    columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


def _shown(prompt: str) -> str:
    return prompt or '(the empty prompt)'
