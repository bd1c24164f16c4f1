"""Checkpoints: what comes back is what was saved, and nothing half comes or goes."""

import json
import os
import re
import resource
import shutil
import stat
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig, VideoActionPolicy
from tr_vam_ros.vam.checkpoint import load_policy, save_policy
from tr_vam_ros.vam.checkpoint_files import read_tensors
from tr_vam_ros.vam.networks import Networks

SEED = 3


@pytest.fixture(scope='session')
def config(config):
    """tiny_yam with less to compute; every branch runs."""
    return config.changed({'video': {'plan_frames': 5}, 'head': {'euler_steps': 3}})


@pytest.fixture(scope='module')
def policy(config):
    return VideoActionPolicy.from_config(config, seed=SEED)


@pytest.fixture(scope='module')
def saved(policy, tmp_path_factory):
    """A sharded checkpoint; tests that change it take a copy."""
    return save_policy(policy, tmp_path_factory.mktemp('saved') / 'ck', max_shard_bytes=4_000_000)


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / 'ck'))


def load(source, **options):
    return load_policy(source, **{'precision': 'float32', 'seed': SEED, **options})


def state(policy):
    return Networks(policy.backbone, policy.text, policy.head).state()


def answers(policy, images, home, count=2):
    policy.reset_episode('put the red block into the bin', 'episode')
    return [policy.replan(images[i % 2], home) for i in range(count)]


def same(first, second):
    return all(
        np.array_equal(a.actions, b.actions)
        and np.array_equal(a.frame_attention, b.frame_attention)
        and (a.temporal_ratio, a.scale, a.branches) == (b.temporal_ratio, b.scale, b.branches)
        for a, b in zip(first, second, strict=True)
    )


def test_by_default_a_saved_policy_answers_as_before_to_the_last_bit(
    policy, images, home, tmp_path
):
    loaded = load_policy(policy.save_pretrained(tmp_path / 'vam'), seed=SEED)
    assert same(answers(policy, images, home), answers(loaded, images, home))


def shards(folder):
    return sorted(folder.glob('*.safetensors'))


def change_tensors(folder, change):
    """Rewrite the shards after `change(name, tensor)`: another tensor, or None for none."""
    index = json.loads((folder / 'model.safetensors.index.json').read_text())
    for file in shards(folder):
        changed = {name: change(name, tensor) for name, tensor in load_file(file).items()}
        save_file({name: t for name, t in changed.items() if t is not None}, file)
    return index['weight_map']


# --- what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize('guidance', ['adaptive', 'flat'])
def test_a_reloaded_policy_answers_the_same_to_the_last_bit(
    config, saved, images, home, guidance
):
    original = VideoActionPolicy.from_config(config, seed=SEED, guidance=guidance)
    reloaded = load(saved, guidance=guidance)
    assert same(answers(original, images, home), answers(reloaded, images, home))


def test_one_file_and_many_shards_hold_the_same(policy, saved, tmp_path):
    single = save_policy(policy, tmp_path / 'single')
    assert [file.name for file in shards(single)] == ['model.safetensors']
    assert len(shards(saved)) > 3
    one, many = state(load(single)), state(load(saved))
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_the_folder_is_what_other_tools_of_the_hub_read(policy, saved):
    index = json.loads((saved / 'model.safetensors.index.json').read_text())
    tensors = {}
    for file in shards(saved):
        assert file.stat().st_size < 4_100_000
        part = load_file(file)
        assert all(index['weight_map'][name] == file.name for name in part)
        tensors |= part
    assert {name.split('.')[0] for name in tensors} == {'backbone', 'text', 'head'}
    assert tensors.keys() == state(policy).keys() == index['weight_map'].keys()
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert index['metadata']['total_size'] == size
    card = huggingface_hub.ModelCard.load(saved / 'README.md')
    assert (card.data.license, card.data.library_name) == ('other', 'tr_vam_ros')
    assert card.data.pipeline_tag == 'robotics'
    for owner in ('NVIDIA Open Model', 'Gemma', 'LIBERO'):
        assert owner.split()[0] in card.text


