"""`./tr-vam` on a machine that has nothing of ours yet: minutes, so only with `test --all`."""

import subprocess
import time

import pytest

from tr_vam_ros.cli.supervisor import REPOSITORY

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp('clone') / 'tr_vam_ros'
    subprocess.run(['git', 'clone', '-q', str(REPOSITORY), str(folder)], check=True)
    return folder


def tr_vam(folder, *arguments, timeout=1200) -> subprocess.CompletedProcess:
    environment = {'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'}
    import os

    kept = {k: v for k, v in os.environ.items() if k.startswith(('PIP_', 'HOME', 'LANG', 'SSL_'))}
    return subprocess.run(
        ['./tr-vam', *arguments],
        cwd=folder,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_doctor_on_a_bare_clone_says_what_is_missing_and_installs_nothing(clone):
    answer = tr_vam(clone, 'doctor')
    assert answer.returncode == 1
    assert 'no environment' in answer.stdout and 'not installed: ActionChunk' in answer.stdout
    assert not (clone / '.venv').exists()


def test_two_first_starts_at_once_make_one_whole_environment(clone):
    clean = ['env', '-u', 'AMENT_PREFIX_PATH', '-u', 'PYTHONPATH', '-u', 'LD_LIBRARY_PATH',
             '-u', '_ROS_WHEELS_BOOTSTRAP_COMPLETE', 'PATH=/usr/local/bin:/usr/bin:/bin']  # fmt: skip
    first = subprocess.Popen([*clean, './tr-vam', 'python', '-c', 'print(1)'], cwd=clone)
    second = tr_vam(clone, 'python', '-c', 'from tr_vam_ros.msg import TemporalRatio; print(2)')
    assert first.wait(1200) == 0
    assert second.returncode == 0, second.stderr
    assert 'waiting for it' in second.stderr or 'building the messages' in second.stderr
    assert tr_vam(clone, 'doctor').returncode == 0


def test_a_later_start_adds_less_than_two_seconds(clone):
    begin = time.monotonic()
    assert tr_vam(clone, 'python', '-c', '').returncode == 0
    assert time.monotonic() - begin < 2.0


def test_deleted_messages_are_named_by_doctor_and_healed_by_the_next_command(clone):
    (folder,) = clone.glob('.venv/lib/python3.*/site-packages/tr_vam_ros/msg')
    subprocess.run(['rm', '-r', str(folder)], check=True)
    answer = tr_vam(clone, 'doctor')
    assert answer.returncode == 1
    assert 'not installed: ActionChunk' in answer.stdout and './tr-vam' in answer.stdout
    assert not folder.exists()
    assert tr_vam(clone, 'python', '-c', 'from tr_vam_ros.msg import Episode').returncode == 0
    assert tr_vam(clone, 'doctor').returncode == 0


def test_an_interrupted_set_up_heals(clone):
    (clone / '.tr-vam' / 'environment').unlink()
    (package,) = clone.glob('.venv/lib/python3.*/site-packages/tyro')
    subprocess.run(['rm', '-r', str(package)], check=True)
    # pip trusts its records: what an interrupted installation leaves has none.
    for record in clone.glob('.venv/lib/python3.*/site-packages/tyro-*.dist-info'):
        subprocess.run(['rm', '-r', str(record)], check=True)
    assert tr_vam(clone, 'python', '-c', 'import tyro').returncode == 0
