"""The cached head against one that has no cache, no fused kernel and an explicit mask."""

import dataclasses
import math

import pytest
import torch

from tr_vam_ros.vam.action_head import ActionHead, Prefix
from tr_vam_ros.vam.config import HeadConfig
from tr_vam_ros.vam.head_layers import HeadLayer
from tr_vam_ros.vam.random_weights import seeded
from tr_vam_ros.vam.video_tokens import NoiseLevelTag, VideoTokens

# b, t, grid rows and columns, feature width; 5 x 3 tokens are 3 x 2 groups.
BATCH, FRAMES, ROWS, COLUMNS, FEATURES = 2, 3, 5, 3, 10
CONFIG = HeadConfig(
    horizon=6, proprio_dim=4, action_dim=3, layers=3, width=32, query_heads=4, key_value_heads=2,
    head_dim=8, mlp_width=48, padded_dim=5, feature_group=2, tr_layer=2, euler_steps=4,
)


def make_head(**changes):
    with seeded(0):
        head = ActionHead(dataclasses.replace(CONFIG, **changes), FEATURES)
        for parameter in head.parameters():  # every weight counts, biases and norms too
            parameter.data.normal_(std=0.3)
    return head.eval()


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(1)
    return {
        'features': torch.randn(BATCH, FRAMES, ROWS, COLUMNS, FEATURES, generator=generator),
        'video_sigma': torch.tensor([0.88, 0.3]),
        'proprio': torch.randn(BATCH, 4, generator=generator),
        'actions': torch.randn(BATCH, 6, 3, generator=generator),
        'action_sigma': torch.tensor([1.0, 0.4]),
    }


def cached(head, inputs):
    suffix = head.suffix(head.prefix(inputs['features'], inputs['video_sigma']), inputs['proprio'])
    modulations = head.modulations(inputs['action_sigma'])
    velocity, attention = head.velocity_and_frame_attention(suffix, inputs['actions'], modulations)
    return velocity, attention[CONFIG.tr_layer]


def norm(module, tokens, condition, first):
    """Adaptive RMSNorm of all tokens at once: plain up to `first`, modulated from there."""
    tokens = tokens / (tokens.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + module.weight)
    modulation = condition @ module.modulation.weight.T + module.modulation.bias
    shift, scale, gate = modulation[:, None].split(tokens.shape[-1], -1)
    is_modulated = (torch.arange(tokens.shape[1]) >= first)[None, :, None]
    changed = torch.where(is_modulated, tokens * (1 + scale) + shift, tokens)
    return changed, torch.where(is_modulated, gate, 1.0)


def rope(heads):
    """Rotation as a product of complex numbers, (b, n, h, e)."""
    half = heads.shape[-1] // 2
    position = torch.arange(heads.shape[1], dtype=torch.float64)
    angle = position[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(heads[..., :half].double(), heads[..., half:].double())
    turned = turned * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([turned.real, turned.imag], -1).float()


def explicit_mask(video, rows, causal):
    total = video + 1 + rows
    mask = torch.zeros(total, total, dtype=torch.bool)
    for query in range(total):
        for key in range(total):
            if query < video:
                mask[query, key] = key < video
            elif query == video:
                mask[query, key] = key <= video
            else:
                mask[query, key] = key <= query if causal else True
    return mask


def naive(head, inputs, causal=False, scope='suffix'):
    """One forward pass of all tokens: velocity, and TR layer's full softmax (b, h, q, n)."""
    config = head.config
    video_tokens = head.video_tokens(inputs['features'], inputs['video_sigma'])
    video = video_tokens.shape[1]
    period = 4e-3 * (4.0 / 4e-3) ** torch.linspace(0, 1, config.width // 2, dtype=torch.float64)
    angle = 2 * math.pi * inputs['action_sigma'].double()[:, None] / period
    condition = head.time_mlp(torch.cat([angle.sin(), angle.cos()], -1).float())
    pad = torch.zeros(BATCH, 6, config.padded_dim)
    state, actions = pad[:, 0].clone(), pad.clone()
    state[:, :4], actions[..., :3] = inputs['proprio'], inputs['actions']
    tokens = torch.cat([video_tokens, head.state_in(state)[:, None], head.action_in(actions)], 1)
    mask = explicit_mask(video, 6, causal)
    first = video if scope == 'suffix' else 0
    for number, layer in enumerate(head.layers, start=1):
        x, gate = norm(layer.attention_norm, tokens, condition, first)
        query = rope(layer.query(x).unflatten(-1, (4, 8)))
        key = rope(layer.key(x).unflatten(-1, (2, 8)))
        value = layer.value(x).unflatten(-1, (2, 8))
        outputs, weights = [], []
        for head_number in range(4):
            shared = head_number // 2
            logits = query[:, :, head_number] @ key[:, :, shared].mT / math.sqrt(8)
            logits[:, ~mask] = -math.inf
            exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
            attention = exponentials / exponentials.sum(-1, keepdim=True)
            weights.append(attention)
            outputs.append(attention @ value[:, :, shared])
        if number == config.tr_layer:
            tr_attention = torch.stack(weights, 1)
        tokens = tokens + gate * layer.output(torch.cat(outputs, -1))
        x, gate = norm(layer.mlp_norm, tokens, condition, first)
        hidden = layer.mlp_gate(x)
        cubic = hidden + 0.044715 * hidden**3
        hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))
        tokens = tokens + gate * layer.mlp_down(hidden * layer.mlp_up(x))
    x, _ = norm(head.final_norm, tokens, condition, first)
    return head.action_out(x)[:, video + 1 :, :3], tr_attention