def test_config_and_statistics_are_readable_and_each_stands_once(config, saved):
    data = json.loads((saved / 'config.json').read_text())
    assert data.pop('format_version') == 1 and data.pop('package_version')
    assert 'statistics' not in data
    data['statistics'] = json.loads((saved / 'statistics.json').read_text())
    assert VamConfig.from_mapping(data, 'test') == config
    assert load(saved).config == config


def test_edited_statistics_change_the_actions_units(folder, saved, images, home):
    file = folder / 'statistics.json'
    data = json.loads(file.read_text())
    data['action']['std'] = [2 * value for value in data['action']['std']]
    file.write_text(json.dumps(data))
    (plain,), (doubled,) = (answers(load(f), images, home, 1) for f in (saved, folder))
    np.testing.assert_allclose(doubled.actions - home, 2 * (plain.actions - home), atol=1e-6)


def test_the_vocabulary_and_the_latents_statistics_are_saved(config, tmp_path):
    words = config.changed({'text': {'vocabulary': ['lift', 'prüfen', '東']}})
    policy = VideoActionPolicy.from_config(words)
    policy.backbone.latents_mean.copy_(torch.arange(16.0).view(1, -1, 1, 1, 1))
    reloaded = load(save_policy(policy, tmp_path / 'ck'))
    assert reloaded.text.tokenizer('lift prüfen 東') == [0, 1, 2]
    assert torch.equal(reloaded.backbone.latents_mean, policy.backbone.latents_mean)
    assert not torch.equal(reloaded.backbone.latents_mean[0], torch.zeros(16, 1, 1, 1))


def test_buffers_that_are_not_stored_are_made_again(policy, saved):
    reloaded = load(saved)
    for part in ('backbone', 'text', 'head'):
        buffers = dict(getattr(reloaded, part).named_buffers())
        for name, buffer in getattr(policy, part).named_buffers():
            assert torch.equal(buffers[name], buffer), name
    assert reloaded.backbone.padding_mask.sum() > 0  # the image is padded here


def test_no_pickle_is_read_or_written(policy, tmp_path, monkeypatch):
    def never(*_arguments, **_options):
        raise AssertionError('a pickle was asked for')

    for name in ('load', 'save'):
        monkeypatch.setattr(torch, name, never)
    monkeypatch.setattr('pickle.load', never)
    monkeypatch.setattr('pickle.loads', never)
    monkeypatch.setattr('pickle.Unpickler', never)
    folder = save_policy(policy, tmp_path / 'ck')
    load(folder)
    assert {file.suffix for file in folder.iterdir()} == {'.json', '.safetensors', '.md'}


def test_loading_tells_how_far_it_is(saved):
    calls = []
    load(saved, on_progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls) and calls[-1][0] == calls[-1][1] > 1e7


# --- types and devices -------------------------------------------------------------------------


def test_bfloat16_weights_stay_so_and_answer_nearly_the_same(
    config, policy, saved, tmp_path, images, home
):
    narrow = load(saved, dtype='bfloat16', precision='auto')
    again = load(save_policy(narrow, tmp_path / 'bf16'), precision='auto')
    for one in (narrow, again):
        types = {name: tensor.dtype for name, tensor in state(one).items()}
        assert types.pop('backbone.latents_mean') == types.pop('backbone.latents_std')
        heads = {name for name in types if name.startswith('head.')}
        assert {types[name] for name in heads} == {torch.float32}
        assert {types[name] for name in types.keys() - heads} == {torch.bfloat16}
        assert one.backbone.latents_std.dtype == torch.float32
        assert one.backbone.precision == torch.bfloat16
    exact = answers(policy, images, home)
    rounded = answers(again, images, home)
    assert same(answers(narrow, images, home), rounded)
    std = np.array(config.statistics.action.std)
    for a, b in zip(exact, rounded):
        assert np.abs((a.actions - b.actions) / std).max() < 0.05
        assert b.temporal_ratio == pytest.approx(a.temporal_ratio, rel=0.02)


