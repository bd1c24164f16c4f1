"""A checkpoint from a diffusers folder, an expert and an adapter, all saved by their own tools."""

import json
import shutil

import huggingface_hub
import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from test.assembly.sources import Pi0, cosmos_transformer, save_backbone, wan_vae
from tr_vam_ros.assembly.assemble import assemble
from tr_vam_ros.assembly.backbone_source import _target
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.checkpoint import load_policy, save_policy
from tr_vam_ros.vam.networks import empty_networks
from tr_vam_ros.vam.text_cache import TextCache

INSTRUCTION = 'put the red block into the bin'


@pytest.fixture(scope='module')
def config():
    return VamConfig.from_yaml('tiny_yam').changed({'video': {'plan_frames': 5}, 'head': {'euler_steps': 3}})


@pytest.fixture(scope='module')
def transformer(config):
    torch.manual_seed(1)
    return cosmos_transformer(config)


@pytest.fixture(scope='module')
def vae(config):
    return wan_vae(config)


@pytest.fixture(scope='module')
def backbone(transformer, vae, tmp_path_factory):
    folder = save_backbone(tmp_path_factory.mktemp('public') / 'cosmos', transformer, vae)
    assert (folder / 'transformer/diffusion_pytorch_model.safetensors.index.json').is_file()
    return folder


@pytest.fixture
def changed(backbone, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(backbone, tmp_path / 'cosmos')


def load(folder):
    return load_policy(folder, precision='float32', guidance='off')


def replan(policy):
    image = np.random.default_rng(0).integers(0, 256, (168, 672, 3)).astype(np.uint8)
    home = np.array(policy.config.statistics.proprio.mean, np.float32)
    policy.reset_episode(INSTRUCTION, 'episode')
    return policy.replan(image, home)


def inputs(channels):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, channels, 2, 12, 8, generator=generator), torch.full((1, 1, 2, 1, 1), 0.7)


def said(transformer, context):
    """An answer to 18 channels: latent, anchor mask, padding mask."""
    latent, timestep = inputs(18)
    with torch.no_grad():
        return transformer(latent, timestep, context, return_dict=False)[0]


def as_public(config, transformer):
    """The public transformer with its weights as they are, fed without torchvision: the padding
    mask as a channel (the same shapes and the same output, spec section 1)."""
    twin = cosmos_transformer(config, in_channels=18, concat_padding_mask=False)
    twin.load_state_dict(transformer.state_dict())
    return twin.eval()


def test_the_assembled_video_model_says_what_the_public_one_says(
    config, transformer, vae, backbone, tmp_path
):
    assemble(config, tmp_path / 'ck', backbone=str(backbone))
    policy = load(tmp_path / 'ck')
    text = torch.randn(1, 5, config.text.embed_dim)
    with torch.no_grad():
        ours = said(policy.backbone.transformer, policy.text.projection(text))
    assert torch.equal(ours, said(as_public(config, transformer), text))
    pixels = torch.randn(1, 3, 1, 32, 32)
    with torch.no_grad():
        latents = [one.encode(pixels).latent_dist.mode() for one in (policy.backbone.vae, vae)]
    assert torch.equal(*latents)
    mean = policy.backbone.latents_mean.flatten()
    torch.testing.assert_close(mean, torch.tensor(vae.config.latents_mean))
    assert policy.backbone.latents_std.flatten()[3] == pytest.approx(1.3)
    assert np.isfinite(replan(policy).actions).all()


def test_the_report_names_every_tensor_of_the_checkpoint_once(config, backbone, tmp_path):
    report = assemble(config, tmp_path / 'ck', backbone=str(backbone))
    stored = load_file(tmp_path / 'ck' / 'model.safetensors')
    targets = [t.target for t in report.taken] + [f.target for f in report.fresh]
    assert sorted(targets) == sorted(stored)
    sources = {t.source: t.target for t in report.taken}
    assert sources['transformer.crossattn_proj.0.weight'] == 'text.projection.0.weight'
    assert report.not_taken == []
    assert {f.target for f in report.fresh if f.target.startswith('text.')} == {
        'text.embedding.weight', 'text.position.weight'
    }
    assert report.parameters == sum(t.numel() for t in stored.values())
    card = huggingface_hub.ModelCard.load(tmp_path / 'ck' / 'README.md').text
    assert 'video model: cosmos' in card and 'action head: random, seed 0' in card


def test_what_is_random_depends_on_the_seed_alone(config, backbone, tmp_path):
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        assemble(config, tmp_path / str(number), backbone=str(backbone), seed=seed)
        weights.append(load_file(tmp_path / str(number) / 'model.safetensors'))
    first, again, other = weights
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first['head.action_in.weight'], other['head.action_in.weight'])
    assert not torch.equal(first['text.embedding.weight'], other['text.embedding.weight'])
    assert torch.equal(
        first['backbone.transformer.proj_out.weight'], other['backbone.transformer.proj_out.weight']
    )