@torch.no_grad()
@pytest.mark.parametrize('scope', ['suffix', 'all'])
@pytest.mark.parametrize('attention', ['bidirectional', 'causal'])
def test_cached_prefix_equals_one_pass_of_all_tokens(inputs, attention, scope):
    head = make_head(action_attention=attention, adarms_scope=scope)
    velocity, frame_attention = cached(head, inputs)
    expected, weights = naive(head, inputs, attention == 'causal', scope)
    torch.testing.assert_close(velocity, expected, atol=1e-5, rtol=1e-4)
    video = weights.shape[-1] - 7
    masses = weights[:, :, video + 1 :, :video].unflatten(-1, (FRAMES, 6)).sum(-1).mean((1, 2))
    torch.testing.assert_close(frame_attention.float(), masses, atol=1e-6, rtol=0)


@torch.no_grad()
def test_forward_is_prefix_then_velocity(inputs):
    head = make_head()
    assert torch.equal(head(**inputs), cached(head, inputs)[0])


@torch.no_grad()
def test_branches_in_one_batch_equal_branches_alone(inputs):
    head = make_head()
    parts = [{name: value[i : i + 1] for name, value in inputs.items()} for i in range(BATCH)]
    prefixes = [head.prefix(part['features'], part['video_sigma']) for part in parts]
    together = head.velocity(
        head.suffix(Prefix.batch(prefixes), inputs['proprio']), inputs['actions'],
        head.modulations(inputs['action_sigma']),
    )
    alone = torch.cat([cached(head, part)[0] for part in parts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def suffix_tokens(head, inputs, monkeypatch):
    """Hidden state of the state token and the action rows after the last layer, (b, 1 + a, d)."""
    outputs = []
    attend = HeadLayer.attend
    with monkeypatch.context() as patch:
        patch.setattr(
            HeadLayer, 'attend', lambda *args, **kw: outputs.append(attend(*args, **kw))
            or outputs[-1]
        )
        cached(head, inputs)
    return outputs[-1]


@torch.no_grad()
@pytest.mark.parametrize('attention', ['bidirectional', 'causal'])
def test_each_action_row_reaches_the_rows_it_may_and_no_other(inputs, attention, monkeypatch):
    head = make_head(action_attention=attention)
    before = suffix_tokens(head, inputs, monkeypatch)
    for row in range(6):
        actions = inputs['actions'].clone()
        actions[:, row] += 1.0
        after = suffix_tokens(head, inputs | {'actions': actions}, monkeypatch)
        changed = (before != after).any(-1).any(0).tolist()
        first = row if attention == 'causal' else 0
        assert changed == [False] + [other >= first for other in range(6)]


@torch.no_grad()
def test_the_state_reaches_itself_and_every_action_row(inputs, monkeypatch):
    head = make_head()
    before = suffix_tokens(head, inputs, monkeypatch)
    after = suffix_tokens(head, inputs | {'proprio': inputs['proprio'] + 1}, monkeypatch)
    assert (before != after).any(-1).all()


@torch.no_grad()
def test_every_video_token_reaches_every_other_token(inputs, monkeypatch):
    head = make_head()
    before = suffix_tokens(head, inputs, monkeypatch)
    keys = head.prefix(inputs['features'], inputs['video_sigma']).keys
    for frame in range(FRAMES):
        for row in range(ROWS):
            features = inputs['features'].clone()
            features[:, frame, row, 1] += 1.0
            changed = inputs | {'features': features}
            assert (before != suffix_tokens(head, changed, monkeypatch)).any(-1).all()
            changed_keys = head.prefix(features, inputs['video_sigma']).keys
            first_layer = (keys[0] != changed_keys[0]).any(-1).any(1)
            assert first_layer.sum(-1).tolist() == [1, 1]  # one group, before any attention
            assert (keys[1] != changed_keys[1]).any(-1).any(1).all()


@torch.no_grad()
def test_the_prefix_does_not_depend_on_the_action_timestep(inputs):
    head = make_head()
    later = inputs | {'action_sigma': inputs['action_sigma'] * 0.5}
    assert not torch.equal(cached(head, inputs)[0], cached(head, later)[0])
    # One object serves both: nothing of a step may have been written into it.
    suffix = head.suffix(head.prefix(inputs['features'], inputs['video_sigma']), inputs['proprio'])
    modulations = [head.modulations(i['action_sigma']) for i in (inputs, later)]
    first = head.velocity(suffix, inputs['actions'], modulations[0])
    head.velocity(suffix, inputs['actions'], modulations[1])
    assert torch.equal(first, head.velocity(suffix, inputs['actions'], modulations[0]))


@torch.no_grad()
def test_modulations_of_one_step_are_those_of_all_steps_at_once(inputs):
    head = make_head()
    together = head.modulations(torch.tensor([1.0, 0.7, 0.4]))
    alone = head.modulations(torch.tensor([0.7]))
    torch.testing.assert_close(together.step(1).final, alone.final)
    for step, expected in zip(together.step(1).layers, alone.layers):
        torch.testing.assert_close(step, expected)


@torch.no_grad()
def test_attention_of_further_layers_is_that_of_a_head_that_reads_tr_there(inputs):
    suffix_of = lambda head: head.suffix(  # noqa: E731
        head.prefix(inputs['features'], inputs['video_sigma']), inputs['proprio']
    )
    head = make_head()
    arguments = inputs['actions'], head.modulations(inputs['action_sigma'])
    _, attention = head.velocity_and_frame_attention(suffix_of(head), *arguments, layers=(1, 3))
    assert sorted(attention) == [1, 2, 3]
    for layer in (1, 3):
        other = make_head(tr_layer=layer)
        _, expected = other.velocity_and_frame_attention(suffix_of(other), *arguments)
        assert torch.equal(attention[layer], expected[layer])
        assert not torch.allclose(attention[layer], attention[2])


def test_the_action_loss_reaches_features_and_every_weight(inputs):
    head = make_head()
    inputs['features'].requires_grad_()
    head(**inputs).square().sum().backward()
    assert inputs['features'].grad.abs().sum() > 0
    assert not [name for name, p in head.named_parameters() if p.grad is None]


@torch.no_grad()
@pytest.mark.parametrize('group, expected', [(1, 15), (2, 6), (3, 2)])
def test_groups_are_neighbourhoods_padded_with_zeros(group, expected):
    with seeded(0):
        tokens = VideoTokens(FEATURES, 32, group)
    features = torch.randn(1, FRAMES, ROWS, COLUMNS, FEATURES)
    padded = torch.zeros(FRAMES, 6, 6, FEATURES)
    padded[:, :ROWS, :COLUMNS] = features[0]
    rows, columns = -(-ROWS // group), -(-COLUMNS // group)
    groups = torch.stack([
        padded[t, r * group : (r + 1) * group, c * group : (c + 1) * group].flatten()
        for t in range(FRAMES) for r in range(rows) for c in range(columns)
    ])
    sigma = torch.tensor([0.5])
    result = tokens(features, sigma)
    torch.testing.assert_close(result, tokens.tag(tokens.projection(groups)[None], sigma))
    assert tokens.frame_tokens((ROWS, COLUMNS)) == expected == result.shape[1] // FRAMES


@torch.no_grad()
def test_noise_level_tag_is_a_layer_norm_shifted_and_scaled_by_sigma():
    with seeded(0):
        tag = NoiseLevelTag(8)
    tokens, sigma = torch.randn(2, 3, 8), torch.tensor([0.2, 0.9])
    for batch in range(2):
        angles = sigma[batch] * math.pi * torch.tensor([1.0, 2, 4, 8, 16, 32, 64])
        shift, scale = tag.mlp(torch.cat([angles.sin(), angles.cos()])).split(8)
        x = tokens[batch]
        deviation = (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        expected = (x - x.mean(-1, keepdim=True)) / deviation * (1 + scale) + shift
        torch.testing.assert_close(tag(tokens, sigma)[batch], expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(tag(tokens[:1], sigma[:1]), tag(tokens[:1], sigma[1:]))