def test_bfloat16_weights_become_float32_where_asked(saved, tmp_path):
    narrow = save_policy(load(saved, dtype='bfloat16', precision='auto'), tmp_path / 'bf16')
    assert sum(file.stat().st_size for file in shards(narrow)) < 0.8 * sum(
        file.stat().st_size for file in shards(saved)
    )
    with pytest.raises(InputError, match='bfloat16.*dtype float32'):
        load(narrow)
    wide = load(narrow, dtype='float32')
    assert {tensor.dtype for tensor in state(wide).values()} == {torch.float32}


@pytest.mark.parametrize('options, message', [
    ({'dtype': 'float16'}, 'dtype float16'),
    ({'precision': 'half'}, 'precision'),
    ({'device': 'gpu'}, 'device gpu.*use cpu'),
    ({'device': 'cuda:99'}, 'device cuda:99.*use cpu'),
    ({'guidance': 'always'}, 'always'),
])
def test_a_wrong_option_is_an_input_error(saved, options, message):
    with pytest.raises(InputError, match=message):
        load(saved, **options)


def test_weights_stored_as_float16_ask_for_a_type(folder):
    change_tensors(folder, lambda name, t: t.half() if 'text' in name else t)
    with pytest.raises(InputError, match='stored as F16.*dtype'):
        load(folder)
    assert load(folder, dtype='float32').text.position.weight.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_on_a_gpu_everything_stands_there_and_answers_alike(policy, saved, images, home):
    moved = load(saved, device='cuda')
    tensors = [*state(moved).values(), moved.backbone.padding_mask]
    assert {tensor.device.type for tensor in tensors} == {'cuda'}
    (here,), (there,) = answers(policy, images, home, 1), answers(moved, images, home, 1)
    assert np.abs(here.actions - there.actions).max() < 1e-3 * 0.01


# --- what stops --------------------------------------------------------------------------------


def test_missing_unexpected_and_misshaped_tensors_are_listed(folder):
    def change(name, tensor):
        if name == 'head.action_in.bias':
            return None
        return tensor[:5].clone() if name == 'head.action_out.weight' else tensor

    change_tensors(folder, change)
    extra = load_file(shards(folder)[0]) | {'head.extra.weight': torch.zeros(2)}
    save_file(extra, shards(folder)[0])
    with pytest.raises(InputError) as error:
        load(folder)
    text = str(error.value)
    assert '1 tensor missing (head.action_in.bias)' in text
    assert '1 tensor unexpected (head.extra.weight)' in text
    assert 'head.action_out.weight is (5, 128), expected (32, 128)' in text
    assert '\n' not in text


def test_a_long_list_is_cut_after_ten_with_a_count(folder):
    change_tensors(folder, lambda name, tensor: None if 'head.layers' in name else tensor)
    with pytest.raises(InputError, match=r'(\d+) tensors missing') as error:
        load(folder)
    total = int(re.search(r'(\d+) tensors missing', str(error.value))[1])
    assert total > 50 and f'and {total - 10} more' in str(error.value)
    assert str(error.value).count('head.layers') == 10


def remove(name):
    return lambda folder: (folder / name).unlink()


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def edit_config(**changes):
    def edit(folder):
        data = json.loads((folder / 'config.json').read_text()) | changes
        (folder / 'config.json').write_text(json.dumps(data))
    return edit


def truncate(folder):
    file = shards(folder)[1]
    file.write_bytes(file.read_bytes()[:-100])


def index_names(name):
    def edit(folder):
        file = folder / 'model.safetensors.index.json'
        index = json.loads(file.read_text())
        index['weight_map']['head.action_in.bias'] = name
        file.write_text(json.dumps(index))
    return edit


def only_a_pickle(folder):
    for file in folder.iterdir():
        file.unlink()
    (folder / 'pytorch_model.bin').write_bytes(b'\x80\x04N.')


