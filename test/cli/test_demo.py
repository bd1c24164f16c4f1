"""The whole graph as a user starts it: processes, DDS, physics, model, files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from test.ros import wait_for
from tr_vam_ros.cli.shared_memory import leftover_segments, segments
from tr_vam_ros.cli.supervisor import REPOSITORY

pytestmark = pytest.mark.timeout(400)


def start(*arguments, **options) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != 'ROS_DOMAIN_ID'}
    environment['PYTHONPATH'] = str(REPOSITORY)
    environment |= options.pop('environment', {})
    return subprocess.Popen(
        [sys.executable, '-m', 'tr_vam_ros.cli.main', *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def run(*arguments, code: int = 0, **options) -> str:
    process = start(*arguments, **options)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output


def node_processes(marker: str) -> list[int]:
    """Processes of a demo's nodes, found by the parent that they were told to die with."""
    found = []
    for process in Path('/proc').glob('[0-9]*'):
        try:
            if f'TR_VAM_SUPERVISED={marker}'.encode() in (process / 'environ').read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_two_lockstep_runs_are_equal_but_for_their_milliseconds(tmp_path):
    results = []
    for number in range(2):
        file = tmp_path / f'{number}.json'
        run('demo', '--clock', 'lockstep', '--seconds', 6, '--episodes', 2, '--json', file)
        results.append(json.loads(file.read_text()))
    for result in results:
        for episode in result['episodes']:
            for replan in episode['replans']:
                assert replan.pop('milliseconds') > 0
    assert results[0] == results[1]
    first, second = results[0]['episodes']
    assert first['key'] == 'scene1/task1/seed0/ep0' and second['key'] == 'scene1/task1/seed0/ep1'
    assert len(first['replans']) >= 3 and len(second['replans']) >= 3
    assert first['replans'] != second['replans']
    assert results[0]['rejected'] == 0


def test_a_demo_moves_the_arms_and_leaves_json_video_and_bag(tmp_path):
    files = {name: tmp_path / name for name in ('out.json', 'out.mp4', 'bag')}
    output = run(
        'demo', '--task', 2, '--seconds', 12, '--json', files['out.json'],
        '--video', files['out.mp4'], '--record', files['bag'],
    )  # fmt: skip
    assert 'random' in output
    result = json.loads(files['out.json'].read_text())
    (episode,) = result['episodes']
    assert result['weights'].startswith('random') and result['rejected'] == 0
    assert episode['key'] == 'scene1/task2/seed0/ep0' and episode['outcome'] == 'time_out'
    assert len(episode['replans']) >= 2
    for replan in episode['replans']:
        assert np.isfinite([replan[n] for n in ('temporal_ratio', 'baseline', 'scale')]).all()
        assert replan['baseline'] == episode['replans'][0]['temporal_ratio']
        expected = max(0.0, min(2.0, replan['temporal_ratio'] / replan['baseline'] - 1))
        assert replan['scale'] == pytest.approx(expected, abs=1e-9)
        guided = ['conditional', 'null', 'plan'] if replan['scale'] > 0 else ['conditional']
        assert replan['branches'] == guided
    assert min(episode['path_length'].values()) >= 0.05

    with av.open(str(files['out.mp4'])) as video:
        frames = [frame.to_ndarray(format='rgb24') for frame in video.decode(video=0)]
    assert len(frames) > 100 and frames[0].shape == (504, 672, 3) and frames[-1].std() > 20

    recorded: dict[str, int] = {}
    ratios = []
    with AnyReader([files['bag']]) as reader:
        for connection, _, data in reader.messages():
            recorded[connection.topic] = recorded.get(connection.topic, 0) + 1
            message = reader.deserialize(data, connection.msgtype)
            if connection.topic == '/tr_vam/temporal_ratio':
                ratios.append(message.temporal_ratio)
        assert {c.topic for c in reader.connections} >= {'/tr_vam/set_instruction'}
    # Each once; the last may belong to a replan that the end of the episode cut off.
    expected = [r['temporal_ratio'] for r in episode['replans']]
    assert ratios[: len(expected)] == expected and len(ratios) <= len(expected) + 1
    for topic in ('action_chunk', 'replan_request', 'episode', 'executor_state', 'sim_events'):
        assert recorded[f'/tr_vam/{topic}'] >= 2, topic
    for topic in ('/joint_states', '/tr_vam/stacked_image', '/top/camera/color/image_raw'):
        assert recorded[topic] > 100, topic
    assert recorded['/left_yam_arm_controller/joint_trajectory'] >= 2


@pytest.mark.parametrize(('guidance', 'branches'), [('flat', 3), ('off', 1)])
def test_the_schedule_decides_how_many_branches_run(tmp_path, guidance, branches):
    file = tmp_path / 'out.json'
    run('demo', '--clock', 'lockstep', '--seconds', 4, '--guidance', guidance, '--json', file)
    replans = json.loads(file.read_text())['episodes'][0]['replans']
    assert len(replans) >= 2
    assert {len(replan['branches']) for replan in replans} == {branches}