def test_stored_types_stay_unless_another_is_asked_for(config, transformer, vae, tmp_path):
    twin = cosmos_transformer(config)
    twin.load_state_dict(transformer.state_dict())
    source = save_backbone(tmp_path / 'narrow', twin, wan_vae(config), torch.bfloat16)
    for dtype, expected in ((None, torch.bfloat16), ('float32', torch.float32)):
        folder = tmp_path / str(dtype)
        assemble(config, folder, backbone=str(source), dtype=dtype)
        stored = load_file(folder / 'model.safetensors')
        for name in ('backbone.transformer.proj_out.weight', 'text.projection.0.weight',
                     'backbone.vae.quant_conv.weight', 'text.embedding.weight'):  # fmt: skip
            assert stored[name].dtype == expected, name
        for name in ('head.action_in.weight', 'backbone.latents_std'):
            assert stored[name].dtype == torch.float32, name
        assert np.isfinite(replan(load_policy(folder, guidance='flat')).actions).all()


def test_an_expert_becomes_the_head_of_the_checkpoint(config, backbone, tmp_path):
    expert = Pi0(config.head, 'pi05')
    folder = expert.save(tmp_path / 'expert')
    report = assemble(config, tmp_path / 'ck', backbone=str(backbone), head=str(folder))
    policy = load(tmp_path / 'ck')
    assert torch.equal(policy.head.action_in.weight, expert.action_in_proj.weight)
    assert any('pi0.5 action expert of expert' in line for line in report.sources)
    assert any(n.source.endswith('paligemma.lm_head.weight') for n in report.not_taken)
    assert np.isfinite(replan(policy).actions).all()


@pytest.fixture(scope='module')
def adapter(config, transformer, tmp_path_factory):
    """A trained LoRA as diffusers saves it, and the transformer that has it."""
    twin = as_public(config, transformer)
    targets = r'.*(attn[12]\.(to_q|to_k|to_v|to_out\.0)|ff\.net\.(0\.proj|2))'  # spec section 5
    twin.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if 'lora_B' in name:
                parameter.normal_(std=0.1)
    folder = tmp_path_factory.mktemp('lora')
    twin.save_lora_adapter(folder)
    return folder, twin.eval()


@pytest.mark.parametrize('adapters', ['kept', 'merged'])
def test_an_adapter_is_kept_or_merged_and_says_the_same(
    config, backbone, adapter, tmp_path, adapters
):
    folder, adapted = adapter
    report = assemble(
        config, tmp_path / 'ck', backbone=str(backbone), adapter=str(folder), adapters=adapters
    )
    policy = load(tmp_path / 'ck')
    text = torch.randn(1, 5, config.text.embed_dim)
    with torch.no_grad():
        ours = said(policy.backbone.transformer, policy.text.projection(text))
    theirs = said(adapted, text)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert (tmp_path / 'ck' / 'adapter').exists() is (adapters == 'kept')
    assert f'40 modules, {adapters}' in ' '.join(report.sources)


def test_with_the_reason_encoder_the_whole_text_path_is_taken_and_contexts_travel(
    config, transformer, backbone, tmp_path, monkeypatch
):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    reason = config.changed({'text': {'encoder': 'cosmos_reason1'}})
    report = assemble(reason, tmp_path / 'ck', backbone=str(backbone))
    assert not any(f.target.startswith('text.') for f in report.fresh)
    policy = load(tmp_path / 'ck')
    projection = transformer.crossattn_proj[0]
    assert torch.equal(policy.text.projection[0].weight, projection.weight)
    # As `tr-vam embed --into-checkpoint` leaves it; what stands there is used, and goes along.
    contexts = TextCache(tmp_path / 'cache')
    contexts.put(INSTRUCTION, policy.text.weights(), torch.ones(3, 128))
    contexts.save(tmp_path / 'ck' / 'text_cache.safetensors', [INSTRUCTION], policy.text.weights())
    again = load(save_policy(load(tmp_path / 'ck'), tmp_path / 'again'))
    assert torch.equal(again.text(INSTRUCTION), torch.ones(1, 3, 128))


# --- what stops --------------------------------------------------------------------------------


def edit(part, **changes):
    def change(folder):
        file = folder / part / 'config.json'
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return change


def drop(folder):
    for file in sorted((folder / 'transformer').glob('*.safetensors')):
        tensors = load_file(file)
        save_file({n: t for n, t in tensors.items() if not n.startswith('proj_out')}, file)


def lose_shard(folder):
    sorted((folder / 'transformer').glob('*.safetensors'))[0].unlink()


def to_pickle(folder):
    file = folder / 'vae' / 'diffusion_pytorch_model.safetensors'
    file.rename(file.with_suffix('.bin'))


