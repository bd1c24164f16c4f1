"""`tr-vam imagine`: what the model imagines from one picture and an instruction, as video."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tr_vam_ros.cli.outputs import check_file
from tr_vam_ros.errors import InputError

if TYPE_CHECKING:
    from tr_vam_ros.vam import VamConfig, VideoActionPolicy

SECOND = 1_000_000_000  # in ns, as the video's stamps


@dataclass(kw_only=True)
class Imagine:
    """Denoise the imagined future to the end and decode it: an MP4 and a strip of pictures.

    No other command decodes video. The licence of NVIDIA's Cosmos weights asks for their guardrail
    there: it runs where `cosmos_guardrail` is installed.
    """

    image: tyro.conf.Positional[Path]
    """Picture of the stacked cameras, of the size the model takes (YAM: 672x168)."""
    instruction: tyro.conf.Positional[str]
    """What the robot should do."""
    frames: int = 5
    """Latent frames N: the video has 4 (N - 1) + 1 pictures, the first of them the observation."""
    preset: str = 'tiny_yam'
    """Model preset of config/vam, or the path of a YAML file; its weights are random."""
    checkpoint: Path | None = None
    """Folder of trained weights, instead of a preset."""
    set: tuple[str, ...] = ()
    """Values of a preset's configuration, for example: video.steps=12."""
    seed: int = 0
    """Seed of the random weights and of the noise."""
    key: str = 'imagine'
    """Episode key of the noise. With key and index of a replan: the noise it had."""
    replan: int = 0
    """Replan index of the noise."""
    precision: str = 'float32'
    """Of the video model's products: float32, bfloat16 or auto."""
    resize: bool = False
    """Stretch a picture of another size instead of refusing it."""
    accept_licence_note: bool = False
    """Needed to decode video from Cosmos weights: you have read the note on their licence."""
    out: Path = Path('imagined')
    """Folder for imagined.mp4 and strip.png; made if it is missing."""
    video: Path | None = None
    """MP4 file to write instead of imagined.mp4."""
    strip: Path | None = None
    """PNG file to write instead of strip.png."""
    strip_pictures: int = 6
    """Pictures of the video in the strip, evenly spaced, below the observation."""
    fps: float = 10.0
    """Pictures per second of imagined time (the paper's 10; LIBERO's steps are 20)."""
    json: Path | None = None
    """JSON file to write: what was made, and the time it took."""


def main(arguments: list[str]) -> int:
    options = tyro.cli(Imagine, args=arguments, prog='tr-vam imagine')
    console = Console(highlight=False, soft_wrap=True)
    video_file, strip_file = _files(options)
    # Heavy imports come after the check: a wrong option is answered at once.
    from tr_vam_ros.cli.picture_strip import evenly_spaced, picture_strip, write_picture
    from tr_vam_ros.vam.guardrail import LICENCE_NOTE, Guardrail
    from tr_vam_ros.vam.text_conditioning import check_instruction

    config = _config(options)
    instruction = check_instruction(options.instruction)
    observation = _observation(options, config)
    console.print(LICENCE_NOTE)
    # What a checkpoint's text comes from tells whose weights it has.
    if options.checkpoint and config.text.encoder == 'cosmos_reason1':
        if not options.accept_licence_note:
            raise InputError(
                f'checkpoint {options.checkpoint}: derives from Cosmos weights; '
                'to decode its video, read the note above and give --accept-licence-note'
            )
    guardrail = Guardrail()
    console.print(
        'guardrail: cosmos_guardrail checks instruction and video' if guardrail.is_installed
        else 'guardrail: none is installed (pip install cosmos_guardrail); nothing is checked'
    )
    guardrail.check_text(instruction)
    start = time.perf_counter()
    with _progress(console) as progress:
        video, stages = _imagine(options, config, instruction, observation, progress)
        task = progress.add_task('checking and writing', total=None)
        video = guardrail.check_video(video)
        _make_folder(options)
        _write_video(video_file, video, options.fps)
        shown = evenly_spaced(len(video), options.strip_pictures)
        pictures = [(f't = {i / options.fps:.2f} s, imagined', video[i]) for i in shown]
        write_picture(strip_file, picture_strip([('observation', observation), *pictures]))
        progress.remove_task(task)
    seconds = time.perf_counter() - start
    weights = (
        f'checkpoint {options.checkpoint}' if options.checkpoint
        else f'random, preset {options.preset}, seed {options.seed}'
    )
    if options.json:
        report = {
            'instruction': instruction,
            'image': str(options.image),
            'weights': weights,
            'latent_frames': options.frames,
            'video_frames': len(video),
            'size': [video.shape[2], video.shape[1]],
            'fps': options.fps,
            'noise': {'seed': options.seed, 'key': options.key, 'replan': options.replan},
            'guardrail': guardrail.is_installed,
            'video': str(video_file),
            'strip': str(strip_file),
            'seconds': {**stages, 'total': seconds},
        }
        options.json.write_text(json.dumps(report, indent=1) + '\n')
    console.print(
        f'imagined {options.frames} latent frames, {len(video)} pictures, '
        f'{(len(video) - 1) / options.fps:.1f} s of "{instruction}" in {seconds:.1f} s; '
        f'weights: {weights}; wrote {video_file} and {strip_file}',
        markup=False,
    )
    return 0


