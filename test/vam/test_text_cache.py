import dataclasses
import logging
import multiprocessing
import os

import pytest
import torch
from safetensors import safe_open

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.text_cache import TextCache, TextWeights, default_folder

WEIGHTS = TextWeights(projection='p' * 64, encoder='nvidia/Cosmos-Reason1-7B@abc', places=6)
PROMPT = 'put the red block into the bin'


def context(seed=0, shape=(6, 4)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def entries(folder):
    return sorted(folder.rglob('*.safetensors'))


def test_a_context_comes_back_in_another_process_s_cache(tmp_path):
    TextCache(tmp_path).put(PROMPT, WEIGHTS, context())
    assert torch.equal(TextCache(tmp_path).get(PROMPT, WEIGHTS), context())


@pytest.mark.parametrize('prompt, weights', [
    ('Put the red block into the bin', WEIGHTS),
    ('', WEIGHTS),
    (PROMPT, dataclasses.replace(WEIGHTS, projection='q' * 64)),
    (PROMPT, dataclasses.replace(WEIGHTS, encoder='nvidia/Cosmos-Reason1-7B@abd')),
    (PROMPT, dataclasses.replace(WEIGHTS, places=7)),
])
def test_another_prompt_or_other_weights_are_another_entry(tmp_path, prompt, weights):
    cache = TextCache(tmp_path)
    cache.put(PROMPT, WEIGHTS, context())
    assert cache.get(prompt, weights) is None
    cache.put(prompt, weights, context(1))
    assert torch.equal(cache.get(PROMPT, WEIGHTS), context())
    assert torch.equal(cache.get(prompt, weights), context(1))


def test_an_entry_of_512_places_takes_a_megabyte(tmp_path):
    TextCache(tmp_path).put(PROMPT, WEIGHTS, context(shape=(512, 1024)).float())
    (file,) = entries(tmp_path)
    assert 1024 * 1024 <= file.stat().st_size < 1024 * 1024 + 2000


@pytest.mark.parametrize('damage', [
    lambda data: data[:-1],
    lambda data: data[:10],
    lambda data: b'',
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # one bit of the last value
    lambda data: b'not a tensor file, though long enough to hold one',
])
def test_a_damaged_entry_is_none_and_is_made_again(tmp_path, caplog, damage):
    cache = TextCache(tmp_path)
    cache.put(PROMPT, WEIGHTS, context())
    (file,) = entries(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert cache.get(PROMPT, WEIGHTS) is None
    assert str(file) in caplog.text and 'made again' in caplog.text
    cache.put(PROMPT, WEIGHTS, context())
    assert torch.equal(cache.get(PROMPT, WEIGHTS), context())


@pytest.mark.parametrize('prompt, weights', [
    ('hand over the towel', WEIGHTS),
    (PROMPT, dataclasses.replace(WEIGHTS, projection='q')),
])
def test_an_entry_under_another_s_name_is_not_believed(tmp_path, prompt, weights):
    cache = TextCache(tmp_path)
    cache.put(PROMPT, WEIGHTS, context(0))
    (first,) = entries(tmp_path)
    cache.put(prompt, weights, context(1))
    (second,) = set(entries(tmp_path)) - {first}
    os.replace(second, first)
    assert cache.get(PROMPT, WEIGHTS) is None


def test_a_folder_that_cannot_be_written_costs_a_warning_and_no_context(tmp_path, caplog):
    blocked = tmp_path / 'file'
    blocked.write_text('a file where the folder should be')
    cache = TextCache(blocked / 'text')
    cache.put(PROMPT, WEIGHTS, context())
    assert 'cannot be written' in caplog.text
    assert torch.equal(cache.get(PROMPT, WEIGHTS), context())


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    cache = TextCache(tmp_path)
    cache.put(PROMPT, WEIGHTS, context(0))

    def fail(*_arguments):
        raise OSError('no space left on device')

    monkeypatch.setattr(os, 'replace', fail)
    cache.put(PROMPT, WEIGHTS, context(1))
    monkeypatch.undo()
    assert [p.name for p in tmp_path.rglob('*') if p.is_file()] == [entries(tmp_path)[0].name]
    assert torch.equal(TextCache(tmp_path).get(PROMPT, WEIGHTS), context(0))


def write_many(folder, start, name):
    cache = TextCache(folder)
    start.wait(30)
    for number in range(8):
        # All write the same value there, as encoders of the same weights do.
        cache.put(f'prompt {number % 2}', WEIGHTS, context(number % 2))
        assert torch.equal(cache.get(f'prompt {number % 2}', WEIGHTS), context(number % 2))
        cache.put(f'{name} {number}', WEIGHTS, context(number))
        cache.save(folder / 'all.safetensors', [f'{name} {number}'], WEIGHTS)


def test_processes_that_write_at_once_lose_and_damage_nothing(tmp_path):
    fork = multiprocessing.get_context('fork')
    start = fork.Event()
    processes = [
        fork.Process(target=write_many, args=(tmp_path, start, name)) for name in 'abc'
    ]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    travelled = TextCache(tmp_path / 'elsewhere')
    travelled.load(tmp_path / 'all.safetensors')
    for name in 'abc':
        for number in range(8):
            assert torch.equal(travelled.get(f'{name} {number}', WEIGHTS), context(number))
    assert [p for p in tmp_path.rglob('.*') if p.is_file()] == []


def test_one_file_travels_and_later_prompts_are_added(tmp_path):
    cache, path = TextCache(tmp_path / 'cache'), tmp_path / 'text_cache.safetensors'
    for seed, prompt in enumerate('zxy'):  # order must not matter
        cache.put(prompt, WEIGHTS, context(seed))
    assert cache.save(path, 'zx', WEIGHTS) == (2, 0)
    assert cache.save(path, 'y', WEIGHTS) == (3, 0)
    there = TextCache(tmp_path / 'empty')
    assert there.load(path) == WEIGHTS
    for seed, prompt in enumerate('zxy'):
        assert torch.equal(there.get(prompt, WEIGHTS), context(seed))
    assert there.get('unknown', WEIGHTS) is None


def test_a_travelled_file_counts_whatever_encoder_the_reader_has_but_not_another_projection(
    tmp_path,
):
    cache, path = TextCache(tmp_path / 'cache'), tmp_path / 'text_cache.safetensors'
    cache.put(PROMPT, WEIGHTS, context())
    cache.save(path, [PROMPT], WEIGHTS)
    there = TextCache(tmp_path / 'empty')
    there.load(path)
    assert there.get(PROMPT, dataclasses.replace(WEIGHTS, encoder='folder:123')) is not None
    assert there.get(PROMPT, dataclasses.replace(WEIGHTS, projection='q')) is None


def test_contexts_of_other_weights_leave_the_travelled_file(tmp_path):
    cache, path = TextCache(tmp_path / 'cache'), tmp_path / 'text_cache.safetensors'
    newer = dataclasses.replace(WEIGHTS, projection='q')
    for weights in (WEIGHTS, newer):
        cache.put(PROMPT, weights, context())
    cache.save(path, [PROMPT], WEIGHTS)
    assert cache.save(path, [PROMPT], newer) == (1, 1)
    with safe_open(path, 'pt') as file:
        assert len(list(file.keys())) == 1


def test_saving_what_was_never_embedded_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match='unheard.*embed it first'):
        TextCache(tmp_path).save(tmp_path / 'file.safetensors', ['unheard'], WEIGHTS)
    assert not (tmp_path / 'file.safetensors').exists()


@pytest.mark.parametrize('content, message', [
    (None, 'No such file'),
    (b'short', 'cannot be read'),
    ('tensors', 'is no file of text contexts'),
])
def test_a_travelled_file_that_is_none_is_an_input_error(tmp_path, content, message):
    path = tmp_path / 'text_cache.safetensors'
    if content == 'tensors':
        from safetensors.torch import save_file

        save_file({'a': torch.zeros(1)}, path)
    elif content:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        TextCache(tmp_path).load(path)


def test_a_flipped_bit_in_a_travelled_file_is_an_input_error(tmp_path):
    cache, path = TextCache(tmp_path / 'cache'), tmp_path / 'text_cache.safetensors'
    cache.put(PROMPT, WEIGHTS, context())
    cache.save(path, [PROMPT], WEIGHTS)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    there = TextCache(tmp_path / 'empty')
    there.load(path)
    with pytest.raises(InputError, match='checksum'):
        there.get(PROMPT, WEIGHTS)


def test_the_default_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', '/home/somebody')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert default_folder() == tmp_path / 'tr_vam_ros' / 'text'
    for unusable in ('', 'relative/path'):  # the XDG rule: such a value is ignored
        monkeypatch.setenv('XDG_CACHE_HOME', unusable)
        assert str(default_folder()) == '/home/somebody/.cache/tr_vam_ros/text'
    monkeypatch.delenv('XDG_CACHE_HOME')
    assert str(default_folder()) == '/home/somebody/.cache/tr_vam_ros/text'


def test_every_user_may_read_what_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        TextCache(tmp_path).put(PROMPT, WEIGHTS, context())
    finally:
        os.umask(before)
    (file,) = entries(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o644