def test_a_checkpoint_runs_like_the_weights_that_were_saved(tmp_path):
    from tr_vam_ros.vam import VamConfig, VideoActionPolicy

    config = VamConfig.from_yaml('tiny_yam')
    folder = VideoActionPolicy.from_config(config, seed=0).save_pretrained(tmp_path / 'policy')
    hashes = []
    for number, source in enumerate(([], ['--checkpoint', folder])):
        file = tmp_path / f'{number}.json'
        run('demo', '--clock', 'lockstep', '--seconds', 3, '--json', file, *source)
        result = json.loads(file.read_text())
        hashes.append([r['actions_sha256'] for r in result['episodes'][0]['replans']])
    assert hashes[0] == hashes[1] and hashes[0]
    assert result['weights'] == str(folder)


def test_a_replay_that_is_too_short_ends_the_episode_and_says_so(tmp_path):
    scales, file = tmp_path / 'scales.json', tmp_path / 'out.json'
    scales.write_text('[0.5]')
    output = run(
        'demo', '--clock', 'lockstep', '--seconds', 6, '--guidance', 'replay', '--replay', scales,
        '--set', 'guidance.plan_weight=0', '--json', file, code=1,
    )
    assert 'got replan 2, but the replay holds 1' in output
    (episode,) = json.loads(file.read_text())['episodes']
    assert episode['outcome'] == 'fault'
    assert [(r['scale'], r['branches']) for r in episode['replans']] == [
        (0.5, ['conditional', 'null'])
    ]


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('after', ['', 'armed'])
def test_an_interrupt_at_any_moment_leaves_no_process_and_no_shared_memory(after, number):
    before = segments()
    process = start('demo', '--seconds', 600)
    wait_for(lambda: node_processes(process.pid), 'the nodes start', 60)
    for line in process.stdout:
        if not after or after in line:
            break
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_for(lambda: not node_processes(process.pid), 'all nodes have ended', 10)
    left = segments() - before
    assert not left, sorted(path.name for path in left)


def test_the_nodes_end_when_the_demo_is_killed():
    before = segments()
    process = start('demo', '--seconds', 600)
    wait_for(lambda: len(node_processes(process.pid)) >= 4, 'the nodes start', 60)
    for line in process.stdout:
        if 'armed' in line:
            break
    process.kill()
    process.communicate(timeout=20)
    wait_for(lambda: not node_processes(process.pid), 'all nodes have ended', 20)
    for path in leftover_segments(before):  # a killed process cannot remove its own
        path.unlink(missing_ok=True)


def test_a_node_that_dies_ends_the_demo_and_is_named():
    process = start('demo', '--seconds', 600)
    for line in process.stdout:
        if 'armed' in line:
            break
    commands = {
        pid: Path(f'/proc/{pid}/cmdline').read_text().split('\0')
        for pid in node_processes(process.pid)
    }
    executor = next(p for p, c in commands.items() if 'tr_vam_ros.nodes.chunk_executor' in c)
    os.kill(executor, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert 'chunk_executor ended' in output


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (('--task', 3), 'task 3: needs scene 2'),
        (('--task', 99), 'task 99: unknown'),
        (('--guidance', 'strong'), "guidance: got 'strong'"),
        (('--preset', 'huge_yam'), 'tiny_yam'),
        (('--preset', 'tiny_libero'), 'choose a model made for the YAM'),
        (('--mode', 'async', '--clock', 'lockstep'), 'use clock real_time'),
        (('--set', 'guidance.cup=1'), 'unknown key cup'),
        (('--guidance', 'replay'), 'needs one or more'),
        (('--checkpoint', '/nowhere'), '/nowhere'),
        (('--seconds', 0), 'seconds 0'),
        (('--episodes', 0), 'episodes 0'),
        (('--seed', -1), 'seed -1'),
        (('--json', '/nowhere/out.json'), '/nowhere/out.json'),
        (('--video', 'out.avi'), '.mp4'),
        (('--record', '.'), 'exists already'),
    ],
)
def test_a_wrong_option_is_one_line_and_starts_nothing(arguments, words):
    started = time.monotonic()
    output = run('demo', *arguments, code=2)
    assert words in output and len(output.strip().splitlines()) == 1
    assert time.monotonic() - started < 60


def test_a_domain_in_use_is_named_with_the_remedy():
    import fcntl
    import tempfile

    with open(Path(tempfile.gettempdir()) / 'tr_vam_domain_97.lock', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        output = run('demo', code=2, environment={'ROS_DOMAIN_ID': '97'})
    assert 'ROS_DOMAIN_ID 97' in output and 'another number' in output


def test_up_keeps_the_graph_running_disarmed_until_it_is_interrupted():
    process = start('up', 'yam_sim')
    line = process.stdout.readline()
    assert 'disarmed' in line and 'yam_sim' in line
    wait_for(lambda: len(node_processes(process.pid)) >= 4, 'the nodes')
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not node_processes(process.pid)


def test_up_ends_by_itself_when_told_for_how_long():
    process = start('up', 'yam_sim', '--for', 5)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert 'ends after 5 s' in output and 'nothing is left running' in output
    assert not node_processes(process.pid)
