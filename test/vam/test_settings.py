import json

import pytest

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.recorded_scales import read_scales
from tr_vam_ros.vam.settings import with_settings


def test_each_setting_replaces_its_value_and_nothing_else(config):
    changed = with_settings(
        config, ['guidance.cap=1', 'video.extract_index=3', 'head.adarms_scope=all']
    )
    expected = config.to_mapping()
    expected['guidance']['cap'] = 1.0
    expected['video']['extract_index'] = 3
    expected['head']['adarms_scope'] = 'all'
    assert changed.to_mapping() == expected
    assert with_settings(config, []) is config


@pytest.mark.parametrize('setting, message', [
    ('cap=1', 'section.key=value'),
    ('guidance.cap', 'section.key=value'),
    ('guidance..cap=1', 'section.key=value'),
    ('guidance.cap=[', 'not YAML'),
    ('guidance.cup=1', 'unknown key cup'),
    ('guiding.cap=1', 'unknown key guiding'),
    ('guidance.cap=high', "got 'high', expected float"),
    ('guidance.null_text=none', 'zeros_before_projection'),
    ('guidance.branch_noise=shared', 'common, independent'),
    ('head.adarms_scope=some', 'suffix or all'),
    ('head.tr_layer=99', '1 to 6'),
    ('text.encoder=clip', 'words, cosmos_reason1'),
    ('image.encode_width=10', 'both'),
    ('name=other', 'section.key=value'),
])
def test_a_bad_setting_is_an_input_error_that_names_it(config, setting, message):
    with pytest.raises(InputError, match=message):
        with_settings(config, [setting])


def test_scales_come_from_a_list_or_from_a_demo(tmp_path):
    file = tmp_path / 'scales.json'
    file.write_text('[0, 0.5, 2]')
    assert read_scales(file) == (0.0, 0.5, 2.0)
    episodes = [{'replans': [{'scale': 0.0}, {'scale': 1.5}]}, {'replans': [{'scale': 0.25}]}]
    file.write_text(json.dumps({'seed': 0, 'episodes': episodes}))
    assert read_scales(file) == (0.0, 1.5, 0.25)


@pytest.mark.parametrize('content', [None, '{', '{"a": 1}', '["x"]', '[true]', '3', '{"episodes": 1}'])
def test_a_file_without_scales_is_an_input_error(tmp_path, content):
    file = tmp_path / 'scales.json'
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=r"scales.json.*demo --json"):
        read_scales(file)
