import dataclasses
import math

import numpy as np
import pytest
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig, VideoActionPolicy
from tr_vam_ros.vam.config import GuidanceConfig
from tr_vam_ros.vam.noise import keyed_noise


def same_numbers(first, second):
    return (
        np.array_equal(first.actions, second.actions)
        and np.array_equal(first.frame_attention, second.frame_attention)
        and first.temporal_ratio == second.temporal_ratio
    )


def commit_with_ratio(policy, replan, ratio):
    """Begin the episode as if its first replan had this Temporal Ratio."""
    policy.commit(dataclasses.replace(replan, temporal_ratio=ratio))


def eager_algorithm_3(policy, image, proprio, index, *, weights, key='episode'):
    """Every branch, alone, with the whole head in every Euler step (paper Algorithm 3)."""
    config = policy.config
    mean, std = (np.array(v) for v in (config.statistics.proprio.mean,
                                       config.statistics.proprio.std))
    state = torch.tensor((proprio - mean) / std, dtype=torch.float32)[None]
    names = {'seed': policy.seed, 'key': key, 'index': index}
    noise = keyed_noise((1, 16, 24, 24, 84), **names, stream='video')
    chunk = keyed_noise((1, 50, 14), **names, stream='action')
    u = 1 - 2 / 5 * (1 - 0.005 / 1.004)  # spec section 1, index 2 of the grid
    video_sigma = torch.tensor([5 * u / (1 + 4 * u)])
    with torch.inference_mode():
        observation = policy.backbone.encode(image)
        context, null = policy._context, policy.text.null()
        features = {
            'cond': policy.backbone.rollout(observation, noise[:, :, :5], context),
            'null': policy.backbone.rollout(observation, noise[:, :, :5], null),
            'plan': policy.backbone.rollout(observation, noise, context)[:, :5],
        }
        for step in range(10):
            sigma = torch.tensor([1 - step / 10])
            v = {
                name: policy.head(feature, video_sigma, state, chunk, sigma)
                for name, feature in features.items()
            }
            language, plan = weights
            guided = v['cond'] + language * (v['cond'] - v['null'])
            guided = guided + plan * (v['plan'] - v['cond'])
            chunk = chunk - guided / 10
    return (np.array(config.statistics.action.mean)
            + np.array(config.statistics.action.std) * chunk[0].numpy())


def normalised_difference(first, second):
    return np.abs(first - second).max() / 0.01  # statistics.action.std


def test_a_replan_has_the_shapes_and_types_of_the_contract(make_policy, images, home):
    policy = make_policy()
    replan = policy.replan(images[0], home)
    assert policy.image_size == (168, 672)
    assert replan.actions.dtype == np.float32 and replan.actions.shape == (50, 14)
    assert replan.frame_attention.dtype == np.float64 and replan.frame_attention.shape == (5,)
    assert 0 < replan.frame_attention.sum() < 1
    expected = replan.frame_attention[1:].sum() / replan.frame_attention[0]
    assert replan.temporal_ratio == pytest.approx(expected) and type(replan.temporal_ratio) is float
    assert replan.warning == ''
    stages = dict(replan.milliseconds)
    assert stages.pop('total') == pytest.approx(sum(stages.values()))
    assert set(stages) == {'encode', 'conditional', 'head'}


@pytest.mark.parametrize('guidance, weights', [
    ('off', (0.0, 0.0)),
    ('flat', (0.1, 0.3)),
])
def test_lazy_and_cached_equals_eager_algorithm_3(make_policy, images, home, guidance, weights):
    policy = make_policy(guidance)
    proprio = home + np.float32(0.004)
    replan = policy.replan(images[0], proprio, index=3)
    eager = eager_algorithm_3(policy, images[0], proprio, 3, weights=weights)
    assert normalised_difference(replan.actions, eager) < 1e-4
    assert (replan.language_weight, replan.plan_weight) == weights