@pytest.mark.parametrize('spoil, message', [
    (remove('config.json'), 'config.json: cannot be read .there is none'),
    (remove('statistics.json'), 'statistics.json: cannot be read .there is none'),
    (write('config.json', b'{'), 'config.json: cannot be read'),
    (write('config.json', b'[]'), 'config.json: got list'),
    (write('config.json', b'{"model_type": "pi0"}'), 'unknown key model_type'),
    (edit_config(statistics={}), 'statistics stand in config.json and in statistics.json'),
    (edit_config(format_version='1'), 'is of format 1.*reads up to'),
    (edit_config(format_version=2), 'format 2.*update'),
    (edit_config(colour='red'), 'unknown key colour'),
    (edit_config(name=3), r'config.json.name: got 3'),
    (remove('model-00002-of-00005.safetensors'), r'1 shard missing \(model-00002-of-00005'),
    (remove('model.safetensors.index.json'), 'neither model.safetensors nor'),
    (truncate, r'model-00002-of-00005.safetensors: is no readable.*again'),
    (write('model-00001-of-00005.safetensors', b'\x80\x04N.'), 'is no readable'),
    (write('model.safetensors.index.json', b'{}'), 'no weight_map'),
    (index_names('../../etc/passwd'), 'expected a file of its own folder'),
    (index_names('pytorch_model.bin'), 'is a pickle.*convert'),
    (only_a_pickle, 'pytorch_model.bin: is a pickle.*convert'),
])  # fmt: skip
def test_a_spoilt_folder_is_an_input_error_that_names_the_file(folder, spoil, message):
    assert len(shards(folder)) == 5
    spoil(folder)
    with pytest.raises(InputError, match=message) as error:
        load(folder)
    assert '\n' not in str(error.value)


def test_a_tensor_in_two_shards_is_an_input_error(folder):
    first, second = shards(folder)[:2]
    save_file(load_file(second) | dict([next(iter(load_file(first).items()))]), second)
    with pytest.raises(InputError, match='stands in .*00001.* and in .*00002'):
        load(folder)


@pytest.mark.parametrize('suffix', ['.bin', '.pt', '.ckpt'])
def test_a_pickle_offered_as_a_checkpoint_is_refused_by_name(tmp_path, suffix):
    file = tmp_path / f'policy{suffix}'
    file.write_bytes(b'\x80\x04N.')
    with pytest.raises(InputError, match=f'policy{suffix}: is a pickle'):
        load(file)


# --- the Hub -----------------------------------------------------------------------------------

COMMIT = '0123456789abcdef0123456789abcdef01234567'


@pytest.fixture
def cache(saved, tmp_path, monkeypatch):
    """A Hub cache that holds one commit of one repository, and no network."""
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    repository = tmp_path / 'models--someone--a-policy'
    shutil.copytree(saved, repository / 'snapshots' / COMMIT)
    (repository / 'refs').mkdir()
    (repository / 'refs' / 'main').write_text(COMMIT)
    return repository


@pytest.mark.parametrize('source, revision', [
    ('someone/a-policy', None),
    ('someone/a-policy', COMMIT),
    (f'someone/a-policy@{COMMIT}', None),
])
@pytest.mark.parametrize('local_files_only', [True, False])
def test_a_hub_id_loads_from_the_cache_pinned_or_not(
    cache, policy, source, revision, local_files_only
):
    reloaded = load(source, revision=revision, local_files_only=local_files_only)
    assert torch.equal(reloaded.head.action_in.weight, policy.head.action_in.weight)


@pytest.mark.parametrize('source, options, message', [
    ('someone/another', {}, 'cache, and no download.*hf download someone/another'),
    ('someone/another', {'local_files_only': True}, 'the Hub may not be asked'),
    ('someone/a-policy', {'revision': 'f' * 40}, 'a-policy@f+: .*cache'),
    (f'someone/a-policy@{COMMIT}', {'revision': 'main'}, 'another revision than main'),
    ('./checkpoints/none', {}, 'no such folder; name one, or a Hub'),
    ('nowhere', {}, 'no such folder'),
    ('a--b/c..d', {}, "no name of a Hub"),
])
def test_a_hub_id_that_cannot_be_had_says_why(cache, source, options, message):
    with pytest.raises(InputError, match=message) as error:
        load(source, **options)
    assert '\n' not in str(error.value)


# --- saving ------------------------------------------------------------------------------------


