"""The action head from pi0 and pi0.5: it then computes what their expert computes."""

import dataclasses

import pytest
import torch

from test.assembly.sources import Pi0
from tr_vam_ros.assembly.pi0_head import initialise_from_pi0
from tr_vam_ros.assembly.report import Report
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.action_head import ActionHead
from tr_vam_ros.vam.random_weights import initialise_head, seeded

EXPERT = 'paligemma_with_expert.gemma_expert.model.'


@pytest.fixture(scope='module')
def config():
    return VamConfig.from_yaml('tiny_yam').head


def make_head(config, **changes):
    with seeded(0):
        head = ActionHead(dataclasses.replace(config, **changes), feature_width=24)
        initialise_head(head)
    return head.eval()


@pytest.mark.parametrize('kind, name', [('pi0', 'pi0'), ('pi05', 'pi0.5')])
@pytest.mark.parametrize('prefix', ['', 'model.'])  # openpi, LeRobot
def test_the_head_then_computes_what_the_expert_computes(config, tmp_path, kind, name, prefix):
    expert, head, report = Pi0(config, kind).eval(), make_head(config), Report()
    assert initialise_from_pi0(head, expert.save(tmp_path, prefix), report) == name
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 5, 2, 3, 24, generator=generator)
    actions = torch.randn(2, config.horizon, 32, generator=generator)
    proprio = torch.randn(2, 32, generator=generator)
    sigma, video_sigma = torch.tensor([0.9, 0.3]), torch.tensor([0.8, 0.5])
    with torch.no_grad():
        video = head.video_tokens(features, video_sigma)
        state_in = expert.state_proj if kind == 'pi0' else head.state_in
        expected = expert.velocity(video, state_in(proprio)[:, None], actions, sigma)
        velocity = head(features, video_sigma, proprio, actions, sigma)
    assert expected.std() > 0.1
    torch.testing.assert_close(velocity, expected[..., :14], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        later = head(features, video_sigma, proprio, actions, 0.5 * sigma)
    assert (torch.equal(later, velocity)) is (kind == 'pi0')  # there time modulates nothing yet


def fates(report):
    return (
        {t.source: t.target for t in report.taken},
        {n.source: n.reason for n in report.not_taken},
        {f.target: f.reason for f in report.fresh},
    )


def test_every_tensor_of_source_and_head_is_accounted_for_once(config, tmp_path):
    for kind in ('pi0', 'pi05'):
        expert, head, report = Pi0(config, kind), make_head(config), Report()
        initialise_from_pi0(head, expert.save(tmp_path / kind), report)
        taken, left, fresh = fates(report)
        assert taken.keys() | left.keys() == expert.state_dict().keys()
        assert not taken.keys() & left.keys()
        assert len(set(taken.values())) == len(taken) == len(report.taken)
        assert sorted([*taken.values(), *fresh]) == sorted(
            f'head.{name}' for name, _ in head.named_parameters()
        )


def test_reasons_say_why_a_tensor_was_not_taken(config, tmp_path):
    report = Report()
    initialise_from_pi0(make_head(config), Pi0(config, 'pi0').save(tmp_path), report)
    _, left, fresh = fates(report)
    assert 'PaliGemma' in left['paligemma_with_expert.paligemma.lm_head.weight']
    assert 'words' in left['paligemma_with_expert.gemma_expert.lm_head.weight']
    assert 'modulates' in left['action_time_mlp_in.weight']
    assert 'no video features' in fresh['head.video_tokens.projection.weight']
    assert 'gate 1' in fresh['head.layers.0.attention_norm.modulation.bias']
    lines = report.lines()
    assert len(lines) < 40  # layers share a line
    assert any('layers.*.self_attn.q_proj.weight -> head.layers.*.query.weight (6)' in line
               for line in lines)


def test_what_does_not_fit_stays_random_and_is_listed_with_both_shapes(config, tmp_path):
    changes = {'mlp_width': 256, 'layers': 4, 'tr_layer': 3}
    head, untouched, report = make_head(config, **changes), make_head(config, **changes), Report()
    initialise_from_pi0(head, Pi0(config, 'pi05').save(tmp_path), report)
    taken, left, fresh = fates(report)
    assert left[f'{EXPERT}layers.0.mlp.up_proj.weight'] == (
        'is (512, 128), the head has (256, 128)'
    )
    assert left[f'{EXPERT}layers.5.self_attn.q_proj.weight'] == 'the head has 4 layers'
    assert f'{EXPERT}layers.3.self_attn.q_proj.weight' in taken
    assert 'none that fits' in fresh['head.layers.0.mlp_up.weight']
    assert torch.equal(head.layers[0].mlp_up.weight, untouched.layers[0].mlp_up.weight)
    assert not torch.equal(head.layers[0].query.weight, untouched.layers[0].query.weight)


def test_a_bfloat16_source_gives_a_float32_head(config, tmp_path):
    expert, head = Pi0(config, 'pi05'), make_head(config)
    initialise_from_pi0(head, expert.save(tmp_path, dtype=torch.bfloat16), Report())
    assert {p.dtype for p in head.parameters()} == {torch.float32}
    expected = expert.action_in_proj.weight.bfloat16().float()
    assert torch.equal(head.action_in.weight, expected)


def test_a_source_without_an_expert_or_without_a_fit_is_an_input_error(config, tmp_path):
    from safetensors.torch import save_file

    save_file({'model.layers.0.weight': torch.zeros(2)}, tmp_path / 'model.safetensors')
    with pytest.raises(InputError, match='no action expert of pi0 or pi0.5; expected names'):
        initialise_from_pi0(make_head(config), tmp_path, Report())
    wide = dataclasses.replace(config, width=64)
    with pytest.raises(InputError, match="none of the expert's layers fits.*width 128"):
        initialise_from_pi0(make_head(config), Pi0(wide, 'pi0').save(tmp_path), Report())


def test_a_bias_is_taken_with_its_weight_or_not_at_all(config, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(Pi0(config, 'pi0').save(tmp_path) / 'model.safetensors')
    tensors['action_out_proj.weight'] = torch.zeros(32, 64)
    save_file(tensors, tmp_path / 'model.safetensors')
    report = Report()
    initialise_from_pi0(make_head(config), tmp_path, report)
    _, left, fresh = fates(report)
    assert left['action_out_proj.bias'] == 'its weight was not taken'
    assert {'head.action_out.weight', 'head.action_out.bias'} <= fresh.keys()
