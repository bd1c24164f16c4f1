"""Bags written without rosbag2, read back with independent readers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

mcap_reader = pytest.importorskip('mcap.reader')
rosbag2 = pytest.importorskip('rosbags.rosbag2')
typesys = pytest.importorskip('rosbags.typesys')

from tr_vam_ros.errors import InputError  # noqa: E402
from tr_vam_ros.nodes import bag_writer  # noqa: E402
from tr_vam_ros.nodes.bag_writer import BagWriter  # noqa: E402
from tr_vam_ros.nodes.message_definitions import message_definition  # noqa: E402

START_NS = 1_700_000_000_000_000_000
MILLISECOND_NS = 1_000_000
STRING = 'std_msgs/msg/String'


def string_cdr(text: str) -> bytes:
    """A std_msgs/String on the wire: little-endian header, length with the final zero, text."""
    data = text.encode() + b'\0'
    return b'\x00\x01\x00\x00' + len(data).to_bytes(4, 'little') + data


def metadata_of(bag: Path) -> dict:
    return yaml.safe_load((bag / 'metadata.yaml').read_text())['rosbag2_bagfile_information']


def stream_read(bag: Path) -> list[bytes]:
    """Messages of a file that may end anywhere."""
    found = []
    with open(bag / f'{bag.name}_0.mcap', 'rb') as file:
        try:
            for _, _, message in mcap_reader.NonSeekingReader(file).iter_messages(
                log_time_order=False
            ):
                found.append(message.data)
        except Exception:  # noqa: BLE001 - whatever a cut-off record raises, it ends the file
            pass
    return found


def test_rosbags_reads_back_every_message_equal_to_what_went_in(tmp_path):
    rclpy = pytest.importorskip('rclpy.serialization')
    from builtin_interfaces.msg import Duration, Time
    from sensor_msgs.msg import Image
    from std_msgs.msg import Header, String
    from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

    header = Header(stamp=Time(sec=5, nanosec=7), frame_id='top')
    pixels = np.random.default_rng(0).integers(0, 256, 4 * 6 * 3, dtype=np.uint8)
    point = JointTrajectoryPoint(positions=[0.1, -0.2], velocities=[1.0, 0.0])
    point.time_from_start = Duration(sec=0, nanosec=33_333_333)
    sent = [
        ('/task', STRING, String(data='pick the cup, \u00e9')),
        (
            '/image',
            'sensor_msgs/msg/Image',
            Image(
                header=header, height=4, width=6, step=18, encoding='rgb8', data=pixels.tobytes()
            ),
        ),
        (
            '/arm/joint_trajectory',
            'trajectory_msgs/msg/JointTrajectory',
            JointTrajectory(header=header, joint_names=['a', 'b'], points=[point, point]),
        ),
    ] * 3
    store = typesys.get_typestore(typesys.Stores.ROS2_JAZZY)

    def wire(message, type_name: str) -> bytes:
        """As a raw subscription delivers it: without what serialize_message adds at the end."""
        raw = rclpy.serialize_message(message)
        definition = store.get_msgdef(type_name)
        _, end = definition.deserialize_cdr_le(raw[4:], 0, definition.cls, store)
        return raw[: end + 4]

    with BagWriter(tmp_path / 'bag', custom_data={}) as bag:
        for i, (topic, type_name, message) in enumerate(sent):
            # 0.4 s apart: several chunks.
            time_ns = START_NS + i * 400 * MILLISECOND_NS
            bag.write(topic, type_name, wire(message, type_name), time_ns, time_ns)

    with rosbag2.Reader(tmp_path / 'bag') as reader:
        received = list(reader.messages())
        for connection in reader.connections:
            assert connection.digest == store.hash_rihs01(connection.msgtype)
    assert len(received) == len(sent)
    for i, ((topic, type_name, message), (connection, time_ns, raw)) in enumerate(
        zip(sent, received)
    ):
        assert (connection.topic, connection.msgtype) == (topic, type_name)
        assert time_ns == START_NS + i * 400 * MILLISECOND_NS
        assert rclpy.deserialize_message(bytes(raw), type(message)) == message
        read = store.deserialize_cdr(raw, type_name)
        if topic == '/task':
            assert read.data == message.data
        elif topic == '/image':
            assert (read.header.stamp.sec, read.header.stamp.nanosec) == (5, 7)
            assert (read.height, read.width, read.step, read.encoding) == (4, 6, 18, 'rgb8')
            np.testing.assert_array_equal(read.data, pixels)
        else:
            assert list(read.joint_names) == ['a', 'b']
            np.testing.assert_array_equal(read.points[1].velocities, point.velocities)
            assert read.points[1].time_from_start.nanosec == 33_333_333


def test_the_definitions_in_the_file_are_enough_to_decode_it(tmp_path):
    decoder = pytest.importorskip('mcap_ros2.decoder')
    with BagWriter(tmp_path / 'bag', custom_data={}) as bag:
        bag.write('/task', STRING, string_cdr('hello'), START_NS, START_NS)
    with open(bag.path, 'rb') as file:
        reader = mcap_reader.make_reader(file, decoder_factories=[decoder.DecoderFactory()])
        assert [message.data for *_, message in reader.iter_decoded_messages()] == ['hello']
        assert reader.get_header().profile == 'ros2'


@pytest.mark.parametrize(
    'type_name',
    ['trajectory_msgs/msg/JointTrajectory', 'diagnostic_msgs/msg/DiagnosticArray', STRING],
)
def test_nested_definitions_and_hash_agree_with_those_of_rosbags(type_name):
    store = typesys.get_typestore(typesys.Stores.EMPTY)
    definition = message_definition(type_name)
    store.register(typesys.get_types_from_msg(definition.text, type_name))
    assert definition.type_hash == store.hash_rihs01(type_name)


def test_metadata_has_every_field_of_rosbag2_on_jazzy(tmp_path):
    qos = pytest.importorskip('rclpy.qos')
    bag = BagWriter(tmp_path / 'bag', custom_data={'seed': '7'})
    profile = qos.QoSProfile(depth=3, reliability=qos.ReliabilityPolicy.BEST_EFFORT)
    bag.add_topic('/task', STRING, [profile])
    bag.add_topic('/silent', STRING)
    for i in range(4):
        bag.write('/task', STRING, string_cdr('x'), START_NS + i, START_NS)
    assert bag.message_counts == {'/task': 4, '/silent': 0}
    bag.close()
    metadata = metadata_of(tmp_path / 'bag')
    span = {
        'duration': {'nanoseconds': 3},
        'starting_time': {'nanoseconds_since_epoch': START_NS},
        'message_count': 4,
    }
    task, silent = metadata.pop('topics_with_message_count')
    assert metadata == {
        'version': 9,
        'storage_identifier': 'mcap',
        **span,
        'relative_file_paths': ['bag_0.mcap'],
        'compression_format': '',
        'compression_mode': '',
        'files': [{'path': 'bag_0.mcap', **span}],
        'custom_data': {'seed': '7'},
        'ros_distro': os.environ.get('ROS_DISTRO', 'jazzy'),
    }
    assert (task['message_count'], silent['message_count']) == (4, 0)
    topic = task['topic_metadata']
    assert topic['type_description_hash'].startswith('RIHS01_')
    assert topic['offered_qos_profiles'][0]['reliability'] == 'best_effort'
    assert set(topic) == {
        'name', 'type', 'serialization_format', 'offered_qos_profiles', 'type_description_hash',
    }  # fmt: skip
    with rosbag2.Reader(tmp_path / 'bag') as reader:
        assert reader.connections[0].ext.offered_qos_profiles[0].depth == 3


def test_an_empty_bag_can_be_opened(tmp_path):
    BagWriter(tmp_path / 'bag', custom_data={}).close()
    with rosbag2.Reader(tmp_path / 'bag') as reader:
        assert list(reader.messages()) == []


def test_no_chunk_is_longer_than_a_second(tmp_path):
    with BagWriter(tmp_path / 'bag', custom_data={}) as bag:
        for i in range(40):
            time_ns = START_NS + i * 100 * MILLISECOND_NS
            bag.write('/task', STRING, string_cdr('x'), time_ns, time_ns)
    with open(bag.path, 'rb') as file:
        chunks = mcap_reader.make_reader(file).get_summary().chunk_indexes
    assert len(chunks) == 4
    assert all(c.message_end_time - c.message_start_time < bag_writer.CHUNK_NS for c in chunks)


KILLED = """
import os, sys
sys.path[:0] = {path!r}
from tr_vam_ros.nodes.bag_writer import BagWriter
bag = BagWriter({bag!r}, custom_data={{}})
for i in range(100):
    bag.write('/task', 'std_msgs/msg/String', {raw!r}, {start} + i * 50_000_000, 0)
