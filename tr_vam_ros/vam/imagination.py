"""The video that the model imagines, decoded to pictures.

The policy never does this: it reads features of a half-denoised latent (spec section 1). Here the
same anchored rollout runs to sigma 0 and the VAE decodes it, for people to look at. Section 3b of
the spec says why it is opt-in.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.video_backbone import VideoBackbone


def video_frames(backbone: VideoBackbone, frames: int) -> int:
    """Pictures in `frames` latent frames: the first is one, each other a group of 4 (Wan)."""
    return 1 + (frames - 1) * 2 ** sum(backbone.vae.config.temperal_downsample)


@torch.inference_mode()
def imagine(
    backbone: VideoBackbone,
    image: np.ndarray,
    context: torch.Tensor,
    frames: int,
    noise: torch.Tensor,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> np.ndarray:
    """The imagined video, uint8 (video frames, height, width, 3) at the size the VAE sees.

    Args:
        image: uint8 (height, width, 3), the observation. Frame 0 of the video is the VAE's
            reconstruction of it, not itself.
        context: (1, n, d), projected text.
        frames: latent frames t; the video has 4 (t - 1) + 1.
        noise: (1, c, t or more, h, w); its first frames are used, as in a replan.
        progress: called with the denoising steps done and their number.

    Raises InputError for a number of frames that noise or model do not have.
    """
    limit = min(noise.shape[2], backbone.transformer.config.max_size[0])
    if not 1 <= frames <= limit:
        raise InputError(f'frames {frames}: expected 1 to {limit} latent frames')
    observation = backbone.encode(image)
    steps = backbone.config.steps
    for done, (level, _) in enumerate(
        backbone.denoise(observation, noise[:, :, :frames], context)
    ):
        latent = level
        progress(done, steps)
    # Its path from noise to observation ends there but for rounding.
    latent = torch.cat([observation, latent[:, :, 1:]], dim=2)
    return decode(backbone, latent)


@torch.inference_mode()
def decode(backbone: VideoBackbone, latent: torch.Tensor) -> np.ndarray:
    """Latent (1, c, t, h, w) of about unit scale to uint8 (video frames, height, width, 3).

    What pads the image to whole patches is cut off. The VAE is causal: the pictures of a latent
    frame do not depend on later ones.
    """
    height, width = backbone.encoded_size
    rows, columns = (math.ceil(side / backbone.stride) for side in (height, width))
    latent = latent * backbone.latents_std + backbone.latents_mean
    if backbone.config.pad == 'latent':  # the encoder never saw what is beside the image
        latent = latent[..., :rows, :columns]
    video = backbone.vae.decode(latent.to(backbone.vae.dtype), return_dict=False)[0]
    video = video[0, :, :, :height, :width].permute(1, 2, 3, 0).float()
    return ((video + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
