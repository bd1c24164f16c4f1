import math

import numpy as np
import pytest
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import temporal_ratio
from tr_vam_ros.vam.temporal_ratio import frame_attention, ratio_of_frames

FRAMES, FRAME_TOKENS, ROWS, HEADS, WIDTH = 5, 6, 7, 4, 8
VIDEO = FRAMES * FRAME_TOKENS
KEYS = VIDEO + 1 + ROWS
CURRENT, FUTURE = slice(0, FRAME_TOKENS), slice(FRAME_TOKENS, VIDEO)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def random_attention():
    return softmax(np.random.default_rng(0).normal(size=(HEADS, ROWS, KEYS)))


@pytest.mark.parametrize('convert', [np.asarray, torch.from_numpy])
def test_it_is_future_mass_over_current_mass_summed_one_by_one(convert):
    attention = random_attention()
    future = current = 0.0
    for head in range(HEADS):
        for row in range(ROWS):
            current += sum(attention[head, row, key] for key in range(FRAME_TOKENS))
            future += sum(attention[head, row, key] for key in range(FRAME_TOKENS, VIDEO))
    assert temporal_ratio(convert(attention), CURRENT, FUTURE) == pytest.approx(future / current)


def test_uniform_attention_gives_the_number_of_future_frames():
    attention = np.full((HEADS, ROWS, KEYS), 1 / KEYS, dtype=np.float32)
    assert temporal_ratio(attention, CURRENT, FUTURE) == pytest.approx(FRAMES - 1)


def test_no_attention_on_the_current_frame_is_infinite_and_none_at_all_is_nan():
    attention = np.zeros((1, 1, KEYS))
    assert math.isnan(temporal_ratio(attention, CURRENT, FUTURE))
    attention[..., -10] = 1.0
    assert temporal_ratio(attention, CURRENT, FUTURE) == math.inf


def test_a_batch_axis_is_an_input_error():
    with pytest.raises(InputError, match='heads, queries, keys'):
        temporal_ratio(random_attention()[None], CURRENT, FUTURE)


@pytest.mark.parametrize('attention', ['bidirectional', 'causal'])
@pytest.mark.parametrize('key_heads', [1, 2])
def test_frame_attention_equals_the_full_softmax(key_heads, attention):
    generator = torch.Generator().manual_seed(0)
    query = 3 * torch.randn(2, HEADS, ROWS, WIDTH, generator=generator)
    key = torch.randn(2, key_heads, KEYS, WIDTH, generator=generator)
    mask = torch.ones(ROWS, KEYS, dtype=torch.bool)
    if attention == 'causal':
        mask = mask.tril(diagonal=VIDEO)
    additive = torch.zeros(ROWS, KEYS).masked_fill(~mask, -math.inf)
    result = frame_attention(
        query, key, FRAMES, FRAME_TOKENS, additive if attention == 'causal' else None
    )
    for batch in range(2):
        mass = np.zeros(FRAMES)
        for head in range(HEADS):
            keys = key[batch, head * key_heads // HEADS].double().numpy()
            logits = query[batch, head].double().numpy() @ keys.T / math.sqrt(WIDTH)
            attention = softmax(np.where(mask.numpy(), logits, -np.inf))
            mass += attention[:, :VIDEO].reshape(ROWS, FRAMES, FRAME_TOKENS).sum(-1).mean(0)
        np.testing.assert_allclose(result[batch].numpy(), mass / HEADS, atol=1e-6)


def test_ratio_of_frames_equals_the_ratio_of_the_attention_itself():
    attention = random_attention()
    masses = attention[..., :VIDEO].reshape(HEADS, ROWS, FRAMES, FRAME_TOKENS).mean((0, 1)).sum(-1)
    assert ratio_of_frames(masses) == pytest.approx(temporal_ratio(attention, CURRENT, FUTURE))