def listing(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def test_a_checkpoint_is_overwritten_only_where_that_is_allowed(config, folder):
    other = VideoActionPolicy.from_config(config, seed=4)
    before = listing(folder)
    with pytest.raises(InputError, match='holds a checkpoint; allow overwriting'):
        save_policy(other, folder)
    assert listing(folder) == before
    save_policy(other, folder, overwrite=True)
    assert [file.name for file in shards(folder)] == ['model.safetensors']  # no old shard stays
    assert torch.equal(load(folder).head.action_in.weight, other.head.action_in.weight)
    assert [path.name for path in folder.parent.iterdir()] == ['ck']


@pytest.mark.parametrize('foreign', ['notes.txt', '.git'])
def test_what_is_no_checkpoint_is_never_replaced(policy, folder, foreign):
    (folder / foreign).mkdir()
    with pytest.raises(InputError, match=f'no part of a checkpoint.*{foreign}'):
        save_policy(policy, folder, overwrite=True)
    assert (folder / foreign).is_dir() and len(shards(folder)) == 5


def test_another_project_s_model_is_never_replaced(policy, tmp_path):
    (tmp_path / 'config.json').write_text('{"model_type": "pi0"}')
    save_file({'a': torch.zeros(1)}, tmp_path / 'model.safetensors')
    with pytest.raises(InputError, match='no part of a checkpoint'):
        save_policy(policy, tmp_path, overwrite=True)
    assert load_file(tmp_path / 'model.safetensors').keys() == {'a'}


def test_a_file_is_no_target_and_an_empty_folder_is_one(policy, tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(InputError, match='is a file'):
        save_policy(policy, tmp_path / 'file')
    (tmp_path / 'empty').mkdir()
    load(save_policy(policy, tmp_path / 'empty'))


def test_a_link_to_a_folder_stays_a_link(policy, folder, tmp_path):
    link = tmp_path / 'latest'
    link.symlink_to(folder)
    save_policy(policy, link, overwrite=True)
    assert link.is_symlink() and (folder / 'model.safetensors').is_file()


def test_a_disk_that_runs_full_leaves_the_old_checkpoint(policy, folder):
    before = listing(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))  # fails within a file
    try:
        with pytest.raises(InputError, match=r'cannot be written \(.*too large.*free some space'):
            save_policy(policy, folder, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert listing(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ['ck']


def test_a_disk_without_room_is_said_before_anything_is_written(policy, folder, monkeypatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda _path: shutil._ntuple_diskusage(9, 8, 1000))
    with pytest.raises(InputError, match=r'needs 0.02 GB, 0.00 GB are free'):
        save_policy(policy, folder, overwrite=True)


@pytest.mark.parametrize('failing', [1, 2])
def test_a_rename_that_fails_leaves_the_old_checkpoint(policy, folder, monkeypatch, failing):
    before, rename, calls = listing(folder), Path.rename, []

    def flaky(path, target):
        calls.append(path)
        if len(calls) == failing:
            raise OSError(5, 'Input/output error')
        return rename(path, target)

    monkeypatch.setattr(Path, 'rename', flaky)
    with pytest.raises(InputError, match='Input/output error'):
        save_policy(policy, folder, overwrite=True)
    assert listing(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ['ck']


def test_other_users_may_read_what_is_saved(policy, tmp_path):
    before = os.umask(0o022)
    try:
        folder = save_policy(policy, tmp_path / 'ck', max_shard_bytes=8_000_000)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}


# --- parts -------------------------------------------------------------------------------------


def test_a_few_tensors_are_read_without_the_other_files(saved, folder, policy):
    files = json.loads((folder / 'model.safetensors.index.json').read_text())['weight_map']
    name = 'text.projection.0.weight'
    for file in shards(folder):
        if file.name != files[name]:
            file.unlink()
    assert torch.equal(read_tensors(folder, [name])[name], policy.text.projection[0].weight)
    gone = next(other for other, file in files.items() if file != files[name])
    with pytest.raises(InputError, match=f'{gone} cannot be read .*missing'):
        read_tensors(folder, [gone])
    with pytest.raises(InputError, match='no.such.tensor cannot be read'):
        read_tensors(saved, ['no.such.tensor'])


def test_statistics_may_also_stand_in_a_config_written_by_hand(config, folder):
    (folder / 'statistics.json').unlink()
    (folder / 'config.json').write_text(json.dumps(config.to_mapping()))
    assert load(folder).config == config
