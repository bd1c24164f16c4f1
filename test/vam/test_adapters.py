"""LoRA adapters of the video transformer, made by peft and diffusers themselves."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VideoActionPolicy
from tr_vam_ros.vam.adapters import attach_adapter, merge_adapter
from tr_vam_ros.vam.checkpoint import load_policy, save_policy

# Every projection of every block (spec section 5).
TARGETS = (
    r'transformer_blocks\.\d+\.(attn[12]\.(to_q|to_k|to_v|to_out\.0)|ff\.net\.(0\.proj|2))'
)
LORA = LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS)
FILE = 'pytorch_lora_weights.safetensors'


@pytest.fixture(scope='session')
def config(config):
    return config.changed({'video': {'plan_frames': 5}, 'head': {'euler_steps': 3}})


def make_policy(config):
    return VideoActionPolicy.from_config(config, seed=3, guidance='off')


def train(transformer, seed=0):
    """What training would do: B, which begins at zero, gets values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if 'lora_B' in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture(scope='module')
def adapted(config):
    """A policy with a trained adapter."""
    policy = make_policy(config)
    policy.backbone.transformer.add_adapter(LORA)
    train(policy.backbone.transformer)
    return policy


@pytest.fixture(scope='module')
def saved(adapted, tmp_path_factory):
    return save_policy(adapted, tmp_path_factory.mktemp('adapted') / 'ck')


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / 'ck')


def load(folder):
    return load_policy(folder, precision='float32', seed=3, guidance='off')


def actions(policy, images, home):
    policy.reset_episode('put the red block into the bin', 'episode')
    return torch.from_numpy((policy.replan(images[0], home).actions - home) / 0.01)