def test_adaptive_guidance_equals_eager_algorithm_3_with_its_scale(make_policy, images, home):
    policy = make_policy('adaptive')
    first = policy.replan(images[0], home, commit=False)
    commit_with_ratio(policy, first, first.temporal_ratio / 2)
    replan = policy.replan(images[1], home)
    scale = replan.temporal_ratio / (first.temporal_ratio / 2) - 1
    assert replan.scale == pytest.approx(min(scale, 2.0)) and replan.scale > 0.5
    weights = 0.1 * replan.scale, 0.3 * replan.scale
    assert (replan.language_weight, replan.plan_weight) == pytest.approx(weights)
    eager = eager_algorithm_3(policy, images[1], home, 1, weights=weights)
    assert normalised_difference(replan.actions, eager) < 1e-4
    unguided = make_policy('off').replan(images[1], home, index=1)
    assert normalised_difference(replan.actions, unguided.actions) > 1e-3


def test_branches_run_where_the_schedule_needs_them(make_policy, images, home):
    assert make_policy('off').replan(images[0], home).branches == ('conditional',)
    flat = make_policy('flat').replan(images[0], home)
    assert flat.branches == ('conditional', 'null', 'plan') and flat.scale == 1.0
    adaptive = make_policy('adaptive')
    first = adaptive.replan(images[0], home)
    assert first.branches == ('conditional',) and first.scale == 0.0
    assert first.baseline == first.temporal_ratio == adaptive.baseline
    adaptive.reset_episode('put the red block into the bin', 'episode')
    commit_with_ratio(adaptive, dataclasses.replace(first, episode=adaptive._episode), 0.5)
    guided = adaptive.replan(images[0], home)
    assert guided.branches == ('conditional', 'null', 'plan') and guided.scale == 2.0


@pytest.mark.parametrize('language, plan, branches', [
    (0.1, 0.0, ('conditional', 'null')),
    (0.0, 0.3, ('conditional', 'plan')),
])
def test_a_weight_of_zero_switches_a_branch_off(config, images, home, language, plan, branches):
    changed = dataclasses.replace(config, guidance=GuidanceConfig(language, plan, 2.0))
    policy = VideoActionPolicy.from_config(changed, guidance='flat')
    policy.reset_episode('put the red block into the bin', 'episode')
    rolled_out = []
    rollout = policy.backbone.rollout
    policy.backbone.rollout = lambda observation, noise, context: (
        rolled_out.append((noise.shape[2], len(context))) or rollout(observation, noise, context)
    )
    replan = policy.replan(images[0], home)
    assert replan.branches == branches
    assert rolled_out == [(5, 2 if language else 1)] + ([(24, 1)] if plan else [])
    eager = eager_algorithm_3(policy, images[0], home, 0, weights=(language, plan))
    assert normalised_difference(replan.actions, eager) < 1e-4


def test_a_skipped_branch_changes_no_number(config, make_policy, images, home):
    off = make_policy('off').replan(images[0], home)
    adaptive = make_policy('adaptive').replan(images[0], home)
    weightless = dataclasses.replace(config, guidance=GuidanceConfig(0.0, 0.0, 2.0))
    policy = VideoActionPolicy.from_config(weightless, guidance='flat')
    policy.reset_episode('put the red block into the bin', 'episode')
    assert same_numbers(off, adaptive)
    assert same_numbers(off, policy.replan(images[0], home))
    # Guided or not, the next replan's noise is the same.
    flat = make_policy('flat')
    flat.replan(images[0], home)
    next_flat = flat.replan(images[0], home)
    next_off = make_policy('off').replan(images[0], home, index=1)
    assert next_flat.temporal_ratio == pytest.approx(next_off.temporal_ratio, rel=1e-5)


def test_equal_names_give_equal_bits_and_other_names_other_noise(make_policy, images, home):
    def replan(seed=0, key='episode', index=4):
        return make_policy(seed=seed, key=key).replan(images[0], home, index=index)

    reference = replan()
    assert same_numbers(reference, replan())
    for other in (replan(key='episode2'), replan(index=5)):
        assert not np.array_equal(reference.actions, other.actions)
        assert reference.temporal_ratio != other.temporal_ratio


