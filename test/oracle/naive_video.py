"""The video model, pass by pass: one image and a context to features of the imagined future.

The networks are the policy's components; image, anchor, solver and hook are written anew.
Legend: c channel, t latent frame, h w latent rows and columns, d width; batch is always 1.
Source: paper App. A.2, spec section 1.
"""

from __future__ import annotations

import numpy as np
import torch

from test.oracle.unipc import denoise, sigma_grid, solver_sigmas
from tr_vam_ros.vam.config import VamConfig


class NaiveVideo:
    def __init__(self, config: VamConfig, backbone: torch.nn.Module) -> None:
        self.config = config
        self.transformer = backbone.transformer
        self.vae = backbone.vae
        self.mean, self.std = backbone.latents_mean, backbone.latents_std
        self.grid = sigma_grid(config.video.steps, config.video.shift)

    def encode(self, image: np.ndarray) -> torch.Tensor:
        """uint8 (height, width, 3) to the clean latent of frame 0, (1, c, 1, h, w)."""
        pixels = torch.tensor(image).permute(2, 0, 1).double()
        height, width = self.config.image.encoded_size
        pixels = resized(pixels, -2, height)
        pixels = resized(pixels, -1, width)
        pixels = pixels / 127.5 - 1
        stride = self.config.vae.spatial_compression
        latent_height, latent_width = self.config.latent_size
        if self.config.video.pad == 'pixels':
            pixels = zero_padded(pixels, latent_height * stride, latent_width * stride)
        posterior = self.vae.encode(pixels.float()[None, :, None]).latent_dist
        latent = (posterior.mode() - self.mean) / self.std
        return zero_padded(latent, latent_height, latent_width)

    def masks(self, frames: int) -> torch.Tensor:
        """Anchor and padding mask, (1, 2, t, h, w)."""
        height, width = self.config.latent_size
        stride = self.config.vae.spatial_compression
        image_height, image_width = self.config.image.encoded_size
        masks = torch.zeros(1, 2, frames, height, width)
        masks[:, 0, 0] = 1.0
        for row in range(height):
            for column in range(width):
                if row * stride >= image_height or column * stride >= image_width:
                    masks[:, 1, :, row, column] = 1.0
        return masks

    def network(
        self, sample: torch.Tensor, sigma: float, observation: torch.Tensor, context: torch.Tensor
    ) -> torch.Tensor:
        """One full pass on (1, c, t, h, w) with frame 0 clean, without the last anchor."""
        sample = torch.cat([observation, sample[:, :, 1:].float()], 2)
        timesteps = torch.full((1, 1, sample.shape[2], 1, 1), sigma)
        timesteps[:, :, 0] = self.config.video.anchor_timestep
        return self.transformer(
            hidden_states=sample,
            timestep=timesteps,
            encoder_hidden_states=context,
            condition_mask=self.masks(sample.shape[2]),
            return_dict=False,
        )[0]

    def denoised(
        self, observation: torch.Tensor, noise: torch.Tensor, context: torch.Tensor, stop: int
    ) -> torch.Tensor:
        """The sample before the pass at index `stop` of the grid, double (1, c, t, h, w)."""

        def velocity(sample: torch.Tensor, sigma: float) -> torch.Tensor:
            predicted = self.network(sample, sigma, observation, context).double()
            anchored = noise[:, :, :1] - observation  # the analytic velocity of a clean frame
            return torch.cat([anchored.double(), predicted[:, :, 1:]], 2)

        return denoise(velocity, noise.double(), self.grid, stop)

    def features(
        self, observation: torch.Tensor, noise: torch.Tensor, context: torch.Tensor
    ) -> torch.Tensor:
        """Output of block k at the extraction sigma, (t, rows, columns, d)."""
        index = self.config.video.extract_index
        sample = self.denoised(observation, noise, context, index)
        outputs = []
        block = self.transformer.transformer_blocks[self.config.video.feature_block - 1]
        hook = block.register_forward_hook(lambda _block, _inputs, output: outputs.append(output))
        try:
            self.network(sample, solver_sigmas(self.grid)[index], observation, context)
        finally:
            hook.remove()
        return outputs[0][0].unflatten(0, (noise.shape[2], *self.config.feature_grid))


def resized(pixels: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Triangle filter along one axis, as wide as a new pixel where the image shrinks."""
    count = pixels.shape[axis]
    step = count / size
    reach = max(step, 1.0)
    kernel = torch.zeros(size, count).double()
    for new in range(size):
        for old in range(count):
            distance = abs((old + 0.5) - (new + 0.5) * step)
            kernel[new, old] = max(0.0, 1 - distance / reach)
    kernel /= kernel.sum(-1, keepdim=True)
    return torch.tensordot(pixels, kernel, dims=([axis % pixels.ndim], [1])).movedim(-1, axis)


def zero_padded(frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Zeros below and to the right of (..., h, w)."""
    whole = frames.new_zeros(*frames.shape[:-2], height, width)
    whole[..., : frames.shape[-2], : frames.shape[-1]] = frames
    return whole
