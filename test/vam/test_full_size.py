"""The full-size model on the meta device: its shapes cost nothing there."""

import functools

import pytest
import torch

from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.action_head import ActionHead
from tr_vam_ros.vam.video_backbone import VideoBackbone

# vam_spec.md sections 1 and 5, measured with diffusers and peft.
MODEL_2B = 2_059_174_912
BLOCKS_1_TO_20 = 1_384_130_560
TEXT_PROJECTION = 100_352 * 1024 + 1024
LORA_MODULES = 280
LORA_TARGETS = (
    r'transformer_blocks\.\d+\.(attn[12]\.(to_q|to_k|to_v|to_out\.0)|ff\.net\.(0\.proj|2))'
)


@functools.cache
def backbone():
    with torch.device('meta'):
        return VideoBackbone(VamConfig.from_yaml('cosmos2b_yam'))


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_video_transformer_has_the_parameters_of_cosmos_predict_2b():
    transformer = backbone().transformer
    assert count(transformer) + TEXT_PROJECTION == MODEL_2B
    assert sum(count(block) for block in transformer.transformer_blocks[:20]) == BLOCKS_1_TO_20
    assert count(transformer.transformer_blocks[0]) == pytest.approx(69.2e6, rel=1e-3)


@pytest.mark.parametrize('preset, projection', [
    ('cosmos2b_yam', 8192), ('cosmos2b_yam_literal', 2048), ('cosmos2b_libero', 8192),
])
def test_the_head_has_the_size_of_the_paper(preset, projection):
    config = VamConfig.from_yaml(preset)
    with torch.device('meta'):
        head = ActionHead(config.head, config.transformer.width)
    assert head.video_tokens.projection.in_features == projection
    norms = sum(count(n.modulation) for l in head.layers for n in (l.attention_norm, l.mlp_norm))
    assert count(head.layers) - norms == pytest.approx(311e6, rel=2e-3)
    expected = 441e6 + (projection - 8192) * 1024
    assert count(head) == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize('rank, millions', [(16, 22.9), (32, 45.9), (64, 91.8)])
def test_lora_of_all_products_has_the_count_of_the_spec(rank, millions):
    import copy

    from peft import LoraConfig, get_peft_model

    with torch.device('meta'):
        adapted = get_peft_model(
            copy.deepcopy(backbone().transformer),
            LoraConfig(r=rank, lora_alpha=rank, target_modules=LORA_TARGETS),
        )
    lora = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(lora) == 2 * LORA_MODULES  # A and B
    assert sum(p.numel() for p in adapted.parameters() if p.requires_grad) / 1e6 == pytest.approx(
        millions, abs=0.06
    )


def test_the_padding_mask_of_the_yam_is_the_half_row_below_the_image():
    with torch.device('cpu'):
        config = VamConfig.from_yaml('cosmos2b_yam')
    mask = VideoBackbone._padding_mask(backbone(), config)
    assert mask.shape == (1, 1, 1, 22, 84)
    assert mask[..., 21:, :].all() and not mask[..., :21, :].any()
