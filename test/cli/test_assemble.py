"""`tr-vam assemble` as a user types it."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from test.assembly.sources import Pi0, cosmos_transformer, save_backbone, wan_vae
from tr_vam_ros.cli import assemble
from tr_vam_ros.cli.supervisor import REPOSITORY
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig


@pytest.fixture(scope='module')
def config():
    return VamConfig.from_yaml('tiny_yam')


@pytest.fixture(scope='module')
def backbone(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp('public') / 'cosmos'
    return save_backbone(folder, cosmos_transformer(config), wan_vae(config))


@pytest.fixture
def run(backbone, tmp_path):
    def run(*arguments, out='ck'):
        return assemble.main([
            '--backbone', str(backbone), '--preset', 'tiny_yam', '--out', str(tmp_path / out),
            *map(str, arguments),
        ])
    return run


def test_it_writes_a_checkpoint_and_says_what_was_taken_and_what_was_not(
    run, config, tmp_path, capsys
):
    expert = Pi0(config.head, 'pi0').save(tmp_path / 'pi0')
    assert run('--head', expert, '--json', tmp_path / 'report.json') == 0
    output = capsys.readouterr().out
    for line in (
        'taken: transformer.transformer_blocks.*.attn1.to_q.weight -> '
        'backbone.transformer.transformer_blocks.*.attn1.to_q.weight (4)',
        'taken: transformer.crossattn_proj.*.weight -> text.projection.*.weight',
        'taken: state_proj.weight -> head.state_in.weight',
        'not taken: action_time_mlp_in.weight: here the timestep modulates the norms',
        'fresh: head.video_tokens.projection.weight: random: pi0 sees no video features',
        'action head: pi0 action expert of pi0, ',
    ):
        assert line in output
    summary = output.strip().splitlines()[-1]
    stored = load_file(tmp_path / 'ck' / 'model.safetensors')
    report = json.loads((tmp_path / 'report.json').read_text())
    assert f'{sum(t.numel() for t in stored.values()) / 1e6:.1f} million parameters' in summary
    assert f'{len(report["taken"])} tensors taken, {len(report["not_taken"])} not' in summary
    assert str(tmp_path / 'report.json') in summary
    assert {entry['target'] for entry in report['taken'] + report['fresh']} == stored.keys()


def test_it_writes_bfloat16_and_replaces_only_where_that_is_allowed(run, tmp_path):
    assert run() == 0
    with pytest.raises(InputError, match='holds a checkpoint'):
        run('--dtype', 'bfloat16')
    assert run('--dtype', 'bfloat16', '--overwrite') == 0
    stored = load_file(tmp_path / 'ck' / 'model.safetensors')
    assert stored['backbone.transformer.proj_out.weight'].dtype == torch.bfloat16


@pytest.mark.parametrize('arguments, message', [
    (['--adapters', 'merged'], 'there is no adapter; give one with --adapter'),
    (['--json', 'no/such/folder/a.json'], 'its folder does not exist; make it first'),
    (['--json', '.'], 'is a folder; name a file'),
    (['--head', 'nowhere'], 'nowhere: no such folder'),
    (['--preset', 'tiny'], "unknown preset 'tiny'"),
    (['--preset', 'cosmos2b_yam'], 'num_layers is 4, the preset has 28'),
])
def test_a_wrong_argument_is_an_input_error_and_leaves_nothing(run, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        run(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('arguments', [['--head'], ['--adapters', 'both'], ['--colour', 'red']])
def test_what_cannot_be_parsed_ends_with_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        assemble.main(arguments)
    assert end.value.code == 2


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as end:
        assemble.main(['--help'])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for option in ('--backbone', '--preset', '--out', '--head', '--adapter ', '--adapters',
                   '--dtype', '--seed', '--overwrite', '--local-files-only', '--json'):  # fmt: skip
        assert option in text


def test_a_wrong_option_is_answered_without_loading_torch():
    code = (
        'import sys; from tr_vam_ros.cli import assemble\n'
        'from tr_vam_ros.errors import InputError\n'
        'try: assemble.main(["--backbone", "a", "--preset", "b", "--out", "c"])\n'
        'except InputError: sys.exit("torch" in sys.modules)'
    )
    environment = {**os.environ, 'PYTHONPATH': str(REPOSITORY)}
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60, env=environment)