@pytest.mark.parametrize('spoil, message', [
    (edit('transformer', num_layers=28, num_attention_heads=16),
     'num_attention_heads is 16, the preset has 2; transformer num_layers is 28, the preset has 4'),
    (edit('transformer', patch_size=[1, 2, 2]), r'patch_size is \[1, 2, 2\], the preset has'),
    (edit('transformer', concat_padding_mask=False), 'in_channels is 17, the preset has 18'),
    (edit('transformer', extra_pos_embed_type='learnable'), 'extra_pos_embed_type is learnable'),
    (edit('transformer', img_context_dim_in=64), 'img_context_dim_in is 64'),
    (edit('vae', z_dim=8), 'vae z_dim is 8, the preset has 16'),
    (edit('vae', latents_mean=[0.0]), 'vae latents_mean is 1, the preset has 16'),
    (edit('vae', is_residual=True), 'is_residual is True'),
    (edit('transformer', _class_name='WanTransformer3DModel'), 'is a WanTransformer3DModel, exp'),
    (lambda f: (f / 'vae' / 'config.json').unlink(), 'vae/config.json: is missing; name a folder'),
    (lambda f: (f / 'vae' / 'config.json').write_text('[1]'), 'is no configuration of diffusers'),
    (drop, r'1 tensor missing \(backbone.transformer.proj_out.weight'),
    (lose_shard, '1 shard missing'),
    (to_pickle, 'diffusion_pytorch_model.bin: is a pickle'),
])  # fmt: skip
def test_a_backbone_that_does_not_fit_is_an_input_error(
    config, changed, tmp_path, spoil, message
):
    spoil(changed)
    with pytest.raises(InputError, match=message) as error:
        assemble(config, tmp_path / 'ck', backbone=str(changed))
    assert '\n' not in str(error.value)
    assert not (tmp_path / 'ck').exists()


def test_the_2b_preset_refuses_another_model_with_the_whole_list(backbone, tmp_path):
    with pytest.raises(InputError, match='num_layers is 4, the preset has 28') as error:
        assemble(VamConfig.from_yaml('cosmos2b_yam'), tmp_path / 'ck', backbone=str(backbone))
    assert 'crossattn_proj_in_channels is 128, the preset has 100352' in str(error.value)
    assert 'base_dim is 8, the preset has 96' in str(error.value)


def test_the_2b_preset_fits_the_configuration_of_the_2b_model():
    """Shapes and names alone, on the meta device, against diffusers' own class (spec section 1)."""

    preset = VamConfig.from_yaml('cosmos2b_yam')
    with torch.device('meta'):
        public = CosmosTransformer3DModel(
            in_channels=17, out_channels=16, num_attention_heads=16, attention_head_dim=128,
            num_layers=28, mlp_ratio=4.0, text_embed_dim=1024, adaln_lora_dim=256,
            max_size=(128, 240, 240), patch_size=(1, 2, 2), rope_scale=(1.0, 3.0, 3.0),
            concat_padding_mask=True, extra_pos_embed_type=None, use_crossattn_projection=True,
            crossattn_proj_in_channels=100352, encoder_hidden_states_channels=1024,
        )
    ours = empty_networks(preset).shapes()
    theirs = {_target('transformer', n): tuple(t.shape) for n, t in public.state_dict().items()}
    assert {name: ours.get(name) for name in theirs} == theirs
    assert {n for n in ours if n.startswith('backbone.transformer.')} <= theirs.keys()
    assert sum(t.numel() for t in public.state_dict().values()) == 2_059_174_912


@pytest.mark.parametrize('options, message', [
    ({'adapters': 'both'}, 'adapters .both.: unknown; use kept or merged'),
    ({'dtype': 'float16'}, 'dtype float16'),
    ({'head': 'nowhere'}, 'nowhere: no such folder'),
    ({'adapter': 'nowhere'}, 'nowhere: no such folder'),
])
def test_a_wrong_option_is_an_input_error(config, backbone, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        assemble(config, tmp_path / 'ck', backbone=str(backbone), **options)


def test_a_target_that_may_not_be_written_is_said_before_anything_is_read(config, tmp_path):
    (tmp_path / 'notes').mkdir()
    (tmp_path / 'notes' / 'a.txt').touch()
    with pytest.raises(InputError, match='no part of a checkpoint'):
        assemble(config, tmp_path / 'notes', backbone='nowhere/at-all')


def test_the_2b_model_comes_from_its_diffusers_revision(config, backbone, tmp_path, monkeypatch):
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    repository, commit = tmp_path / 'models--nvidia--Cosmos-Predict2.5-2B', 'c0ffee' + 34 * '0'
    shutil.copytree(backbone, repository / 'snapshots' / commit)
    reference = repository / 'refs' / 'diffusers' / 'base' / 'post-trained'
    reference.parent.mkdir(parents=True)
    reference.write_text(commit)
    report = assemble(config, tmp_path / 'ck', backbone='nvidia/Cosmos-Predict2.5-2B')
    assert report.sources[0] == f'video model: nvidia/Cosmos-Predict2.5-2B@{commit}'
    with pytest.raises(InputError, match='Cosmos-Predict2.5-2B@main: .*cache'):
        assemble(config, tmp_path / 'no', backbone='nvidia/Cosmos-Predict2.5-2B@main')
