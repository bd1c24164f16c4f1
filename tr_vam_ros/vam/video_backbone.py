"""The video model: one image and a text to features of a half-imagined future.

Legend: b batch, c latent channel, t latent frame, h w latent rows and columns, n word, d width.
Source: paper App. A.1 and A.2, spec section 1. diffusers' transformer and VAE are used as
components; its pipeline is not (it checks, resizes and encodes what we do not need).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel
from torch import nn
from torch.nn import functional

from tr_vam_ros.vam.config import VamConfig
from tr_vam_ros.vam.flow_schedule import sigma_grid, unipc_scheduler


class _PassStopped(Exception):
    """Leaves a transformer pass after the block whose output was wanted."""


class VideoBackbone(nn.Module):
    """Transformer and VAE of the video model, with the first-frame anchor (App. A.2)."""

    def __init__(self, config: VamConfig) -> None:
        super().__init__()
        self.config = config.video
        self.encoded_size = config.image.encoded_size
        self.latent_size = config.latent_size
        self.feature_grid = config.feature_grid
        self.stride = config.vae.spatial_compression
        self.transformer = CosmosTransformer3DModel(
            **asdict(config.transformer),
            # The padding mask goes in beside the anchor mask: same weights, same output as
            # concat_padding_mask=True, without its need for torchvision.
            concat_padding_mask=False,
            extra_pos_embed_type=None,
            use_crossattn_projection=False,  # TextConditioning projects, once an episode
        )
        sizes = asdict(config.vae)  # diffusers adds to dim_mult: it must be a list
        self.vae = AutoencoderKLWan(**{**sizes, 'dim_mult': list(config.vae.dim_mult)})
        # Wan's statistics of its own latents; buffers, because other weights have others.
        for name in ('latents_mean', 'latents_std'):
            values = torch.tensor(getattr(self.vae.config, name)[: config.vae.z_dim])
            self.register_buffer(name, values.view(1, -1, 1, 1, 1))
        self.register_buffer('padding_mask', self._padding_mask(config), persistent=False)
        # Of the networks' products; latents, solver and features stay float32.
        self.precision = torch.float32

    def _padding_mask(self, config: VamConfig) -> torch.Tensor:
        """(1, 1, 1, h, w), 1 where a latent cell lies wholly outside the image."""
        mask = torch.zeros(1, 1, 1, *self.latent_size)
        height, width = config.image.encoded_size
        mask[..., -(-height // self.stride) :, :] = 1.0
        mask[..., -(-width // self.stride) :] = 1.0
        return mask

    def encode(self, image: np.ndarray) -> torch.Tensor:
        """The clean latent of frame 0, float32 (1, c, 1, h, w), about unit scale.

        image: uint8 (height, width, 3). Only this frame is encoded: a causal VAE's first latent
        does not depend on later frames.
        """
        latent = self.encode_raw(torch.from_numpy(np.ascontiguousarray(image)))
        latent = (latent - self.latents_mean) / self.latents_std
        return _pad_to(latent, self.latent_size)

    def encode_raw(self, image: torch.Tensor) -> torch.Tensor:
        """The VAE's latent of an image before its statistics and before latent padding."""
        pixels = image.to(self.latents_mean.device).permute(2, 0, 1)[None]
        pixels = pixels.to(self.latents_mean.dtype)
        if pixels.shape[-2:] != self.encoded_size:
            pixels = functional.interpolate(
                pixels, self.encoded_size, mode='bilinear', antialias=True
            )
        pixels = pixels[:, :, None] / 127.5 - 1.0
        if self.config.pad == 'pixels':
            height, width = (side * self.stride for side in self.latent_size)
            pixels = _pad_to(pixels, (height, width))  # 0: mid-grey
        with self._products():
            latent = self.vae.encode(pixels).latent_dist.mode()
        return latent.to(pixels.dtype)

    def rollout(
        self, observation: torch.Tensor, noise: torch.Tensor, context: torch.Tensor
    ) -> torch.Tensor:
        """Denoise up to the extraction sigma and read features there (spec "Extraction").

        Args:
            observation: (1, c, 1, h, w), the clean latent of frame 0.
            noise: (b, c, t, h, w), or of batch 1 for all branches.
            context: (b, n, d), projected text of each branch.

        Returns features (b, t, grid rows, grid columns, width), the output of block k.
        """
        levels = self.denoise(observation, noise, context)
        latent, sigma = next(itertools.islice(levels, self.config.extract_index, None))
        return self.features(latent, observation, sigma, context)

    def denoise(
        self, observation: torch.Tensor, noise: torch.Tensor, context: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The latent (b, c, t, h, w) at every noise level of the grid, from 1 to 0, and the level.

        A full pass runs between one and the next, and none ahead of what is asked for.
        Arguments as of `rollout`.
        """
        scheduler = unipc_scheduler(sigma_grid(self.config.steps, self.config.shift))
        latent = noise.expand(len(context), -1, -1, -1, -1)
        analytic = noise[:, :, :1] - observation  # velocity of frame 0's straight path
        for index in range(self.config.steps):
            sigma = scheduler.sigmas[index]
            yield latent, sigma
            velocity = self.velocity(latent, observation, sigma, context)
            # Anchor (iii). Frame 0 never shows it to the transformer, but it is what makes a
            # fully denoised video begin with the observation.
            velocity[:, :, :1] = analytic
            latent = scheduler.step(velocity, scheduler.timesteps[index], latent).prev_sample
        yield latent, scheduler.sigmas[-1]

    def velocity(
        self, latent: torch.Tensor, observation: torch.Tensor, sigma: torch.Tensor,
        context: torch.Tensor,
    ) -> torch.Tensor:
        """One full pass: velocity eps - x0 of every frame, (b, c, t, h, w).

        Anchor (i), (ii) and (iv) of App. A.2 happen here, so no call can miss them.
        sigma: scalar or (b,), the noise level of frames 1..t-1.
        """
        batch, _, frames, _, _ = latent.shape
        is_anchor = (torch.arange(frames, device=latent.device) == 0).view(1, 1, frames, 1, 1)
        mask = is_anchor.to(latent.dtype).expand(batch, -1, -1, *self.latent_size)
        timestep = torch.as_tensor(sigma, dtype=latent.dtype, device=latent.device)
        timestep = torch.where(
            is_anchor, self.config.anchor_timestep, timestep.reshape(-1, 1, 1, 1, 1)
        ).expand(batch, -1, -1, -1, -1)
        with self._products():
            velocity = self.transformer(
                hidden_states=torch.where(is_anchor, observation, latent),
                timestep=timestep,
                encoder_hidden_states=context,
                condition_mask=torch.cat([mask, self.padding_mask.expand_as(mask)], dim=1),
                return_dict=False,
            )[0]
        return velocity.to(latent.dtype)

    def _products(self) -> torch.autocast:
        return torch.autocast(
            self.latents_mean.device.type,
            dtype=torch.bfloat16,
            enabled=self.precision is torch.bfloat16,
        )

    def features(
        self, latent: torch.Tensor, observation: torch.Tensor, sigma: torch.Tensor,
        context: torch.Tensor,
    ) -> torch.Tensor:
        """Output of block k, (b, t, grid rows, grid columns, width); later blocks do not run."""
        block = self.transformer.transformer_blocks[self.config.feature_block - 1]
        captured: list[torch.Tensor] = []

        def capture(_module: nn.Module, _inputs: tuple, output: torch.Tensor) -> None:
            captured.append(output)
            raise _PassStopped

        # Registered for this pass alone: a hook that stayed would write into the original of a
        # deep copy, and would end passes that want the velocity.
        handle = block.register_forward_hook(capture)
        try:
            self.velocity(latent, observation, sigma, context)
        except _PassStopped:
            pass
        finally:
            handle.remove()
        features = captured[0].to(latent.dtype)
        return features.unflatten(1, (latent.shape[2], *self.feature_grid))


def _pad_to(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Zeros below and to the right of (..., h, w) up to `size`."""
    height, width = frames.shape[-2:]
    return functional.pad(frames, (0, size[1] - width, 0, size[0] - height))
