"""`tr-vam doctor`: looks at the installation and says what to do. Installs and builds nothing.

Needs the standard library alone, so that it runs where nothing is installed yet. Each check that
imports something runs in an interpreter of its own: what crashes there is a finding, not an end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = REPOSITORY / '.venv'
HEAL = 'any other command, for example ./tr-vam test, installs it'
PROBE_SECONDS = 60
NEEDED_DISK = 3e9  # the environment, and room to build
NEEDED_SHM = 16e6  # eight processes with Fast DDS's default segments and a little air


@dataclass
class Finding:
    check: str
    ok: bool
    text: str
    remedy: str = ''


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='tr-vam doctor', description=__doc__.splitlines()[0])
    parser.add_argument('--json', type=Path, help='file to write the findings to')
    options = parser.parse_args(arguments)
    findings = []
    for check in CHECKS:
        finding = check()
        findings.append(finding)
        mark = 'ok  ' if finding.ok else 'FAIL'
        print(f'{mark} {finding.check:10} {finding.text}', flush=True)
        if finding.remedy:
            print(f'                -> {finding.remedy}', flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(f) for f in findings], indent=1) + '\n')
    failed = sum(not finding.ok for finding in findings)
    print('all is well' if not failed else f'{failed} of {len(findings)} checks failed')
    return 1 if failed else 0


def python() -> Finding:
    version = sys.version_info
    text = f'Python {version.major}.{version.minor}.{version.micro}'
    if not (3, 11) <= version < (3, 14):
        return Finding('python', False, text, 'install Python 3.11, 3.12 or 3.13')
    if not _interpreter():
        return Finding('python', False, f'{text}, but no environment in .venv', HEAL)
    return Finding('python', True, f'{text}, environment .venv')


def ros() -> Finding:
    if os.environ.get('ROS_DISTRO'):
        source = f'ROS 2 {os.environ["ROS_DISTRO"]} is sourced (this half is untested so far)'
    else:
        source = 'ROS 2 Jazzy wheels'
    result = _probe('import rclpy, std_msgs.msg; from rclpy.node import Node')
    if result is None:
        return Finding('ros', True, source)
    return Finding('ros', False, f'{source}: {result}', HEAL)


def messages() -> Finding:
    names = sorted(path.stem for path in (REPOSITORY / 'msg').glob('*.msg'))
    folders = [f for f in ENVIRONMENT.glob('lib/python3.*/site-packages/tr_vam_ros/msg')]
    installed = {path.stem for folder in folders for path in folder.glob('_*.py')}
    # The recorder writes the definitions into the bag.
    defined = {path.stem for path in (ENVIRONMENT / 'share/tr_vam_ros/msg').glob('*.msg')}
    missing = [n for n in names if f'_{_snake(n)}' not in installed or n not in defined]
    if not missing:
        result = _probe(f'from tr_vam_ros.msg import {", ".join(names)}; {names[0]}()')
        if result is None:
            return Finding('messages', True, ', '.join(names))
        return Finding('messages', False, result, 'remove .tr-vam/messages, then ' + HEAL)
    return Finding(
        'messages',
        False,
        f'not installed: {", ".join(missing)}',
        'any other command builds them, for example ./tr-vam test',
    )


def dds() -> Finding:
    result = _probe(_ROUND_TRIP)
    if result is None:
        return Finding('dds', True, 'a message went through and came back the same')
    return Finding(
        'dds',
        False,
        result,
        'is another program using the ports of this ROS domain? is /dev/shm full? '
        'set another ROS_DOMAIN_ID and try again',
    )


def rendering() -> Finding:
    result = _probe(_RENDER)
    if result is None:
        return Finding('rendering', True, 'MuJoCo draws without a screen')
    return Finding(
        'rendering',
        False,
        result,
        'apt-get install libosmesa6 libegl1 libgl1 libgl1-mesa-dri, or set MUJOCO_GL=osmesa',
    )


def torch() -> Finding:
    code = (
        'import torch; t = torch.ones(2) @ torch.ones(2); assert float(t) == 2; '
        'print(torch.__version__, "on", torch.cuda.get_device_name() '
        'if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads")'
    )
    output: list[str] = []
    result = _probe(code, output)
    if result is None:
        return Finding('torch', True, output[-1] if output else 'works')
    return Finding('torch', False, result, HEAL)


def disk() -> Finding:
    free = shutil.disk_usage(REPOSITORY).free
    text = f'{free / 1e9:.0f} GB free'
    if free < NEEDED_DISK:
        return Finding('disk', False, text, f'free {NEEDED_DISK / 1e9:.0f} GB; bags need more')
    return Finding('disk', True, text)


def shared_memory() -> Finding:
    folder = Path('/dev/shm')
    if not folder.is_dir():
        return Finding('shm', False, 'no /dev/shm', 'mount a tmpfs there: Fast DDS needs it')
    usage = shutil.disk_usage(folder)
    text = f'/dev/shm {usage.total / 1e6:.0f} MB, {usage.free / 1e6:.0f} MB free'
    if usage.free < NEEDED_SHM:
        return Finding(
            'shm',
            False,
            text,
            'remove /dev/shm/fastrtps_* of ended programs; in Docker add --shm-size=512m',
        )
    return Finding('shm', True, text)


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    ros,
    messages,
    dds,
    rendering,
    torch,
    disk,
    shared_memory,
)

_ROUND_TRIP = '''
import os, time
os.environ.setdefault("ROS_DOMAIN_ID", "101")
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
import rclpy
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import String
rclpy.init()
node = rclpy.create_node("doctor")
heard = []
node.create_subscription(String, "/tr_vam/doctor", heard.append, 10)
publisher = node.create_publisher(String, "/tr_vam/doctor", 10)
text = f"{os.getpid()}"
end = time.monotonic() + 10
while not any(m.data == text for m in heard) and time.monotonic() < end:
    publisher.publish(String(data=text))
    rclpy.spin_once(node, timeout_sec=0.05)
node.destroy_node()
rclpy.shutdown()
assert any(m.data == text for m in heard), "no message came back within 10 s"
'''

_RENDER = '''
import tr_vam_ros.sim.rendering as rendering
mujoco = rendering.import_mujoco()
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 2'/><geom size='.3' rgba='1 0 0 1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(data)
assert renderer.render().any(), "the picture is black"
renderer.close()
'''


def _interpreter() -> str:
    path = ENVIRONMENT / 'bin' / 'python'
    return str(path) if os.access(path, os.X_OK) else ''


def _probe(code: str, output: list[str] | None = None) -> str | None:
    """Runs code in the environment; None when it works, else one line of what went wrong."""
    interpreter = _interpreter()
    if not interpreter:
        return 'the environment is not there yet'
    environment = {k: v for k, v in os.environ.items() if k != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    environment['PYTHONPATH'] = f'{REPOSITORY}:{environment.get("PYTHONPATH", "")}'.rstrip(':')
    prefix = environment.get('AMENT_PREFIX_PATH', '')
    environment['AMENT_PREFIX_PATH'] = f'{ENVIRONMENT}:{prefix}'.rstrip(':')
    try:
        done = subprocess.run(
            [interpreter, '-c', code],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f'no answer within {PROBE_SECONDS} s'
    if output is not None:
        output.extend(done.stdout.strip().splitlines())
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f'ended with code {done.returncode}'


def _snake(name: str) -> str:
    return re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower()


if __name__ == '__main__':
    sys.exit(main())
