"""Small random models: every size and option that changes a number."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from test.oracle.naive_model import NaivePolicy
from tr_vam_ros.vam import VamConfig, VideoActionPolicy
from tr_vam_ros.vam.config import (
    BRANCH_NOISES,
    NULL_TEXTS,
    GuidanceConfig,
    ImageConfig,
    Normalisation,
    StatisticsConfig,
    VideoConfig,
)
from tr_vam_ros.vam.network_config import HeadConfig, TextConfig, TransformerConfig, VaeConfig

PERTURBATION = 0.3  # standard deviation: adapters, gates, biases and norms all count
LATENT_STATISTICS = {'latents_mean': (-0.5, 0.5), 'latents_std': (0.2, 0.5)}
INSTRUCTIONS = ('put the cup into the bin', 'Fold the shirt.')

# Three VAEs of one layer a level: a stride of 2, of 4 by folding pixels, of 4 by convolutions.
VAES = (
    {'dim_mult': (1, 2), 'temperal_downsample': (True,)},
    {'dim_mult': (1, 2), 'temperal_downsample': (True,), 'patch_size': 2, 'in_channels': 12,
     'out_channels': 12},
    {'dim_mult': (1, 1, 2), 'temperal_downsample': (False, True)},
)


@st.composite
def configurations(draw: st.DrawFn) -> VamConfig:
    """A model of a few thousand weights."""
    vae = VaeConfig(base_dim=4, z_dim=draw(st.integers(2, 5)), num_res_blocks=1,
                    **draw(st.sampled_from(VAES)))
    transformer = draw(transformers(vae.z_dim))
    video = draw(videos(transformer.num_layers))
    head = draw(heads())
    stride = vae.spatial_compression if video.pad == 'latent' else 1
    text = TextConfig(embed_dim=draw(st.integers(4, 9)), hash_buckets=50, max_words=8)
    return VamConfig(
        name='oracle',
        image=draw(images(stride)),
        video=video,
        transformer=transformer,
        vae=vae,
        text=text,
        head=head,
        guidance=draw(guidances()),
        statistics=StatisticsConfig(
            proprio=draw(normalisations(head.proprio_dim)),
            action=draw(normalisations(head.action_dim)),
        ),
    )


@st.composite
def images(draw: st.DrawFn, stride: int) -> ImageConfig:
    """Odd sides where pixels are padded; with `stride`, whole latent cells."""
    height, width = draw(st.integers(9, 21)), draw(st.integers(9, 25))
    encode_height, encode_width = draw(st.sampled_from([
        (0, 0), (height // 2 + 1, width // 2), (height + 3, width - 2),
    ]))
    whole = [-(-side // stride) * stride for side in (height, width, encode_height, encode_width)]
    return ImageConfig(*whole)


@st.composite
def videos(draw: st.DrawFn, blocks: int) -> VideoConfig:
    steps = draw(st.integers(1, 6))
    frames = draw(st.integers(2, 4))
    return VideoConfig(
        frames=frames,
        plan_frames=frames + draw(st.integers(0, 3)),
        steps=steps,
        shift=draw(st.sampled_from([1.0, 3.0, 5.0])),
        extract_index=draw(st.sampled_from([0, steps - 1, steps // 2])),
        feature_block=draw(st.integers(1, blocks)),
        anchor_timestep=draw(st.sampled_from([1e-4, 0.02])),
        pad=draw(st.sampled_from(['pixels', 'latent'])),
    )


@st.composite
def transformers(draw: st.DrawFn, channels: int) -> TransformerConfig:
    return TransformerConfig(
        num_attention_heads=draw(st.integers(1, 2)),
        attention_head_dim=draw(st.sampled_from([12, 16])),
        num_layers=draw(st.integers(1, 3)),
        text_embed_dim=draw(st.integers(4, 10)),
        adaln_lora_dim=draw(st.integers(2, 6)),
        patch_size=(1, draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        in_channels=channels + 2,
        out_channels=channels,
        mlp_ratio=2.0,
    )


@st.composite
def heads(draw: st.DrawFn) -> HeadConfig:
    layers = draw(st.integers(1, 3))
    key_value_heads = draw(st.integers(1, 2))
    proprio_dim, action_dim = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return HeadConfig(
        horizon=draw(st.integers(1, 6)),
        proprio_dim=proprio_dim,
        action_dim=action_dim,
        layers=layers,
        width=2 * draw(st.integers(6, 10)),
        query_heads=key_value_heads * draw(st.integers(1, 3)),
        key_value_heads=key_value_heads,
        head_dim=2 * draw(st.integers(2, 4)),
        mlp_width=draw(st.integers(9, 20)),
        padded_dim=max(proprio_dim, action_dim) + draw(st.integers(0, 3)),
        feature_group=draw(st.integers(1, 3)),
        tr_layer=draw(st.integers(1, layers)),
        euler_steps=draw(st.integers(1, 4)),
        action_attention=draw(st.sampled_from(['bidirectional', 'causal'])),
        adarms_scope=draw(st.sampled_from(['suffix', 'all'])),
        proprio_clip=draw(st.sampled_from([0.5, 5.0])),
    )


def guidances() -> st.SearchStrategy[GuidanceConfig]:
    weights = st.sampled_from([0.0, 0.1, 0.3, 1.0])
    return st.builds(
        GuidanceConfig,
        language_weight=weights,
        plan_weight=weights,
        cap=st.sampled_from([0.0, 0.01, 2.0]),
        null_text=st.sampled_from(NULL_TEXTS),
        branch_noise=st.sampled_from(BRANCH_NOISES),
    )


@st.composite
def normalisations(draw: st.DrawFn, dim: int) -> Normalisation:
    return Normalisation(
        mean=tuple(draw(st.sampled_from([-1.0, 0.0, 0.7])) for _ in range(dim)),
        std=tuple(draw(st.sampled_from([0.1, 0.5, 2.0])) for _ in range(dim)),
    )


def make_policy(config: VamConfig, **options) -> VideoActionPolicy:
    """A policy whose head has no small gate and no zero bias: every weight counts."""
    policy = VideoActionPolicy.from_config(config, **options)
    generator = torch.Generator().manual_seed(policy.seed)
    with torch.no_grad():
        for parameter in policy.head.parameters():
            change = torch.randn(parameter.shape, generator=generator)
            parameter.add_(PERTURBATION * change.to(parameter))
        # Latents of a random VAE deviate by 0.05: its own statistics would magnify rounding.
        for name, (low, high) in LATENT_STATISTICS.items():
            buffer = getattr(policy.backbone, name)
            buffer.copy_(low + (high - low) * torch.rand(buffer.shape, generator=generator))
    return policy


def oracle_of(policy: VideoActionPolicy, config: VamConfig | None = None) -> NaivePolicy:
    """The naive model of the policy's weights and schedule; `config` where it shall differ."""
    schedule = policy.schedule
    return NaivePolicy(
        config or policy.config, policy.backbone, policy.text, policy.head.state_dict(),
        seed=policy.seed, guidance=schedule.name, replay_scales=schedule.replay_scales,
        on_end=schedule.on_end,
    )


def observations(config: VamConfig, count: int, seed: int = 0) -> list[tuple]:
    """Random (image, proprio): uint8 (height, width, 3) and float32 (p,), some beyond the clip."""
    generator = np.random.default_rng(seed)
    size = config.image.height, config.image.width, 3
    statistics = config.statistics.proprio
    return [
        (
            generator.integers(0, 256, size).astype(np.uint8),
            generator.normal(statistics.mean, 2 * np.array(statistics.std)).astype(np.float32),
        )
        for _ in range(count)
    ]
