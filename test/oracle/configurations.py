"""Small random models: every size and option that changes a number."""

from __future__ import annotations

from random import Random

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
    """A model of a few thousand weights.

    Drawn as a whole from one generator: field by field, hypothesis makes half of a dozen
    examples out of another one with few changes.
    """
    return random_configuration(draw(st.randoms(use_true_random=True)))


def random_configuration(random: Random) -> VamConfig:
    vae = VaeConfig(
        base_dim=4, z_dim=random.randint(2, 5), num_res_blocks=1, **random.choice(VAES)
    )
    transformer = random_transformer(random, vae.z_dim)
    video = random_video(random, transformer.num_layers)
    head = random_head(random)
    return VamConfig(
        name='oracle',
        image=random_image(random, vae.spatial_compression if video.pad == 'latent' else 1),
        video=video,
        transformer=transformer,
        vae=vae,
        text=TextConfig(embed_dim=random.randint(4, 9), hash_buckets=50, max_words=8),
        head=head,
        guidance=random_guidance(random),
        statistics=StatisticsConfig(
            proprio=random_normalisation(random, head.proprio_dim),
            action=random_normalisation(random, head.action_dim),
        ),
    )


def random_image(random: Random, stride: int) -> ImageConfig:
    """Odd sides where pixels are padded; with a `stride`, whole latent cells."""
    height, width = random.randint(9, 21), random.randint(9, 25)
    encoded = random.choice([(0, 0), (height // 2 + 1, width // 2), (height + 3, width - 2)])
    return ImageConfig(*(-(-side // stride) * stride for side in (height, width, *encoded)))


def random_video(random: Random, blocks: int) -> VideoConfig:
    steps = random.randint(1, 6)
    frames = random.randint(2, 4)
    return VideoConfig(
        frames=frames,
        plan_frames=frames + random.randint(0, 3),
        steps=steps,
        shift=random.choice([1.0, 3.0, 5.0]),
        extract_index=random.choice([0, steps // 2, steps - 1]),
        feature_block=random.randint(1, blocks),
        anchor_timestep=random.choice([1e-4, 0.02]),
        pad=random.choice(['pixels', 'latent']),
    )


def random_transformer(random: Random, channels: int) -> TransformerConfig:
    return TransformerConfig(
        num_attention_heads=random.randint(1, 2),
        attention_head_dim=random.choice([12, 16]),
        num_layers=random.randint(1, 3),
        text_embed_dim=random.randint(4, 10),
        adaln_lora_dim=random.randint(2, 6),
        patch_size=(1, random.randint(1, 3), random.randint(1, 3)),
        in_channels=channels + 2,
        out_channels=channels,
        mlp_ratio=2.0,
    )


def random_head(random: Random) -> HeadConfig:
    layers = random.randint(1, 3)
    key_value_heads = random.randint(1, 2)
    proprio_dim, action_dim = random.randint(1, 5), random.randint(1, 5)
    return HeadConfig(
        horizon=random.randint(1, 6),
        proprio_dim=proprio_dim,
        action_dim=action_dim,
        layers=layers,
        width=2 * random.randint(6, 10),
        query_heads=key_value_heads * random.randint(1, 3),
        key_value_heads=key_value_heads,
        head_dim=2 * random.randint(2, 4),
        mlp_width=random.randint(9, 20),
        padded_dim=max(proprio_dim, action_dim) + random.randint(0, 3),
        feature_group=random.randint(1, 3),
        tr_layer=random.randint(1, layers),
        euler_steps=random.randint(1, 4),
        action_attention=random.choice(['bidirectional', 'causal']),
        adarms_scope=random.choice(['suffix', 'all']),
        proprio_clip=random.choice([0.5, 5.0]),
    )


def random_guidance(random: Random) -> GuidanceConfig:
    weights = [0.0, 0.1, 0.3, 1.0]
    return GuidanceConfig(
        language_weight=random.choice(weights),
        plan_weight=random.choice(weights),
        cap=random.choice([0.0, 0.01, 2.0, 2.0]),
        null_text=random.choice(NULL_TEXTS),
        branch_noise=random.choice(BRANCH_NOISES),
    )


def random_normalisation(random: Random, dim: int) -> Normalisation:
    return Normalisation(
        mean=tuple(random.choice([-1.0, 0.0, 0.7]) for _ in range(dim)),
        std=tuple(random.choice([0.1, 0.5, 2.0]) for _ in range(dim)),
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
