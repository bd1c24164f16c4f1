import json
import subprocess
import sys

import pytest

from tr_vam_ros.cli import doctor


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A stand-in environment that holds every message but may be taken apart."""
    folder = tmp_path / 'lib/python3.11/site-packages/tr_vam_ros/msg'
    definitions = tmp_path / 'share/tr_vam_ros/msg'
    for made in (folder, definitions):
        made.mkdir(parents=True)
    for file, name in (
        ('action_chunk', 'ActionChunk'), ('episode', 'Episode'),
        ('executor_state', 'ExecutorState'), ('replan_request', 'ReplanRequest'),
        ('sim_event', 'SimEvent'), ('temporal_ratio', 'TemporalRatio'),
    ):  # fmt: skip
        (folder / f'_{file}.py').touch()
        (definitions / f'{name}.msg').touch()
    monkeypatch.setattr(doctor, 'ENVIRONMENT', tmp_path)
    return folder


def test_in_this_environment_every_check_passes(tmp_path, capfd):
    file = tmp_path / 'doctor.json'
    assert doctor.main(['--json', str(file)]) == 0
    findings = json.loads(file.read_text())
    assert [f['check'] for f in findings] == [
        'python', 'ros', 'messages', 'dds', 'rendering', 'torch', 'disk', 'shm'
    ]  # fmt: skip
    assert all(finding['ok'] for finding in findings)
    assert 'all is well' in capfd.readouterr().out


def test_a_missing_message_is_named_with_the_remedy_and_the_exit_is_1(installed, capfd):
    (installed / '_temporal_ratio.py').unlink()
    (installed / '_episode.py').unlink()
    finding = doctor.messages()
    assert not finding.ok
    assert finding.text == 'not installed: Episode, TemporalRatio'
    assert './tr-vam test' in finding.remedy
    assert doctor.main([]) == 1
    assert 'FAIL messages' in capfd.readouterr().out


def test_a_missing_definition_which_the_recorder_needs_is_named_too(installed):
    (installed.parents[4] / 'share/tr_vam_ros/msg/SimEvent.msg').unlink()
    assert doctor.messages().text == 'not installed: SimEvent'


def test_without_an_environment_it_says_how_to_get_one_and_makes_none(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, 'ENVIRONMENT', tmp_path / 'none')
    assert not doctor.python().ok and './tr-vam' in doctor.python().remedy
    assert not doctor.ros().ok
    assert not (tmp_path / 'none').exists()


def test_a_check_that_crashes_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, '_RENDER', 'import os; os.abort()')
    finding = doctor.rendering()
    assert not finding.ok and 'libosmesa6' in finding.remedy


def test_a_check_that_hangs_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, 'PROBE_SECONDS', 0.5)
    monkeypatch.setattr(doctor, '_ROUND_TRIP', 'while True: pass')
    assert 'no answer within 0.5 s' in doctor.dds().text


@pytest.mark.parametrize(
    ('name', 'attribute', 'words'),
    [('disk', 'NEEDED_DISK', 'free 1000000000000 GB'), ('shared_memory', 'NEEDED_SHM', 'shm-size')],
)
def test_too_little_room_is_a_finding(monkeypatch, name, attribute, words):
    monkeypatch.setattr(doctor, attribute, 1e21)
    finding = getattr(doctor, name)()
    assert not finding.ok and words in finding.remedy


def test_it_runs_on_the_standard_library_alone():
    code = (
        'import sys, importlib.util; sys.modules["numpy"] = sys.modules["rclpy"] = None; '
        'import tr_vam_ros.cli.doctor'
    )
    subprocess.run([sys.executable, '-c', code], check=True, cwd=doctor.REPOSITORY)
