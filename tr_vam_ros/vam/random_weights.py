"""Untrained weights a robot could run: deterministic in the seed, calm, and not blind.

Training starts here, and so do tests, benchmarks and a first run of the ROS graph. Hence the
untrained policy stays beside the mean pose, yet image, instruction and noise show in its actions
and in its Temporal Ratio.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from tr_vam_ros.vam.action_head import ActionHead
from tr_vam_ros.vam.head_layers import AdaptiveRmsNorm
from tr_vam_ros.vam.video_backbone import VideoBackbone

# Start of the head. Measured over seeds 0 to 4 and all schedules: normalised actions deviate by
# 0.28 to 0.40, nearly all of it fixed by weights, text and image; from row to row by 0.08, so that
# thirty rows a second of 0.01 rad a deviation keep the acceleration cap of the arms. Larger
# gates drown the chunk in what it attends to; a smaller output leaves it the noise it began as.
_ATTENTION_GATE = 0.2
_MLP_GATE = 0.1
_MODULATION_STD = 0.1  # how far the timestep moves shift, scale and gate
_ACTION_IN_GAIN = 1.5
_ACTION_OUT_GAIN = 4.0

_CALIBRATION_CELL = 16  # pixels: coarse patches, as in a picture, not white noise


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block; the caller's state comes back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def initialise_backbone(backbone: VideoBackbone, height: int, width: int) -> None:
    """Linear layers of unit gain, and latent statistics that fit the random VAE.

    Wan's statistics belong to Wan's weights; a random encoder's latents have 1/20 of its
    deviation, and would leave the transformer with a nearly constant frame 0.
    """
    for module in backbone.transformer.modules():
        if isinstance(module, nn.Linear):
            _unit_gain(module)
    cells = torch.rand(3, height // _CALIBRATION_CELL + 1, width // _CALIBRATION_CELL + 1)
    image = cells.repeat_interleave(_CALIBRATION_CELL, 1).repeat_interleave(_CALIBRATION_CELL, 2)
    image = (image[:, :height, :width] * 255).permute(1, 2, 0).to(torch.uint8)
    with torch.no_grad():
        latent = backbone.encode_raw(image)
        backbone.latents_mean.copy_(latent.mean(dim=(0, 2, 3, 4), keepdim=True))
        backbone.latents_std.copy_(latent.std(dim=(0, 2, 3, 4), keepdim=True))


def initialise_head(head: ActionHead) -> None:
    """Unit-gain layers, small gates, and an action output tied to the action input.

    Before training the best estimate of a chunk is its mean, a0 = 0; the velocity eps - a0 is
    then along the noisy chunk, which the transpose of the input layer returns.
    """
    config = head.config
    for module in head.modules():
        if isinstance(module, nn.Linear):
            _unit_gain(module)
    for layer in head.layers:
        _start_norm(layer.attention_norm, _ATTENTION_GATE)
        _start_norm(layer.mlp_norm, _MLP_GATE)
    _start_norm(head.final_norm, gate=0.0)  # has no residual, reads no gate
    # Columns of equal length, nearly orthogonal: the transpose is about the inverse.
    nn.init.normal_(head.action_in.weight, std=_ACTION_IN_GAIN * config.width**-0.5)
    with torch.no_grad():
        # The final norm divides by a row's root mean square: for unit actions
        # gain * sqrt(k / width), and the two transposed layers together multiply by gain^2.
        inverse = (config.action_dim / config.width) ** 0.5 / _ACTION_IN_GAIN
        head.action_out.weight.copy_(_ACTION_OUT_GAIN * inverse * head.action_in.weight.T)


def _start_norm(norm: AdaptiveRmsNorm, gate: float) -> None:
    width = norm.weight.numel()
    nn.init.normal_(norm.modulation.weight, std=_MODULATION_STD * width**-0.5)
    with torch.no_grad():
        norm.modulation.bias[2 * width :].fill_(gate)


def _unit_gain(linear: nn.Linear) -> None:
    """Unit variance in, unit variance out: attention logits then deviate by about 1."""
    nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