def _imagine(
    options: Imagine, config: VamConfig, instruction: str, observation: np.ndarray,
    progress: Progress,
) -> tuple[np.ndarray, dict[str, float]]:
    """The video, and the seconds that loading and imagining took."""
    import torch

    from tr_vam_ros.vam.imagination import imagine, video_frames

    start = time.perf_counter()
    task = progress.add_task('loading the model', total=None)
    policy = _policy(options, config)
    noise = _noise(options, config)
    with torch.inference_mode():
        context = policy.text(instruction)
    loaded = time.perf_counter()
    decoding = f'decoding {video_frames(policy.backbone, options.frames)} pictures'

    def show(done: int, of: int) -> None:
        text = decoding if done == of else 'denoising'
        progress.update(task, description=text, completed=done, total=of)

    video = imagine(
        policy.backbone, observation, context, options.frames, noise.to(context.device), show
    )
    progress.remove_task(task)
    return video, {'load': loaded - start, 'imagine': time.perf_counter() - loaded}


def _policy(options: Imagine, config: VamConfig) -> VideoActionPolicy:
    from tr_vam_ros.vam import VideoActionPolicy

    if options.checkpoint:
        return VideoActionPolicy.from_pretrained(
            options.checkpoint, seed=options.seed, precision=options.precision
        )
    return VideoActionPolicy.from_config(config, options.seed, precision=options.precision)


def _noise(options: Imagine, config: VamConfig):
    """(1, c, frames or more, h, w): up to the plan branch's length, that of a replan."""
    from tr_vam_ros.vam.noise import VIDEO_STREAMS, keyed_noise

    frames = max(options.frames, config.video.plan_frames)
    return keyed_noise(
        (1, config.vae.z_dim, frames, *config.latent_size),
        seed=options.seed,
        key=options.key,
        index=options.replan,
        stream=VIDEO_STREAMS['conditional'],
    )


def _config(options: Imagine) -> VamConfig:
    from tr_vam_ros.vam import VamConfig
    from tr_vam_ros.vam.checkpoint_files import read_config
    from tr_vam_ros.vam.settings import with_settings

    if options.checkpoint and options.set:
        raise InputError('set: changes a preset; a checkpoint has its own configuration')
    config = (
        read_config(options.checkpoint) if options.checkpoint
        else with_settings(VamConfig.from_yaml(options.preset), options.set)
    )
    limit = config.transformer.max_size[0]
    if not 1 <= options.frames <= limit:
        raise InputError(f'frames {options.frames}: must be 1 to {limit} latent frames')
    return config


def _observation(options: Imagine, config: VamConfig) -> np.ndarray:
    """The picture at the size the model takes, uint8 (h, w, 3)."""
    import cv2

    from tr_vam_ros.cli.picture_strip import read_picture

    picture = read_picture(options.image)
    (height, width), wanted = picture.shape[:2], (config.image.width, config.image.height)
    if (width, height) == wanted:
        return picture
    if not options.resize:
        raise InputError(
            f'image {options.image}: is {width}x{height}, {config.name} takes '
            f'{wanted[0]}x{wanted[1]}; stack the cameras to that size, or stretch it with --resize'
        )
    return cv2.resize(picture, wanted, interpolation=cv2.INTER_AREA)


def _files(options: Imagine) -> tuple[Path, Path]:
    """Where video and strip go; raises InputError for what cannot be written or is out of range."""
    check_file('video', options.video, '.mp4')
    check_file('strip', options.strip, '.png')
    check_file('json', options.json)
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f'out {options.out}: is a file; name a folder')
    if not options.out.absolute().parent.is_dir():
        raise InputError(f'out {options.out}: its parent folder does not exist; make it first')
    for name, least, most in (('strip_pictures', 1, 100), ('fps', 0.1, 1000), ('replan', 0, 1e9)):
        value = getattr(options, name)
        if not least <= value <= most:
            raise InputError(f'{name} {value:g}: must be {least:g} to {most:g}')
    return options.video or options.out / 'imagined.mp4', options.strip or options.out / 'strip.png'


def _make_folder(options: Imagine) -> None:
    if options.video and options.strip:
        return
    try:
        options.out.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f'out {options.out}: cannot be made ({error.strerror})') from error


def _write_video(path: Path, video: np.ndarray, fps: float) -> None:
    from tr_vam_ros.cli.video import VideoWriter

    writer = VideoWriter(str(path), enlarge=2)  # even sides, which H.264 needs
    try:
        for number, picture in enumerate(video):
            writer.add(round(number / fps * SECOND), picture)
    finally:
        writer.close()


def _progress(console: Console) -> Progress:
    columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
