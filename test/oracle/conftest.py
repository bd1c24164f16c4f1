import pytest

from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.config import (
    GuidanceConfig,
    ImageConfig,
    Normalisation,
    StatisticsConfig,
    VideoConfig,
)
from tr_vam_ros.vam.network_config import HeadConfig, TextConfig, TransformerConfig, VaeConfig


@pytest.fixture(scope='session')
def small_config():
    """Every part takes part: padding, grouping with zeros, shared keys, a solver with a past.

    An image of 13x26 is a latent of 4x7, padded to 4x9: 4x3 transformer tokens a frame, 2x2 after
    grouping.
    """
    return VamConfig(
        name='small',
        image=ImageConfig(height=13, width=26),
        video=VideoConfig(frames=3, plan_frames=5, feature_block=2, extract_index=3),
        transformer=TransformerConfig(
            num_attention_heads=2, attention_head_dim=12, num_layers=3, text_embed_dim=8,
            adaln_lora_dim=4, patch_size=(1, 1, 3), in_channels=6, out_channels=4, mlp_ratio=2.0,
        ),
        vae=VaeConfig(
            base_dim=4, z_dim=4, dim_mult=(1, 2), num_res_blocks=1, temperal_downsample=(True,),
            patch_size=2, in_channels=12, out_channels=12,
        ),
        text=TextConfig(embed_dim=6, hash_buckets=50, max_words=8),
        head=HeadConfig(
            horizon=5, proprio_dim=3, action_dim=4, layers=3, width=16, query_heads=4,
            key_value_heads=2, head_dim=6, mlp_width=20, padded_dim=5, feature_group=2,
            tr_layer=2, euler_steps=4, proprio_clip=1.5,
        ),
        guidance=GuidanceConfig(language_weight=0.5, plan_weight=0.8),
        statistics=StatisticsConfig(
            proprio=Normalisation((0.0, 1.0, -1.0), (0.5, 1.0, 0.1)),
            action=Normalisation((0.0, 0.5, -1.0, 2.0), (1.0, 0.5, 0.1, 2.0)),
        ),
    )
