"""The choice of the OpenGL backend."""

import os
import subprocess
import sys

import pytest

from tr_vam_ros.errors import InputError
from tr_vam_ros.sim import rendering


def libraries(monkeypatch, *there: str) -> None:
    def load(name):
        if not any(part in name for part in there):
            raise OSError(name)

    monkeypatch.setattr(rendering.ctypes, 'CDLL', load)


def gpu(monkeypatch, there: bool) -> None:
    monkeypatch.setattr(rendering.glob, 'glob', lambda p: ['/dev/dri/renderD128'] if there else [])
    monkeypatch.setattr(rendering.os, 'access', lambda path, mode: there)


@pytest.mark.parametrize(
    ('has_gpu', 'there', 'backend'),
    [
        (True, ('EGL', 'OSMesa'), 'egl'),
        (True, ('OSMesa',), 'osmesa'),
        (False, ('EGL', 'OSMesa'), 'osmesa'),
        (False, ('EGL',), 'egl'),
    ],
)
def test_a_gpu_is_used_through_egl_and_osmesa_comes_next(monkeypatch, has_gpu, there, backend):
    gpu(monkeypatch, has_gpu)
    libraries(monkeypatch, *there)
    assert rendering.choose_backend() == backend


def test_without_any_library_the_packages_to_install_are_named(monkeypatch):
    gpu(monkeypatch, True)
    libraries(monkeypatch)
    with pytest.raises(InputError, match='apt-get install libosmesa6 libegl1'):
        rendering.choose_backend()


@pytest.mark.parametrize(('value', 'expected'), [('osmesa', 'osmesa'), ('', 'egl osmesa')])
def test_the_users_choice_of_backend_stands(value, expected):
    code = (
        'import os; from tr_vam_ros.sim.rendering import import_mujoco; import_mujoco();'
        'print(os.environ["MUJOCO_GL"])'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'MUJOCO_GL': value},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() in expected.split()


def test_a_backend_that_mujoco_does_not_know_is_one_line_with_the_remedy():
    code = 'from tr_vam_ros.sim.rendering import import_mujoco; import_mujoco()'
    done = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'MUJOCO_GL': 'vulkan'},
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert 'InputError' in last and 'vulkan' in last and 'apt-get install' in last
