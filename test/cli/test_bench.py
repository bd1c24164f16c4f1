import json

import pytest

from tr_vam_ros.cli import bench
from tr_vam_ros.errors import InputError

SMALL = 'extends: tiny_libero\nname: small\nhead: {layers: 2, tr_layer: 1, euler_steps: 2}\n'


def test_a_bench_of_a_preset_prints_a_table_and_leaves_json_and_picture(tmp_path, capsys):
    (tmp_path / 'small.yaml').write_text(SMALL)
    files = tmp_path / 'b.json', tmp_path / 'b.png'
    code = bench.main([
        'replan', '--preset', str(tmp_path / 'small.yaml'), '--repetitions', '1',
        '--precision', 'float32', '--cases', 'unguided', 'unguided without prefix cache',
        '--json', str(files[0]), '--picture', str(files[1]),
    ])
    assert code == 0
    printed = capsys.readouterr().out
    assert 'prefix cache' in printed and 'peak memory' in printed
    result = json.loads(files[0].read_text())
    assert [case['name'] for case in result['cases']] == [
        'unguided', 'unguided without prefix cache'
    ]
    assert result['precision'] == 'float32' and result['peak_memory_bytes'] > 1e8
    assert files[1].read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('arguments, message', [
    (['head', '--repetitions', '0'], 'repetitions 0'),
    (['head', '--threads', '0'], 'threads 0'),
    (['replan', '--json', '/nowhere/b.json'], '/nowhere/b.json'),
    (['replan', '--preset', 'huge'], "unknown preset 'huge'"),
    (['replan', '--precision', 'float8'], 'float8'),
])
def test_a_wrong_option_is_an_input_error(arguments, message):
    with pytest.raises(InputError, match=message):
        bench.main(arguments)


def test_the_instruction_of_a_bench_needs_no_text_encoder_and_leaves_no_file(
    tmp_path, monkeypatch
):
    from tr_vam_ros.bench.random_policy import random_policy
    from tr_vam_ros.bench.replan import INSTRUCTION

    preset = tmp_path / 'reason.yaml'
    preset.write_text(
        SMALL + 'text: {encoder: cosmos_reason1, embed_dim: 64, max_words: 8}\n'
    )
    temporary = tmp_path / 'temporary'
    temporary.mkdir()
    monkeypatch.setattr('tempfile.tempdir', str(temporary))
    with random_policy(str(preset), 'bfloat16', 'bfloat16') as policy:
        policy.reset_episode(INSTRUCTION, 'episode')
        assert str(next(policy.backbone.transformer.parameters()).dtype) == 'torch.bfloat16'
        assert policy._context.shape == (1, 8, policy.config.transformer.text_embed_dim)
        assert list(temporary.iterdir())
    assert not list(temporary.iterdir())
