import json
import math

import numpy as np
import pytest
import torch

from test.oracle.bench import oracle_head_step, oracle_replan
from tr_vam_ros.bench import switched_off
from tr_vam_ros.bench.head import bench_head
from tr_vam_ros.bench.measure import Timing, count_flops, interleaved, ratio
from tr_vam_ros.bench.picture import draw_head, draw_replan
from tr_vam_ros.bench.replan import CASES, PASSES, bench_replan
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig, VideoActionPolicy


@pytest.fixture(scope='module')
def policy():
    config = VamConfig.from_yaml('tiny_yam').changed(
        {'image': {'height': 64, 'width': 96}, 'video': {'plan_frames': 6},
         'head': {'layers': 2, 'tr_layer': 2, 'euler_steps': 3}}
    )
    return VideoActionPolicy.from_config(config)


def replan(policy, scale):
    policy.reset_episode('put the red block into the bin', 'episode')
    image = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    return policy.replan(image, np.array(policy.config.statistics.proprio.mean, np.float32),
                         scale=scale)


@pytest.mark.parametrize('name, calls', [
    ('early_stop', 'proj_out'), ('single_frame_encoding', 'frames'),
    ('prefix_cache', 'keys'), ('batched_branches', 'batch'),
])
def test_an_optimisation_that_is_switched_off_costs_work_and_changes_no_number(
    policy, monkeypatch, name, calls
):
    """`calls`: what is counted, because it must rise."""
    def work(run):
        counted = []
        transformer, head, vae = policy.backbone.transformer, policy.head, policy.backbone.vae
        handles = [
            transformer.proj_out.register_forward_hook(
                lambda *a: counted.append('proj_out') if calls == 'proj_out' else None
            ),
            transformer.register_forward_pre_hook(
                lambda *a: counted.append('batch') if calls == 'batch' else None
            ),
            vae.encoder.register_forward_pre_hook(
                lambda *a: counted.append('frames') if calls == 'frames' else None
            ),
            head.layers[0].key.register_forward_hook(
                lambda *a: counted.append('keys') if calls == 'keys' else None
            ),
        ]
        try:
            result = run()
        finally:
            for handle in handles:
                handle.remove()
        return result, len(counted)

    expected, least = work(lambda: replan(policy, 1.0))
    with getattr(switched_off, name)(policy):
        slow, more = work(lambda: replan(policy, 1.0))
    assert more > least
    np.testing.assert_allclose(slow.actions, expected.actions, atol=1e-6)
    assert slow.temporal_ratio == pytest.approx(expected.temporal_ratio, rel=1e-5)
    again, count = work(lambda: replan(policy, 1.0))  # all is as it was
    assert count == least and np.array_equal(again.actions, expected.actions)


def test_every_case_is_measured_beside_the_one_it_is_compared_with(policy, tmp_path):
    seen = []
    result = bench_replan(
        policy, preset='small', precision='float32', repetitions=2, progress=seen.append
    )
    assert [case.name for case in result.cases] == [*CASES, PASSES]
    assert seen == [*CASES, PASSES] * 3  # interleaved, the first round thrown away
    by_name = {case.name: case for case in result.cases}
    for name, case in by_name.items():
        assert len(case.milliseconds) == 2 and case.median > 0
        assert (case.ratio is None) == (case.compared_with == '')
        if case.stages:
            total = sum(v for stage, v in case.stages.items() if stage != 'total')
            assert total == pytest.approx(case.stages['total'], rel=0.3)
    # FLOPs are exact: what an optimisation saves shows in them whatever the machine does.
    flops = {name: case.flops for name, case in by_name.items()}
    assert flops['adaptive, s = 0'] == flops['unguided']
    assert flops['guided without batched branches'] == flops['guided']
    assert flops['unguided without laziness'] == flops['guided']
    for slow in ('unguided without early stop', 'unguided without prefix cache'):
        assert flops[slow] > flops['unguided']
    assert flops['guided without prefix cache'] > 1.05 * flops['guided']
    assert flops['guided'] <= 1.15 * flops[PASSES]
    json.dumps(result.to_json())
    draw_replan(result, tmp_path / 'replan.png')
    assert (tmp_path / 'replan.png').read_bytes().startswith(b'\x89PNG')


def test_the_oracle_is_measured_beside_ours(policy):
    result = bench_replan(
        policy, preset='small', precision='float32', repetitions=1, cases=('guided',),
        oracle=oracle_replan,
    )
    ours, oracle = result.cases
    assert oracle.compared_with == 'guided' and oracle.ratio == pytest.approx(
        oracle.median / ours.median
    )
    assert oracle.flops > ours.flops  # no cache: more work, whatever the clock says


def test_an_unknown_case_is_an_input_error_that_lists_the_known_ones(policy):
    with pytest.raises(InputError, match='slow.*unknown.*unguided'):
        bench_replan(policy, preset='small', precision='float32', cases=('slow',))


def test_the_head_is_measured_by_prefix_length(tmp_path):
    result = bench_head(2, presets={160: 'tiny_libero'}, oracle=oracle_head_step)
    data = result.to_json()
    (case,) = result.cases
    assert case.oracle_step > 0
    assert data['speedup_160'] == case.speedup and data['tr_share'] == case.tr_share
    assert data['speedup_branches_160'] == case.speedup_branches
    # A linear layer is counted as 2 x rows x in x out.
    config = VamConfig.from_yaml('tiny_libero').head
    assert case.flops_naive_step > 2 * 160 * config.layers * 3 * config.width * config.mlp_width
    draw_head(result, tmp_path / 'head.png')
    assert (tmp_path / 'head.png').read_bytes().startswith(b'\x89PNG')


def test_a_ratio_is_taken_within_each_round():
    """A machine that slows down tenfold half-way changes neither case against the other."""
    slow, fast = Timing((20.0, 22.0, 200.0)), Timing((10.0, 11.0, 100.0))
    assert ratio(slow, fast) == 2.0
    assert ratio(Timing((10.0, 10.0, 10.0)), Timing((1.0, 10.0, 10.0))) == 1.0


def test_cases_run_in_turn_and_flops_are_those_of_the_products():
    order = []
    interleaved({'a': lambda: order.append('a'), 'b': lambda: order.append('b')}, 2)
    assert order == list('ababab')
    left, right = torch.ones(3, 5), torch.ones(5, 7)
    assert count_flops(lambda: left @ right) == 2 * math.prod((3, 5, 7))
