"""Which OpenGL MuJoCo draws with, chosen before it is first imported.

MuJoCo reads MUJOCO_GL once, at import, and falls back to a windowed backend that fails without a
display. So everything under `sim/` takes the module from here: `mujoco = import_mujoco()`.
"""

from __future__ import annotations

import ctypes
import glob
import importlib
import os
import sys
from types import ModuleType

from tr_vam_ros.errors import InputError

VARIABLE = 'MUJOCO_GL'
# Mesa's software renderer starts a thread per core; for pictures this small they cost more than
# they bring, and the policy needs the core.
_MESA_THREADS = ('LP_NUM_THREADS', '1')
_EGL = ('libEGL.so.1', 'libEGL.so')
_OSMESA = ('libOSMesa.so.8', 'libOSMesa.so.6', 'libOSMesa.so')
_GPU_FILES = ('/dev/dri/renderD*', '/dev/nvidia[0-9]*')
REMEDY = (
    'run apt-get install libosmesa6 libegl1 libgl1 libgl1-mesa-dri, '
    f'or set {VARIABLE} to a backend that works here (egl, osmesa, glfw)'
)


def choose_backend() -> str:
    """'egl' where a GPU can be opened, else 'osmesa', else EGL's software renderer.

    A library counts when it loads. Raises InputError, with the remedy, when neither does.
    """
    gpu = any(
        os.access(path, os.R_OK | os.W_OK) for pattern in _GPU_FILES for path in glob.glob(pattern)
    )
    if gpu and _loads(_EGL):
        return 'egl'
    if _loads(_OSMESA):
        return 'osmesa'
    if _loads(_EGL):
        return 'egl'
    raise InputError(f'no OpenGL library for the simulated cameras (EGL or OSMesa): {REMEDY}')


def import_mujoco() -> ModuleType:
    """MuJoCo, with MUJOCO_GL as the user set it or as `choose_backend` finds.

    Raises InputError when the user's value is none of MuJoCo's or nothing can draw.
    """
    os.environ.setdefault(*_MESA_THREADS)
    if 'mujoco' not in sys.modules and not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = choose_backend()
    try:
        return importlib.import_module('mujoco')
    except (RuntimeError, ImportError, AttributeError) as error:
        # AttributeError: how PyOpenGL says that the library is not there.
        raise _cannot_draw(error) from error


def open_renderer(model, width: int, height: int):
    """A mujoco.Renderer of `width` x `height` pixels; raises InputError when there is no OpenGL.

    The model's offscreen buffer is set to the same size: a larger one is cleared at each frame.
    """
    mujoco = import_mujoco()
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
    try:
        return mujoco.Renderer(model, height, width)
    except Exception as error:  # each backend has its own exception types
        raise _cannot_draw(error) from error


def _cannot_draw(error: Exception) -> InputError:
    value = os.environ.get(VARIABLE, '')
    return InputError(f'{VARIABLE}={value!r}: MuJoCo cannot draw with it ({error}); {REMEDY}')


def _loads(names: tuple[str, ...]) -> bool:
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False
