import numpy as np
import pytest
from rosbags.highlevel import AnyReader
from sensor_msgs.msg import Image
from std_msgs.msg import String

from test.ros import node_of, wait_for
from tr_vam_ros.errors import InputError
from tr_vam_ros.msg import Episode, TemporalRatio
from tr_vam_ros.nodes.images import message_from_rgb
from tr_vam_ros.nodes.recorder import Recorder
from tr_vam_ros.nodes.runtime import stamp_of
from tr_vam_ros.nodes.topics import (
    DIAGNOSTICS,
    EPISODE,
    IMAGES,
    RECORDED,
    SET_INSTRUCTION,
    TEMPORAL_RATIO,
)


def publisher(ros, topic):
    made = ros.node.create_publisher(topic.type, topic.name, topic.qos)
    wait_for(made.get_subscription_count, f'the recorder listens to {topic.name}')
    return made


def test_what_was_published_is_in_the_bag_byte_for_byte(ros, tmp_path):
    # An episode that began before the recorder did is recorded too.
    episodes = ros.node.create_publisher(Episode, EPISODE.name, EPISODE.qos)
    episodes.publish(Episode(event=Episode.START, key='scene1/task1/seed0/ep0'))
    recorder = ros.spin(node_of(Recorder, directory=str(tmp_path / 'bag')))
    picture = np.random.default_rng(0).integers(0, 256, (168, 224, 3), dtype=np.uint8)
    ratios, images = publisher(ros, TEMPORAL_RATIO), publisher(ros, IMAGES['top'])
    instructions = publisher(ros, SET_INSTRUCTION)
    for number in range(50):
        ratios.publish(TemporalRatio(temporal_ratio=4.0 + number, replan_index=number))
    images.publish(message_from_rgb(picture, stamp_of(7), 'top'))
    instructions.publish(String(data='pick up the apple'))
    counts = recorder._writer.message_counts
    wait_for(
        lambda: recorder._writer.message_counts['/tr_vam/set_instruction'] == 1
        and recorder._writer.message_counts['/tr_vam/temporal_ratio'] == 50
        and recorder._writer.message_counts['/tr_vam/episode'] == 1
        and recorder._writer.message_counts['/top/camera/color/image_raw'] == 1,
        f'everything is written, not {counts}',
    )
    ros.close()
    with AnyReader([tmp_path / 'bag']) as reader:
        heard = {}
        for connection, _, data in reader.messages():
            message = reader.deserialize(data, connection.msgtype)
            heard.setdefault(connection.topic, []).append(message)
        assert len(reader.connections) == len(RECORDED)
    assert [m.temporal_ratio for m in heard['/tr_vam/temporal_ratio']] == [
        4.0 + number for number in range(50)
    ]
    assert heard['/tr_vam/episode'][0].key == 'scene1/task1/seed0/ep0'
    assert heard['/tr_vam/set_instruction'][0].data == 'pick up the apple'
    recorded = heard['/top/camera/color/image_raw'][0]
    np.testing.assert_array_equal(recorded.data.reshape(168, 224, 3), picture)


def test_a_full_disk_is_said_and_the_node_lives_on(ros, tmp_path):
    diagnostics = ros.heard(DIAGNOSTICS)
    recorder = ros.spin(node_of(Recorder, directory=str(tmp_path / 'bag')))

    def full(*arguments):
        raise OSError(28, 'No space left on device')

    recorder._writer.write = full
    publisher(ros, SET_INSTRUCTION).publish(String(data='x'))
    wait_for(
        lambda: any('recording ended' in s.message for m in diagnostics for s in m.status),
        'the failure in diagnostics',
    )
    assert isinstance(Image, type) and ros.node.count_subscribers(SET_INSTRUCTION.name) == 1


def test_a_folder_that_holds_something_is_refused(ros, tmp_path):
    (tmp_path / 'bag').mkdir()
    (tmp_path / 'bag' / 'mine.txt').touch()
    with pytest.raises(InputError, match='bag'):
        node_of(Recorder, directory=str(tmp_path / 'bag'))
    with pytest.raises(InputError, match='directory'):
        node_of(Recorder)
