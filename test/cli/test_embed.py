"""`tr-vam embed` with a tiny encoder and a tiny checkpoint."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from test.vam.tiny_encoder import EMBED_DIM, save_tiny_encoder
from tr_vam_ros.cli.embed import main
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam.reason_text import ReasonConditioning
from tr_vam_ros.vam.text_cache import TextCache

PLACES, CONTEXT = 40, 128
TEXT = {'encoder': 'cosmos_reason1', 'embed_dim': EMBED_DIM, 'max_words': PLACES}


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp('encoder'))


def save_checkpoint(folder, seed=0, text=TEXT):
    """config.json and two shards; only what `embed` may read is a tensor."""
    config = VamConfig.from_yaml('tiny_yam').changed({'text': text})
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(config.to_mapping()))
    generator = torch.Generator().manual_seed(seed)
    shards = {
        'model-00001-of-00002.safetensors': {
            'text.projection.0.weight': torch.randn(CONTEXT, EMBED_DIM, generator=generator) / 7,
        },
        'model-00002-of-00002.safetensors': {
            'text.projection.0.bias': torch.randn(CONTEXT, generator=generator),
            'head.state_in.bias': torch.zeros(1),
        },
    }
    for name, tensors in shards.items():
        save_file({key: value.bfloat16() for key, value in tensors.items()}, folder / name)
    weight_map = {key: name for name, tensors in shards.items() for key in tensors}
    weight_map['backbone.transformer.large'] = 'model-00003-that-is-not-here.safetensors'
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': weight_map}))
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    return save_checkpoint(tmp_path / 'checkpoint')


@pytest.fixture
def embed(tmp_path, checkpoint, encoder):
    def run(*arguments, encoder=encoder, checkpoint=checkpoint):
        report = tmp_path / 'report.json'
        code = main([
            '--checkpoint', str(checkpoint), '--encoder', str(encoder), '--dtype', 'float32',
            '--cache', str(tmp_path / 'cache'), '--json', str(report), *map(str, arguments),
        ])  # fmt: skip
        assert code == 0
        return json.loads(report.read_text())

    return run


def no_encoder(*_arguments):
    raise AssertionError('the encoder was loaded')


def driving_text(tmp_path, weights_of, cache='elsewhere'):
    """The text path of a robot: its weights in float32, no encoder."""
    text = ReasonConditioning(
        VamConfig.from_yaml('tiny_yam').changed({'text': TEXT}).text, CONTEXT,
        cache=TextCache(tmp_path / cache), load=no_encoder,
    )
    from tr_vam_ros.vam.checkpoint_files import read_tensors

    names = {f'text.{name}': name for name in text.state_dict()}
    tensors = read_tensors(weights_of, names)
    text.load_state_dict({names[name]: tensor.float() for name, tensor in tensors.items()})
    return text


def test_misses_become_hits_and_both_are_said(embed, capsys):
    first = embed('--instruction', 'put the towel', 'hand over the block')
    assert (first['hits'], first['misses']) == (0, 3)  # and the empty prompt
    output = capsys.readouterr().out
    assert 'miss  put the towel\n' in output and 'miss  (the empty prompt)\n' in output
    assert output.splitlines()[-1].startswith('3 instructions: 0 hits, 3 misses')
    second = embed('--instruction', 'put the towel', 'red')
    assert (second['hits'], second['misses']) == (2, 1)
    assert second['instructions'] == [
        {'text': 'put the towel', 'hit': True},
        {'text': 'red', 'hit': False},
        {'text': '', 'hit': True},
    ]
    assert 'hit   put the towel\n' in capsys.readouterr().out


def test_known_instructions_need_no_encoder(embed, monkeypatch):
    embed('--instruction', 'red')
    monkeypatch.setattr('tr_vam_ros.vam.reason_encoder.ReasonEncoder.__init__', no_encoder)
    assert embed('--instruction', 'red')['misses'] == 0


def test_a_file_of_instructions_counts_each_line_once_as_the_policy_asks_for_it(embed, tmp_path):
    file = tmp_path / 'prompts.txt'
    file.write_text('put the towel\n\n  put the towel  \nübergib das Tuch\n')
    report = embed('--instructions', file)
    assert [entry['text'] for entry in report['instructions']] == [
        'put the towel', 'übergib das Tuch', '',
    ]


def test_a_driving_policy_finds_what_was_written_into_the_checkpoint(
    embed, checkpoint, tmp_path, encoder
):
    report = embed('--instruction', 'put the towel', '--into-checkpoint')
    path = checkpoint / 'text_cache.safetensors'
    assert report['into_checkpoint'] == str(path)
    robot = driving_text(tmp_path, checkpoint)
    robot.load_cache(path)
    with torch.no_grad():
        context = robot('put the towel')
        assert context.shape == (1, PLACES, CONTEXT)
        assert robot.null('empty_prompt').shape == (1, PLACES, CONTEXT)
        # Against the encoder itself.
        from tr_vam_ros.vam.reason_encoder import EncoderSource, loaded_encoder

        source = EncoderSource(str(encoder), dtype='float32')
        with loaded_encoder(source, PLACES, EMBED_DIM) as loaded:
            expected = robot.projection(loaded('put the towel'))
    torch.testing.assert_close(context, expected, atol=1e-6, rtol=2**-8)


def test_later_instructions_are_added_to_the_checkpoint(embed, checkpoint, tmp_path):
    for words in ('put the towel', 'red', 'block'):
        embed('--instruction', words, '--into-checkpoint')
    robot = driving_text(tmp_path, checkpoint)
    robot.load_cache(checkpoint / 'text_cache.safetensors')
    assert all(robot.knows(words) for words in ('put the towel', 'red', 'block', ''))


def test_a_checkpoint_s_own_contexts_are_hits(embed, tmp_path):
    embed('--instruction', 'red', '--into-checkpoint')
    shutil.rmtree(tmp_path / 'cache')
    assert embed('--instruction', 'red')['misses'] == 0


def test_new_weights_leave_old_contexts_out_and_say_so(embed, checkpoint, tmp_path, capsys):
    embed('--instruction', 'red', '--into-checkpoint')
    trained = save_checkpoint(tmp_path / 'trained', seed=1)
    shutil.copy(checkpoint / 'text_cache.safetensors', trained)
    report = embed('--instruction', 'red', '--into-checkpoint', checkpoint=trained)
    assert (report['misses'], report['left_out']) == (2, 2)
    assert 'left out 2 that were made with other weights' in capsys.readouterr().out


def test_two_encoders_do_not_mix_in_one_checkpoint(embed, tmp_path):
    embed('--instruction', 'red', '--into-checkpoint')
    other = save_tiny_encoder(tmp_path / 'other', seed=1)
    with pytest.raises(InputError, match='was made with encoder folder:.*same --encoder'):
        embed('--instruction', 'block', '--into-checkpoint', encoder=other)
    assert embed('--instruction', 'red', encoder=other)['hits'] == 0


def test_a_checkpoint_in_one_file_is_read_as_well(embed, checkpoint, tmp_path):
    from safetensors.torch import load_file

    tensors = {}
    for shard in sorted(checkpoint.glob('model-*')):
        tensors |= load_file(shard)
        shard.unlink()
    save_file(tensors, checkpoint / 'model.safetensors')
    (checkpoint / 'model.safetensors.index.json').unlink()
    assert embed('--instruction', 'red')['misses'] == 2


@pytest.mark.parametrize('arguments, message', [
    ([], 'no instruction; give --instruction'),
    (['--instruction', ' '], 'instruction'),
    (['--instruction', 'x' * 2001], '2001 characters'),
    (['--instructions', 'no.txt'], 'no.txt: cannot be read'),
    (['--instruction', 'red', '--encoder', '/no/folder'], '/no/folder: is no folder'),
    (['--instruction', 'red', '--dtype', 'int8'], 'int8'),
    (['--instruction', 'red', '--json', '/no/folder/x.json'], 'its folder does not exist'),
    (['--instruction', 'red', '--checkpoint', '/no/folder'], '/no/folder: is no folder'),
])
def test_a_wrong_input_is_an_input_error(embed, arguments, message):
    with pytest.raises(InputError, match=message) as error:
        embed(*arguments)
    assert '\n' not in str(error.value)


def test_a_cache_that_cannot_be_written_fails_before_the_encoder_is_loaded(
    embed, tmp_path, monkeypatch
):
    (tmp_path / 'cache').write_text('a file where the folder should be')
    monkeypatch.setattr('tr_vam_ros.vam.reason_encoder.ReasonEncoder.__init__', no_encoder)
    with pytest.raises(InputError, match='cache: cannot be written'):
        embed('--instruction', 'red')


def test_a_disk_that_fills_up_meanwhile_is_an_input_error(embed, monkeypatch):
    def full(*_arguments):
        raise OSError('no space left on device')

    monkeypatch.setattr('tr_vam_ros.vam.text_cache.os.replace', full)
    with pytest.raises(InputError, match='2 contexts could not be written'):
        embed('--instruction', 'red')


def test_a_model_of_words_needs_no_embedding(embed, tmp_path):
    words = save_checkpoint(tmp_path / 'words', text={})
    with pytest.raises(InputError, match="text.encoder is 'words', which needs no cache"):
        embed('--instruction', 'red', checkpoint=words)


def spoil_index(folder):
    (folder / 'model.safetensors.index.json').write_text('{}')


def spoil_shape(folder):
    for shard in folder.glob('model-00001*'):
        save_file({'text.projection.0.weight': torch.zeros(3, 3)}, shard)


@pytest.mark.parametrize('spoil, message', [
    (lambda folder: (folder / 'config.json').write_text('{'), 'config.json: cannot be read'),
    (lambda folder: (folder / 'config.json').write_text('{}'), 'statistics.json: cannot be read'),
    (lambda folder: [s.unlink() for s in folder.glob('model-00001*')], 'weight cannot be read'),
    (spoil_index, 'no weight_map'),
    (spoil_shape, 'does not fit its configuration'),
    (lambda folder: (folder / 'text_cache.safetensors').write_bytes(b'x'), 'text_cache.*remove it'),
])
def test_a_damaged_checkpoint_is_an_input_error(embed, checkpoint, spoil, message):
    spoil(checkpoint)
    with pytest.raises(InputError, match=message) as error:
        embed('--instruction', 'red')
    assert '\n' not in str(error.value)
