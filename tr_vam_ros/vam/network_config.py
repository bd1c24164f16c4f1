"""Sizes of the four networks: transformer, VAE, text embedding and action head."""

from __future__ import annotations

from dataclasses import dataclass

from tr_vam_ros.errors import InputError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def require_positive(section: object, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(value > 0, f'{name} is {value}; it must be greater than 0')


@dataclass(frozen=True)
class TransformerConfig:
    """Arguments of diffusers `CosmosTransformer3DModel`, under its own names.

    `in_channels` is latent + anchor mask + padding mask. `text_embed_dim` is the width of the
    projected text, which this package projects once per episode instead of once per pass.
    """

    num_attention_heads: int
    attention_head_dim: int
    num_layers: int
    text_embed_dim: int
    adaln_lora_dim: int
    patch_size: tuple[int, int, int]
    in_channels: int = 18
    out_channels: int = 16
    mlp_ratio: float = 4.0
    max_size: tuple[int, int, int] = (128, 240, 240)
    rope_scale: tuple[float, float, float] = (1.0, 3.0, 3.0)

    def __post_init__(self) -> None:
        require_positive(
            self, 'num_attention_heads', 'attention_head_dim', 'num_layers', 'text_embed_dim',
            'adaln_lora_dim', 'out_channels', 'mlp_ratio',
        )
        require(
            self.in_channels == self.out_channels + 2,
            f'in_channels is {self.in_channels}; it must be out_channels + 2 '
            '(anchor and padding mask)',
        )
        require(
            min(self.patch_size) > 0 and self.patch_size[0] == 1,
            f'patch_size is {self.patch_size}; it must be positive and 1 in time: '
            'each latent frame has a timestep of its own',
        )

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


@dataclass(frozen=True)
class VaeConfig:
    """Arguments of diffusers `AutoencoderKLWan`, under its own names (defaults: Wan 2.1)."""

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    in_channels: int = 3
    out_channels: int = 3
    patch_size: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, 'base_dim', 'z_dim', 'num_res_blocks')
        require(self.z_dim <= 16, f'z_dim is {self.z_dim}; Wan has statistics of 16 channels')
        require(
            len(self.temperal_downsample) == len(self.dim_mult) - 1,
            f'temperal_downsample has {len(self.temperal_downsample)} entries; '
            f'it needs one less than dim_mult ({len(self.dim_mult)})',
        )
        channels = 3 * (self.patch_size or 1) ** 2
        require(
            self.in_channels == self.out_channels == channels,
            f'in_channels and out_channels are {self.in_channels} and {self.out_channels}; '
            f'RGB folded by patch_size needs {channels}',
        )

    @property
    def spatial_compression(self) -> int:
        return (self.patch_size or 1) * 2 ** len(self.temperal_downsample)


TEXT_ENCODERS = ('words', 'cosmos_reason1')


@dataclass(frozen=True)
class TextConfig:
    """Instructions to cross-attention context (spec section 1 "Text" and "Tiny text path").

    `words` embeds the words itself and needs no hub; `cosmos_reason1` projects what the
    Cosmos-Reason1 encoder says: `embed_dim` is then 28 layers x 3584 = 100352.
    """

    embed_dim: int
    encoder: str = 'words'
    vocabulary: tuple[str, ...] = ()  # of `words`; others fall into a hashed bucket
    hash_buckets: int = 1024
    max_words: int = 512  # context length (App. A.1); `cosmos_reason1`: tokens, padded to it

    def __post_init__(self) -> None:
        require_positive(self, 'embed_dim', 'hash_buckets', 'max_words')
        require(
            self.encoder in TEXT_ENCODERS,
            f"encoder is '{self.encoder}'; use one of {', '.join(TEXT_ENCODERS)}",
        )
        require(
            len(set(self.vocabulary)) == len(self.vocabulary),
            'vocabulary names a word twice; every word may stand once',
        )


@dataclass(frozen=True)
class HeadConfig:
    """The Gemma-style action head (paper App. A.1; defaults are the full-size head)."""

    horizon: int
    proprio_dim: int
    action_dim: int
    layers: int = 18
    width: int = 1024
    query_heads: int = 8
    key_value_heads: int = 1
    head_dim: int = 256
    mlp_width: int = 4096
    padded_dim: int = 32  # proprioception and actions are zero-padded to this
    feature_group: int = 2  # a square of this many video tokens a side becomes one head token
    tr_layer: int = 15  # 1-indexed
    euler_steps: int = 10
    action_attention: str = 'bidirectional'  # or 'causal': Section 2.1's reading
    # Which tokens the action timestep modulates: 'suffix' (state and actions, as pi0.5), or
    # 'all', also the video: then nothing of it can be cached over the Euler steps.
    adarms_scope: str = 'suffix'
    proprio_clip: float = 5.0  # deviations; beyond, a reading only says "far outside the data"

    def __post_init__(self) -> None:
        require_positive(
            self, 'horizon', 'proprio_dim', 'action_dim', 'layers', 'width', 'query_heads',
            'key_value_heads', 'head_dim', 'mlp_width', 'feature_group', 'euler_steps',
            'proprio_clip',
        )
        require(
            self.query_heads % self.key_value_heads == 0,
            f'query_heads ({self.query_heads}) must be a multiple of key_value_heads '
            f'({self.key_value_heads})',
        )
        require(self.head_dim % 2 == 0, f'head_dim is {self.head_dim}; RoPE needs an even number')
        require(self.width % 2 == 0, f'width is {self.width}; sin-cos features need it even')
        require(
            1 <= self.tr_layer <= self.layers,
            f'tr_layer is {self.tr_layer}; it must be 1 to {self.layers}',
        )
        require(
            max(self.proprio_dim, self.action_dim) <= self.padded_dim,
            f'padded_dim is {self.padded_dim}; it must hold proprio_dim ({self.proprio_dim}) '
            f'and action_dim ({self.action_dim})',
        )
        require(
            self.action_attention in ('bidirectional', 'causal'),
            f"action_attention is '{self.action_attention}'; use bidirectional or causal",
        )
        require(
            self.adarms_scope in ('suffix', 'all'),
            f"adarms_scope is '{self.adarms_scope}'; use suffix or all",
        )
