import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import yaml

from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig
from tr_vam_ros.vam import config as config_module


@pytest.fixture
def document(tmp_path):
    """The preset as a mapping, and a way to read it back after a change."""
    folder = config_module._preset_folders()[0]
    data = yaml.safe_load((folder / 'tiny_yam.yaml').read_text())

    def read():
        path = tmp_path / 'changed.yaml'
        path.write_text(yaml.safe_dump(data))
        return VamConfig.from_yaml(path)

    return data, read


def test_preset_and_file_give_the_same_config(document, config):
    assert document[1]() == config


def test_random_weights_statistics_stand_at_the_robots_home_pose(config):
    for values in (config.statistics.proprio, config.statistics.action):
        np.testing.assert_array_equal(values.mean, yam.HOME)
        np.testing.assert_array_equal(values.std, np.full(yam.DOF, 0.01))


def test_tiny_yam_fits_the_embodiment_and_the_spec(config):
    assert (config.image.height, config.image.width) == (yam.IMAGE_HEIGHT, yam.IMAGE_WIDTH)
    assert config.head.horizon == yam.HORIZON
    assert config.head.proprio_dim == config.head.action_dim == yam.DOF
    assert config.latent_size == (24, 84)
    assert config.feature_grid == (4, 21)  # 84 tokens a frame
    assert config.video.extract_index == 2
    assert (config.guidance.language_weight, config.guidance.plan_weight) == (0.1, 0.3)


def test_latent_size_of_the_full_model_pads_168_rows_to_176(config):
    transformer = dataclasses.replace(config.transformer, patch_size=(1, 2, 2))
    full = dataclasses.replace(config, transformer=transformer)
    assert full.latent_size == (22, 84)
    assert full.feature_grid == (11, 42)


def test_unknown_preset_lists_the_available_ones():
    with pytest.raises(InputError, match="unknown preset 'tiny'.*tiny_yam"):
        VamConfig.from_yaml('tiny')


def test_a_preset_is_found_in_an_installed_workspace(tmp_path, monkeypatch, config):
    folder = tmp_path / 'share' / 'tr_vam_ros' / 'config' / 'vam'
    folder.mkdir(parents=True)
    source = config_module._preset_folders()[0] / 'tiny_yam.yaml'
    (folder / 'installed.yaml').write_text(source.read_text())
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path))
    assert VamConfig.from_yaml('installed') == config


@pytest.mark.parametrize('content', [None, 'a: [', '- 1', b'\xff\xfe\xff'])
def test_an_unreadable_file_is_an_input_error(tmp_path, content):
    path = tmp_path / 'bad.yaml'
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match='bad.yaml'):
        VamConfig.from_yaml(path)


@pytest.mark.parametrize('section, key, value, message', [
    ('video', 'framse', 5, 'unknown key framse'),
    ('video', 'frames', 1, 'frames is 1'),
    ('video', 'frames', True, 'got True, expected int'),
    ('video', 'frames', 5.0, 'got 5.0, expected int'),
    ('video', 'shift', 'five', "got 'five', expected float"),
    ('video', 'shift', float('nan'), 'finite'),
    ('video', 'plan_frames', 4, 'at least frames'),
    ('video', 'extract_index', 6, '0 to 5'),
    ('video', 'feature_block', 5, '4 blocks'),
    ('video', 'pad', 'none', 'pixels or latent'),
    ('transformer', 'patch_size', [1, 4], 'expected 3'),
    ('transformer', 'patch_size', [2, 4, 4], '1 in time'),
    ('transformer', 'in_channels', 17, r'out_channels \+ 2'),
    ('vae', 'patch_size', 4, 'needs 48'),
    ('vae', 'z_dim', 8, 'must equal'),
    ('head', 'tr_layer', 7, '1 to 6'),
    ('head', 'query_heads', 0, 'greater than 0'),
    ('head', 'key_value_heads', 3, 'multiple'),
    ('head', 'action_dim', 40, 'padded_dim'),
    ('head', 'action_dim', 7, 'statistics.action'),
    ('head', 'action_attention', 'full', 'bidirectional or causal'),
    ('guidance', 'cap', -1.0, '0 or more'),
    ('text', 'vocabulary', ['bin', 'bin'], 'twice'),
    ('statistics', 'proprio', {'mean': [0.0], 'std': [0.0]}, 'greater than 0'),
    ('statistics', 'proprio', None, 'mapping'),
])
def test_a_bad_value_is_an_input_error_that_names_it(document, section, key, value, message):
    data, read = document
    data[section][key] = value
    with pytest.raises(InputError, match=message):
        read()


def test_a_missing_section_is_an_input_error(document):
    data, read = document
    del data['head']
    with pytest.raises(InputError, match='missing key head'):
        read()


def test_configuration_needs_no_torch():
    code = 'import sys, tr_vam_ros.vam; sys.exit("torch" in sys.modules)'
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)


def test_a_file_stands_on_the_one_it_extends(tmp_path, config):
    (tmp_path / 'one.yaml').write_text('extends: tiny_yam\nhead: {horizon: 10}\n')
    (tmp_path / 'two.yaml').write_text('extends: one.yaml\nname: two\nvideo: {shift: 3.0}\n')
    two = VamConfig.from_yaml(tmp_path / 'two.yaml')
    assert (two.name, two.head.horizon, two.video.shift) == ('two', 10, 3.0)
    assert two.transformer == config.transformer


@pytest.mark.parametrize('extends, message', [
    ('me.yaml', 'extends itself'), ('5', 'expected a preset or a file'), ('nobody', 'unknown preset'),
])
def test_a_bad_base_is_an_input_error(tmp_path, extends, message):
    (tmp_path / 'me.yaml').write_text(f'extends: {extends}\n')
    with pytest.raises(InputError, match=message):
        VamConfig.from_yaml(tmp_path / 'me.yaml')


def test_a_config_survives_json(config):
    import json

    data = json.loads(json.dumps(config.to_mapping()))
    assert VamConfig.from_mapping(data, 'config.json') == config


@pytest.mark.parametrize('preset, frame_tokens, horizon', [
    ('cosmos2b_yam', 126, 50), ('cosmos2b_yam_literal', 462, 50), ('cosmos2b_libero', 98, 17),
    ('tiny_yam', 84, 50), ('tiny_libero', 32, 17),
])
def test_presets_have_the_token_counts_of_the_spec(preset, frame_tokens, horizon):
    config = VamConfig.from_yaml(preset)
    group = config.head.feature_group
    rows, columns = (-(-side // group) for side in config.feature_grid)
    assert (config.name, rows * columns, config.head.horizon) == (preset, frame_tokens, horizon)
