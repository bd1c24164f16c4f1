"""The bring-ups against the nodes: executables, parameters, topics exist and agree. No launch."""

import dataclasses
import importlib
import os
import xml.etree.ElementTree as ElementTree

import pytest

from tr_vam_ros.bringup import BRINGUPS, NAMESPACE, yam_sim
from tr_vam_ros.cli.supervisor import REPOSITORY
from tr_vam_ros.errors import InputError
from tr_vam_ros.nodes import topics
from tr_vam_ros.nodes.parameters import parameter

ALL = [spec for make in BRINGUPS.values() for spec in make(record='bag', clock='lockstep')]


@pytest.mark.parametrize('spec', ALL, ids=lambda spec: spec.executable)
def test_every_executable_and_each_of_its_parameters_exist(spec):
    script = REPOSITORY / 'scripts' / spec.executable
    assert os.access(script, os.X_OK)
    assert f'tr_vam_ros.nodes.{spec.executable} import main' in script.read_text()
    assert f'scripts/{spec.executable}' in (REPOSITORY / 'CMakeLists.txt').read_text()
    module = importlib.import_module(f'tr_vam_ros.nodes.{spec.executable}')
    known = {field.name: field for field in dataclasses.fields(module.Parameters)}
    for name, value in spec.parameters.items():
        if name == 'use_sim_time':
            continue
        default = known[name].default
        assert type(value) is type(default), name
        choices = known[name].metadata['choices']
        assert not choices or value in choices


def test_every_message_is_built_and_installed():
    text = (REPOSITORY / 'CMakeLists.txt').read_text()
    for path in (REPOSITORY / 'msg').glob('*.msg'):
        assert f'msg/{path.name}' in text


@pytest.mark.parametrize('path', sorted((REPOSITORY / 'msg').glob('*.msg')), ids=lambda p: p.stem)
def test_every_field_of_a_message_has_a_comment(path):
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith('#') and '=' not in line.split('#')[0]:
            assert '#' in line, line


def test_the_namespace_is_the_same_everywhere():
    assert NAMESPACE == topics.NAMESPACE == '/tr_vam'


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'task': 5}, 'task 5'),
        ({'guidance': 'more'}, "guidance 'more'.*off, flat, adaptive"),
        ({'clock': 'sundial'}, "clock 'sundial'"),
        ({'mode': 'parallel'}, "mode 'parallel'.*sync, async"),
        ({'mode': 'async', 'clock': 'lockstep'}, 'mode async.*real_time'),
        ({'dry_run': True, 'clock': 'lockstep'}, 'dry_run.*real_time'),
        ({'seed': -3}, 'seed -3'),
    ],
)
def test_a_value_nobody_has_is_refused_with_the_choices(options, words):
    with pytest.raises(InputError, match=words):
        yam_sim(**options)


def test_parameters_survive_the_command_line_with_their_types():
    (spec,) = [s for s in yam_sim(episode_seconds=20) if s.executable == 'chunk_executor']
    arguments = spec.arguments()
    assert 'episode_seconds:=20.0' in arguments
    assert 'simulated:=true' in arguments
    assert "instruction:='Throw away the fruits into the bin'" in arguments


def test_a_list_parameter_is_not_shared_between_nodes():
    @dataclasses.dataclass
    class Two:
        names: list = parameter(['a'], 'names')

    Two().names.append('b')
    assert Two().names == ['a']


def test_image_publishers_and_they_alone_get_the_larger_segment():
    specs = {spec.executable: spec for spec in yam_sim(record='bag')}
    with_profile = {name for name, spec in specs.items() if spec.environment}
    assert with_profile == {'yam_sim', 'camera_stack'}
    path = specs['yam_sim'].environment['FASTRTPS_DEFAULT_PROFILES_FILE']
    sizes = ElementTree.parse(path).findall('.//{*}segment_size')
    # Ten sets of frames and stacks, and all of them in Docker's 64 MB.
    assert [10 * 672 * 168 * 3 * 2 < int(size.text) <= 16 * 2**20 for size in sizes] == [True]