def said(transformer):
    """What a transformer makes of a fixed input."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return transformer(
            hidden_states=torch.randn(1, 18, 2, 12, 8, generator=generator),
            timestep=torch.full((1, 1, 2, 1, 1), 0.5),
            encoder_hidden_states=torch.randn(1, 3, 128, generator=generator),
            return_dict=False,
        )[0]


def test_an_adapter_comes_back_apart_from_the_weights(config, adapted, saved, images, home):
    reloaded = load(saved)
    assert torch.equal(actions(reloaded, images, home), actions(adapted, images, home))
    plain = make_policy(config)
    names = load_file(saved / 'model.safetensors').keys()
    assert names == {f'backbone.{n}' for n in plain.backbone.state_dict()} | {
        f'{part}.{n}' for part in ('text', 'head') for n in getattr(plain, part).state_dict()
    }
    shutil.rmtree(saved.parent / 'bare', ignore_errors=True)
    bare = shutil.copytree(saved, saved.parent / 'bare')
    shutil.rmtree(bare / 'adapter')
    without = actions(load(bare), images, home)
    assert torch.equal(without, actions(plain, images, home))
    assert (without - actions(adapted, images, home)).abs().max() > 0.01
    again = save_policy(reloaded, saved.parent / 'again')
    assert load_file(again / 'adapter' / FILE).keys() == load_file(saved / 'adapter' / FILE).keys()


def test_alpha_comes_from_the_file_and_counts(saved):
    layer = load(saved).backbone.transformer.transformer_blocks[0].attn1.to_q
    assert layer.scaling == {'default_0': 2.0}


def test_merged_and_kept_answer_alike(adapted, saved, images, home, tmp_path):
    merged = load(saved)
    merge_adapter(merged.backbone.transformer)
    reloaded = load(save_policy(merged, tmp_path / 'merged'))
    assert not (tmp_path / 'merged' / 'adapter').exists()
    ours, theirs = (said(one.backbone.transformer) for one in (reloaded, adapted))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    # In deviations, read off float32 radians: their last digit alone is 1e-5.
    kept = actions(adapted, images, home)
    torch.testing.assert_close(actions(reloaded, images, home), kept, rtol=0, atol=1e-4)
    names = [name for name, _ in reloaded.backbone.named_modules()]
    assert not any('lora' in name or 'base_layer' in name for name in names)


def test_peft_s_own_folder_attaches_as_diffusers_file_does(config, saved, tmp_path):
    """The oracle is peft: a model it wraps, saved by its own save_pretrained."""
    wrapped = make_policy(config).backbone.transformer
    model = get_peft_model(wrapped, LORA)
    train(model)
    model.save_pretrained(tmp_path)
    assert (tmp_path / 'adapter_model.safetensors').is_file()
    ours = make_policy(config).backbone.transformer
    assert attach_adapter(ours, tmp_path) == 4 * 10
    assert torch.equal(said(ours), said(model.eval()))


def test_a_pipeline_s_prefix_is_understood(config, saved, tmp_path):
    tensors = load_file(saved / 'adapter' / FILE)
    save_file({f'transformer.{name}': tensor for name, tensor in tensors.items()}, tmp_path / FILE)
    assert attach_adapter(make_policy(config).backbone.transformer, tmp_path) == 40


def test_an_adapter_that_changes_nothing_is_an_input_error(config, tmp_path):
    policy = make_policy(config)
    policy.backbone.transformer.add_adapter(LORA)  # untrained: B is zero
    with pytest.raises(InputError, match='changes nothing'):
        load(save_policy(policy, tmp_path / 'ck'))


def rewrite(folder, change):
    file = folder / 'adapter' / FILE
    save_file({name: t.contiguous() for name, t in change(load_file(file)).items()}, file)


def first_block_only_of(name, tensors):
    return {key.replace('blocks.0.attn1.to_q', name): value for key, value in tensors.items()}


@pytest.mark.parametrize('change, message', [
    (lambda t: first_block_only_of('blocks.9.attn1.to_q', t), '2 tensors unexpected.*blocks.9'),
    (lambda t: {k: v[:, :9] if 'lora_A' in k else v for k, v in t.items()},
     r'40 tensors of another shape.*is \(4, 9\), expected \(4, 128\).* and 30 more'),
    (lambda t: {k: v for k, v in t.items() if 'blocks.1.attn1.to_q.lora_B' not in k},
     '1 tensor missing.*blocks.1.attn1.to_q.lora_B'),
    (lambda t: {**t, 'blocks.alpha': torch.zeros(1)}, '1 tensor no LoRA.*blocks.alpha'),
    (lambda t: {}, 'no LoRA'),
])  # fmt: skip
def test_an_adapter_for_another_model_is_an_input_error(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_a_configuration_that_cannot_be_used_is_an_input_error(config, folder):
    (folder / 'adapter' / FILE).rename(folder / 'adapter' / 'adapter_model.safetensors')
    (folder / 'adapter' / 'adapter_config.json').write_text('{"peft_type": "LORA", "r": "four"')
    with pytest.raises(InputError, match='configuration cannot be used'):
        load(folder)


def test_an_adapter_in_a_pickle_is_refused_by_name(folder):
    (folder / 'adapter' / FILE).rename(folder / 'adapter' / 'adapter_model.bin')
    with pytest.raises(InputError, match='adapter_model.bin: is a pickle'):
        load(folder)


def test_a_folder_without_an_adapter_says_what_was_expected(config, tmp_path):
    with pytest.raises(InputError, match=f'holds no adapter; expected {FILE}'):
        attach_adapter(make_policy(config).backbone.transformer, tmp_path)


@pytest.mark.filterwarnings('ignore::UserWarning')  # peft's, of what is tried here
def test_a_checkpoint_carries_one_adapter_and_no_half_merged_one(config, tmp_path):
    policy = make_policy(config)
    transformer = policy.backbone.transformer
    transformer.add_adapter(LORA)
    transformer.add_adapter(LORA, 'second')
    with pytest.raises(InputError, match='2 are attached .default, second.'):
        save_policy(policy, tmp_path / 'ck')
    transformer.delete_adapters('second')
    transformer.set_adapter('default')
    transformer.fuse_lora()
    with pytest.raises(InputError, match='added to the weights but still there'):
        save_policy(policy, tmp_path / 'ck')
    assert not (tmp_path / 'ck').exists()


def test_the_adapter_s_configuration_stands_in_its_file(saved):
    from safetensors import safe_open

    with safe_open(saved / 'adapter' / FILE, 'pt') as file:
        config = json.loads(file.metadata()['lora_adapter_metadata'])
    assert (config['r'], config['lora_alpha']) == (4, 8)