print('written', flush=True)
sys.stdin.read()
"""


def test_a_killed_process_loses_at_most_the_last_second(tmp_path):
    script = KILLED.format(
        path=[str(Path(__file__).resolve().parents[2])],
        bag=str(tmp_path / 'bag'),
        raw=string_cdr('x'),
        start=START_NS,
    )
    with subprocess.Popen(
        [sys.executable, '-c', script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == 'written\n'
        process.send_signal(signal.SIGKILL)
    # 100 messages, 20 a second: the last chunk of 20 was still in memory.
    assert stream_read(tmp_path / 'bag') == [string_cdr('x')] * 80
    assert metadata_of(tmp_path / 'bag')['version'] == 9


def test_a_flushed_message_is_in_the_file_before_the_second_is_over(tmp_path):
    bag = BagWriter(tmp_path / 'bag', custom_data={})
    bag.write('/task', STRING, string_cdr('x'), START_NS, START_NS)
    bag.flush()
    assert stream_read(tmp_path / 'bag') == [string_cdr('x')]
    bag.close()


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='no /dev/full on this system')
def test_a_full_disk_raises_once_and_keeps_what_was_complete(tmp_path):
    bag = BagWriter(tmp_path / 'bag', custom_data={})
    bag.write('/task', STRING, string_cdr('kept'), START_NS, START_NS)
    bag.flush()
    # From here on every byte meets a full disk.
    with open('/dev/full', 'wb') as full:
        os.dup2(full.fileno(), bag._file.fileno())
    bag.write('/task', STRING, string_cdr('lost'), START_NS + 1, START_NS)
    with pytest.raises(OSError) as raised:
        bag.flush()
    assert raised.value.errno == errno.ENOSPC
    bag.write('/task', STRING, string_cdr('late'), START_NS + 2, START_NS)
    bag.flush()
    bag.close()
    assert bag.dropped == 1
    assert bag.message_counts == {'/task': 1}
    assert stream_read(tmp_path / 'bag') == [string_cdr('kept')]
    assert metadata_of(tmp_path / 'bag')['message_count'] == 1


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path):
    (tmp_path / 'notes.txt').write_text('mine')
    with pytest.raises(InputError, match='not empty; a bag never overwrites: name a new folder'):
        BagWriter(tmp_path, custom_data={})
    assert [path.name for path in tmp_path.iterdir()] == ['notes.txt']


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / 'bag').write_text('')
    with pytest.raises(InputError, match='must be a folder that can be written'):
        BagWriter(tmp_path / 'bag', custom_data={})


def test_a_nearly_full_disk_is_refused(tmp_path, monkeypatch):
    usage = type('Usage', (), {'free': 100_000_000})
    monkeypatch.setattr(bag_writer.shutil, 'disk_usage', lambda path: usage)
    with pytest.raises(InputError, match='has 100 MB of disk left, recording needs 500'):
        BagWriter(tmp_path / 'bag', custom_data={})


def test_a_message_type_that_is_not_installed_is_named(tmp_path):
    with BagWriter(tmp_path / 'bag', custom_data={}) as bag:
        with pytest.raises(InputError, match="'no_such/msg/Thing' is not installed"):
            bag.add_topic('/thing', 'no_such/msg/Thing')


def test_a_topic_keeps_its_type(tmp_path):
    with BagWriter(tmp_path / 'bag', custom_data={}) as bag:
        bag.add_topic('/task', STRING)
        with pytest.raises(InputError, match='a topic has one type in a bag'):
            bag.write('/task', 'std_msgs/msg/Bool', b'', START_NS, START_NS)
