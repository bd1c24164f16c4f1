"""Who sees whom in the action head, cell by cell."""

import itertools
import math

import pytest
import torch

from test.oracle import naive_head
from test.oracle.compare import TYPICAL
from test.oracle.configurations import make_policy
from test.oracle.naive_head import ACTION, STATE, VIDEO, NaiveHead, additive_mask, sees

TABLES = {  # rows look at columns: two video tokens, the state, three actions
    'bidirectional': (
        'xx....',
        'xx....',
        'xxx...',
        'xxxxxx',
        'xxxxxx',
        'xxxxxx',
    ),
    'causal': (
        'xx....',
        'xx....',
        'xxx...',
        'xxxx..',
        'xxxxx.',
        'xxxxxx',
    ),
}
KINDS = [VIDEO, VIDEO, STATE, ACTION, ACTION, ACTION]
VIDEO_SIGMA, ACTION_SIGMA = 0.8832, torch.tensor(0.7, dtype=torch.float64)
# The smallest effect of one cell, measured, is 0.046 on velocities of up to 5.6.
CELL_SEEN = 1e-2


@pytest.mark.parametrize('name', TABLES)
def test_the_oracle_builds_the_mask_of_the_spec(name):
    assert additive_mask(KINDS, name).tolist() == [
        [0.0 if cell == 'x' else -math.inf for cell in row] for row in TABLES[name]
    ]


@pytest.fixture(params=list(itertools.product(TABLES, ('suffix', 'all'))), ids='-'.join)
def head_and_inputs(request, small_config):
    """A policy's head of one video token a frame, and the oracle's arguments for it."""
    attention, scope = request.param
    config = small_config.changed({
        'video': {'frames': 2},
        'head': {'action_attention': attention, 'adarms_scope': scope, 'horizon': 3},
    })
    head = make_policy(config).head
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 2, 2, config.transformer.width, generator=generator)
    proprio = torch.randn(config.head.proprio_dim, generator=generator)
    chunk = torch.randn(config.head.horizon, config.head.action_dim, generator=generator)
    return head, (features, VIDEO_SIGMA, proprio, chunk, ACTION_SIGMA)


def ours(head, features, video_sigma, proprio, chunk, action_sigma):
    """Velocity (a, k)."""
    return head(
        features[None], torch.tensor([video_sigma], dtype=torch.float64), proprio[None], chunk[None],
        action_sigma[None],
    )[0]


def test_each_cell_of_the_mask_is_as_in_the_oracle(head_and_inputs, monkeypatch):
    head, inputs = head_and_inputs
    oracle = NaiveHead(head.config, head.state_dict())
    with torch.no_grad():
        velocity = ours(head, *inputs)
        assert (velocity - oracle.velocity(*inputs)[0]).abs().max() < TYPICAL
        count = range(len(KINDS))
        for cell in itertools.product(count, count):
            monkeypatch.setattr(
                naive_head, 'sees',
                lambda query, key, *rest: sees(query, key, *rest) != ((query, key) == cell),
            )
            changed, _ = oracle.velocity(*inputs)
            assert (velocity - changed).abs().max() > CELL_SEEN, cell


def test_rows_of_the_velocity_depend_on_what_the_mask_lets_them_see(head_and_inputs):
    head, (features, video_sigma, proprio, chunk, action_sigma) = head_and_inputs
    reads = torch.autograd.functional.jacobian(
        lambda actions: ours(head, features, video_sigma, proprio, actions, action_sigma), chunk
    )
    found = [
        ''.join('x' if reads[row, :, column].abs().max() > 0 else '.' for column in range(3))
        for row in range(3)
    ]
    assert found == [line[3:] for line in TABLES[head.config.action_attention][3:]]