def test_weights_are_a_function_of_the_seed_and_leave_torchs_state_alone(config):
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    first, again, other = (VideoActionPolicy.from_config(config, seed=s) for s in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state()) and torch.get_num_threads() == threads
    for part in ('backbone', 'text', 'head'):
        left, right, third = (getattr(p, part).state_dict() for p in (first, again, other))
        assert all(torch.equal(left[name], right[name]) for name in left)
        assert not all(torch.equal(left[name], third[name]) for name in left)


@pytest.mark.parametrize('change', [
    {'seed': 1}, {'key': 'b'}, {'index': 1}, {'stream': 'action'}, {'key': 'a1'},
])
def test_noise_differs_when_any_of_its_names_differs(change):
    names = {'seed': 0, 'key': 'a', 'index': 0, 'stream': 'video'}
    reference = keyed_noise((4,), **names)
    assert torch.equal(reference, keyed_noise((4,), **names))
    assert not torch.equal(reference, keyed_noise((4,), **names | change))


def test_noise_is_pinned_across_versions_and_processes():
    """A recorded episode must stay repeatable: this is sha256 of a JSON list, then torch.randn."""
    import hashlib

    digest = hashlib.sha256(b'[7, "scene1/ep3", 2, "video"]').digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], 'big') >> 1)
    expected = torch.randn(8, generator=generator)
    noise = keyed_noise((8,), seed=7, key='scene1/ep3', index=2, stream='video')
    assert torch.equal(noise, expected)
    assert abs(keyed_noise((10000,), seed=0, key='', index=0, stream='').std() - 1) < 0.03


def test_the_index_counts_up_and_the_baseline_is_the_first_committed_ratio(
    make_policy, images, home
):
    policy = make_policy('adaptive')
    first, second = policy.replan(images[0], home), policy.replan(images[1], home)
    assert (first.index, second.index) == (0, 1)
    third = policy.replan(images[1], home)
    assert second.baseline == third.baseline == first.temporal_ratio != second.temporal_ratio
    policy.reset_episode('put the red block into the bin', 'episode')
    assert policy.baseline is None
    again = policy.replan(images[1], home)
    assert again.index == 0 and again.baseline == again.temporal_ratio


def test_without_commit_nothing_changes(make_policy, images, home):
    policy = make_policy()
    first = policy.replan(images[0], home, commit=False)
    assert policy.baseline is None
    repeated = policy.replan(images[0], home, commit=False)
    assert repeated.index == 0 and same_numbers(first, repeated)
    policy.commit(repeated)
    assert policy.baseline == first.temporal_ratio
    assert policy.replan(images[1], home, commit=False).index == 1


def test_an_explicit_index_is_where_counting_goes_on(make_policy, images, home):
    policy = make_policy()
    assert policy.replan(images[0], home, index=6).index == 6
    assert policy.replan(images[0], home, commit=False).index == 7


def test_a_replan_of_an_ended_episode_cannot_be_committed(make_policy, images, home):
    policy = make_policy()
    stale = policy.replan(images[0], home, commit=False)
    policy.reset_episode('put the red block into the bin', 'episode')  # even under the same key
    with pytest.raises(InputError, match='has ended'):
        policy.commit(stale)
    assert policy.baseline is None


@pytest.mark.parametrize('ratio', [0.0, math.nan, math.inf, 1e-9])
def test_an_unusable_baseline_warns_and_does_not_guide(make_policy, images, home, ratio):
    policy = make_policy('adaptive')
    commit_with_ratio(policy, policy.replan(images[0], home, commit=False), ratio)
    replan = policy.replan(images[1], home)
    assert replan.scale == 0.0 and replan.branches == ('conditional',)
    assert 'TR baseline' in replan.warning


def test_text_and_image_and_guidance_show_in_the_actions(make_policy, images, home):
    actions = make_policy().replan(images[0], home).actions
    other_text = make_policy(instruction='hand over the towel').replan(images[0], home).actions
    other_image = make_policy().replan(images[1], home).actions
    flat = make_policy('flat').replan(images[0], home).actions
    for other in (other_text, other_image, flat):
        assert normalised_difference(actions, other) > 0.01


@pytest.mark.parametrize('guidance', ['off', 'flat', 'adaptive'])
def test_an_untrained_policy_starts_gently(make_policy, images, home, guidance):
    """About a third of a deviation around the home pose, with these statistics 0.2 degrees."""
    policy = make_policy(guidance, seed=1)
    normalised = (policy.replan(images[0], home).actions - home) / 0.01
    assert 0.2 < np.std(normalised) < 0.5
    assert np.abs(normalised).max() < 3.0


def test_temporal_ratio_moves_between_replans(make_policy, images, home):
    policy = make_policy()
    ratios = np.array([policy.replan(images[i % 2], home).temporal_ratio for i in range(5)])
    assert ratios.std() / ratios.mean() > 0.01
    assert 2.0 < ratios.mean() < 8.0


def test_proprioception_is_clipped_to_five_deviations(make_policy, images, home):
    far, farther = (home + np.float32(d) for d in (0.06, 3e38))
    clipped = make_policy().replan(images[0], far).actions
    assert np.array_equal(clipped, make_policy().replan(images[0], farther).actions)
    near = make_policy().replan(images[0], home + np.float32(0.045)).actions
    assert not np.array_equal(clipped, near)


@pytest.mark.parametrize('image, message', [
    (None, 'NoneType'),
    (np.zeros((168, 672), np.uint8), r'\(168, 672\), expected uint8 \(168, 672, 3\)'),
    (np.zeros((672, 168, 3), np.uint8), r'\(672, 168, 3\)'),
    (np.zeros((168, 672, 3), np.float32), 'float32'),
])
def test_a_bad_image_is_an_input_error(make_policy, home, image, message):
    with pytest.raises(InputError, match=message):
        make_policy().replan(image, home)


@pytest.mark.parametrize('proprio, message', [
    ([0.0] * 14, 'list'),
    (np.zeros(13, np.float32), r'\(13,\), expected float32 \(14,\)'),
    (np.zeros(14), 'float64'),
    (np.full(14, np.nan, np.float32), 'not finite'),
    (np.array([0.0] * 13 + [np.inf], np.float32), r'not finite at \[13\]'),
])
def test_bad_proprioception_is_an_input_error(make_policy, images, proprio, message):
    with pytest.raises(InputError, match=message):
        make_policy().replan(images[0], proprio)


@pytest.mark.parametrize('instruction', ['', '  \n', 'x' * 2001, None])
def test_a_bad_instruction_is_an_input_error_and_the_episode_goes_on(
    make_policy, images, home, instruction
):
    policy = make_policy()
    policy.replan(images[0], home)
    with pytest.raises(InputError, match='instruction'):
        policy.reset_episode(instruction, 'next')
    assert policy.replan(images[0], home).index == 1


def test_the_longest_instruction_is_accepted(make_policy):
    make_policy(instruction='go ' * 666)


def test_a_replan_before_any_episode_is_an_input_error(config, images, home):
    policy = VideoActionPolicy.from_config(config)
    with pytest.raises(InputError, match='reset_episode'):
        policy.replan(images[0], home)


def test_a_bad_index_or_schedule_is_an_input_error(config, make_policy, images, home):
    with pytest.raises(InputError, match='index -1'):
        make_policy().replan(images[0], home, index=-1)
    with pytest.raises(InputError, match='always'):
        VideoActionPolicy.from_config(config, guidance='always')


def test_a_replayed_adaptive_run_repeats_its_numbers(config, make_policy, images, home):
    adaptive = make_policy('adaptive')
    recorded = [adaptive.replan(image, home) for image in (*images, *images)]
    scales = [replan.scale for replan in recorded]
    assert max(scales) > 0  # else nothing was replayed
    policy = VideoActionPolicy.from_config(config, guidance='replay', replay_scales=scales[:3])
    policy.reset_episode('put the red block into the bin', 'episode')
    for image, expected in zip((*images, images[0]), recorded):
        replan = policy.replan(image, home)
        assert replan.scale == expected.scale
        assert normalised_difference(replan.actions, expected.actions) < 1e-4
    assert policy.unused_replay_scales == 0
    with pytest.raises(InputError, match='the replay holds 3'):
        policy.replan(images[1], home)


def test_a_replay_goes_on_over_episodes_and_counts_what_is_left(config, images, home):
    policy = VideoActionPolicy.from_config(
        config, guidance='replay', replay_scales=(0.0, 0.5, 0.0, 0.0)
    )
    policy.reset_episode('put the red block into the bin', 'first')
    policy.replan(images[0], home)
    policy.replan(images[0], home, index=0, commit=False)  # asked again: uses up nothing
    policy.reset_episode('put the red block into the bin', 'second')
    replan = policy.replan(images[0], home)
    assert (replan.scale, replan.branches) == (0.5, ('conditional', 'null', 'plan'))
    assert policy.unused_replay_scales == 2


def test_a_scale_of_the_call_overrides_the_schedule(make_policy, images, home):
    given = make_policy('off').replan(images[0], home, scale=1.0)
    flat = make_policy('flat').replan(images[0], home)
    assert given.scale == 1.0 and np.array_equal(given.actions, flat.actions)


def test_attention_of_further_layers_comes_in_the_same_pass(make_policy, images, home):
    policy = make_policy()
    replan = policy.replan(images[0], home, layers=(1, 5))
    assert list(replan.layer_attention) == [1, 5]
    assert np.array_equal(replan.layer_attention[5], replan.frame_attention)  # the TR layer
    assert not np.allclose(replan.layer_attention[1], replan.frame_attention)
    assert make_policy().replan(images[0], home).layer_attention == {}
    with pytest.raises(InputError, match=r'layers \(7,\), expected 1 to 6'):
        policy.replan(images[0], home, layers=(7,))


@pytest.mark.parametrize('changes, same', [
    ({'null_text': 'zeros_after_projection'}, False),
    ({'null_text': 'empty_prompt'}, False),
    ({'branch_noise': 'independent'}, False),
    ({'cap': 1.0}, True),
])
def test_options_of_the_branches_show_only_where_a_branch_runs(
    config, make_policy, images, home, changes, same
):
    changed = config.changed({'guidance': changes})
    for guidance, is_same in (('off', True), ('flat', same)):
        policy = VideoActionPolicy.from_config(changed, guidance=guidance)
        policy.reset_episode('put the red block into the bin', 'episode')
        expected = make_policy(guidance).replan(images[0], home)
        assert same_numbers(policy.replan(images[0], home), expected) == is_same


def test_every_preset_that_fits_this_machine_replans(images):
    config = VamConfig.from_yaml('tiny_libero')
    policy = VideoActionPolicy.from_config(config, guidance='flat')
    policy.reset_episode('pick up the black bowl', 'episode')
    image = images[0].repeat(2, axis=0)[:224, :448]
    state = np.array(config.statistics.proprio.mean, dtype=np.float32)
    replan = policy.replan(image, state)
    assert replan.actions.shape == (17, 7) and replan.frame_attention.shape == (5,)
    assert len(replan.branches) == 3


def test_weights_that_are_not_finite_never_reach_the_arms(config, images, home):
    policy = VideoActionPolicy.from_config(config)
    policy.reset_episode('put the red block into the bin', 'episode')
    policy.head.action_out.bias.data[0] = math.nan
    with pytest.raises(InputError, match='not finite'):
        policy.replan(images[0], home)
    assert policy.baseline is None
