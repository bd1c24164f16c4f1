"""One rosbag2 folder (metadata.yaml version 9 and an MCAP file), written without rosbag2.

At most a second of messages is in memory: whatever kills the process, the file up to there can
be read as a stream (mcap's NonSeekingReader). rosbags' own writer keeps more and writes its
metadata only when closed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from mcap.writer import Writer

from tr_vam_ros.errors import InputError
from tr_vam_ros.nodes.message_definitions import message_definition

if TYPE_CHECKING:
    from rclpy.qos import QoSProfile

METADATA_VERSION = 9  # ROS 2 Jazzy
CHUNK_NS = 1_000_000_000  # longest time of messages that a crash may cost
MIN_FREE_BYTES = 500_000_000  # about a minute of the model's image, uncompressed, at 30 Hz


@dataclass(slots=True)
class _Topic:
    type_name: str
    type_hash: str
    qos: list[dict]
    channel: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    """What a reader finds in the file if nothing more reaches it."""

    file_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    start_ns: int = 0
    end_ns: int = 0


class BagWriter:
    """Writes a new bag; all calls come from one thread. Also a context manager.

    directory: the bag's folder, created if missing. custom_data: text by name that
    metadata.yaml carries, from which an analysis reads the settings of the run.

    Any method that finds the disk full, or gone, raises OSError once; the bag then ends with the
    last complete chunk, and later messages are only counted, in `dropped`.

    Raises InputError if the folder holds something already, cannot be made, or has less than
    MIN_FREE_BYTES of disk left.
    """

    def __init__(self, directory: str | os.PathLike, *, custom_data: Mapping[str, str]):
        self.directory = Path(directory).absolute()
        self.path = self.directory / f'{self.directory.name}_0.mcap'
        self.custom_data = {str(key): str(value) for key, value in custom_data.items()}
        self.dropped = 0
        self._topics: dict[str, _Topic] = {}
        self._schemas: dict[str, int] = {}  # id by type name
        self._written = _Written()
        self._start_ns, self._end_ns = None, 0  # times of the first and the last message
        self._chunk_start_ns: int | None = None  # first message that is not in the file yet
        self._prepare_folder()
        self._file = open(self.path, 'wb')
        # Its default, zstd, takes 4 ms a megabyte of camera images and leaves a third [measured].
        self._writer = Writer(self._file)
        with self._until_failure():
            self._writer.start(profile='ros2', library='tr_vam_ros')
            self.flush()
            self._write_metadata()

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True after `close` and after a failure to write."""
        return self._file.closed

    @property
    def message_counts(self) -> dict[str, int]:
        """Messages taken by topic; after a failure, those that are in the file."""
        if self.closed:
            return {topic: self._written.counts.get(topic, 0) for topic in self._topics}
        return {topic: entry.count for topic, entry in self._topics.items()}

    def add_topic(
        self, topic: str, type_name: str, qos_profiles: Sequence[QoSProfile] = ()
    ) -> None:
        """Announce a topic, so that the bag names it even if no message comes.

        type_name as 'std_msgs/msg/String'; qos_profiles are those of the topic's publishers.
        A topic announced again with the same type is left as it is. Raises InputError if it has
        another type, or one that is not installed.
        """
        known = self._topics.get(topic)
        if known is not None:
            if known.type_name != type_name:
                raise InputError(
                    f'topic {topic} is {known.type_name} in this bag, not {type_name}; a topic '
                    'has one type in a bag: rename one of the topics'
                )
            return
        definition = message_definition(type_name)
        qos = [_qos_entry(profile) for profile in qos_profiles]
        with self._until_failure():
            if type_name not in self._schemas:
                self._schemas[type_name] = self._writer.register_schema(
                    type_name, 'ros2msg', definition.text.encode()
                )
            channel = self._writer.register_channel(
                topic,
                'cdr',
                self._schemas[type_name],
                {'offered_qos_profiles': yaml.safe_dump(qos, sort_keys=False) if qos else ''},
            )
            self._topics[topic] = _Topic(type_name, definition.type_hash, qos, channel)

    def write(
        self,
        topic: str,
        type_name: str,
        raw_bytes: bytes,
        log_time_ns: int,
        publish_time_ns: int,
    ) -> None:
        """Write one message as it came over the wire (CDR), at its time of reception.

        raw_bytes come from a raw subscription: rclpy's serialize_message can return trailing
        bytes that are no part of the message (8 for each JointTrajectoryPoint in 7.1.6), which
        rosbags' reader refuses. A topic not yet announced is announced without QoS. Raises as
        `add_topic`.
        """
        if self.closed:
            self.dropped += 1
            return
        entry = self._topics.get(topic)
        if entry is None or entry.type_name != type_name:
            self.add_topic(topic, type_name)
            entry = self._topics[topic]
        # In either direction: a simulation's clock may go back.
        if self._chunk_start_ns is None:
            self._chunk_start_ns = log_time_ns
        elif abs(log_time_ns - self._chunk_start_ns) >= CHUNK_NS:
            self.flush()
            self._chunk_start_ns = log_time_ns
        with self._until_failure():
            self._writer.add_message(entry.channel, log_time_ns, raw_bytes, publish_time_ns)
        entry.count += 1
        first = self._start_ns is None
        self._start_ns = log_time_ns if first else min(self._start_ns, log_time_ns)
        self._end_ns = log_time_ns if first else max(self._end_ns, log_time_ns)

    def flush(self) -> None:
        """End the chunk and hand everything to the operating system.

        `write` does so once a second of messages; when messages may stop coming, call it from a
        timer too, so that the last ones do not wait in memory.
        """
        if self.closed:
            return
        with self._until_failure():
            self._writer.flush()
        self._chunk_start_ns = None
        self._written = _Written(
            self._file.tell(), self.message_counts, self._start_ns or 0, self._end_ns
        )

    def close(self) -> None:
        """Write what is left, the index and the final metadata.yaml. Again: does nothing."""
        if self.closed:
            return
        self.flush()
        with self._until_failure():
            self._writer.finish()
            self._file.close()
            self._write_metadata()

    def _prepare_folder(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            in_use = any(self.directory.iterdir())
            free = shutil.disk_usage(self.directory).free
        except OSError as error:
            raise InputError(
                f'bag folder {self.directory}: {error.strerror}; '
                'it must be a folder that can be written: name another one'
            ) from error
        if in_use:
            raise InputError(
                f'bag folder {self.directory} is not empty; a bag never overwrites: '
                'name a new folder or move the old one away'
            )
        if free < MIN_FREE_BYTES:
            raise InputError(
                f'bag folder {self.directory} has {free / 1e6:.0f} MB of disk left, recording '
                f'needs {MIN_FREE_BYTES / 1e6:.0f}: free some or name another disk'
            )

    @contextmanager
    def _until_failure(self) -> Iterator[None]:
        """Give up the file at its last complete chunk when the disk refuses, and raise."""
        try:
            yield
        except OSError:
            with suppress(OSError):
                self._file.close()  # tries to write its buffer, then closes in any case
            with suppress(OSError):
                os.truncate(self.path, self._written.file_bytes)
            with suppress(OSError):
                self._write_metadata()
            raise

    def _write_metadata(self) -> None:
        """Replace metadata.yaml in one step, so that a reader never sees half of it."""
        information = {'rosbag2_bagfile_information': self._metadata()}
        text = yaml.safe_dump(information, sort_keys=False)
        temporary = self.directory / 'metadata.yaml.tmp'
        temporary.write_text(text, encoding='utf-8')
        temporary.replace(self.directory / 'metadata.yaml')

    def _metadata(self) -> dict:
        """The fields of rosbag2 on Jazzy, in its order."""
        written = self._written
        span = {
            'duration': {'nanoseconds': written.end_ns - written.start_ns},
            'starting_time': {'nanoseconds_since_epoch': written.start_ns},
            'message_count': sum(written.counts.values()),
        }
        return {
            'version': METADATA_VERSION,
            'storage_identifier': 'mcap',
            **deepcopy(span),
            'topics_with_message_count': [
                {
                    'topic_metadata': {
                        'name': topic,
                        'type': entry.type_name,
                        'serialization_format': 'cdr',
                        'offered_qos_profiles': entry.qos,
                        'type_description_hash': entry.type_hash,
                    },
                    'message_count': written.counts.get(topic, 0),
                }
                for topic, entry in self._topics.items()
            ],
            'compression_format': '',
            'compression_mode': '',
            'relative_file_paths': [self.path.name],
            'files': [{'path': self.path.name, **span}],
            'custom_data': self.custom_data or None,
            'ros_distro': os.environ.get('ROS_DISTRO', 'jazzy'),
        }


def _qos_entry(profile: QoSProfile) -> dict:
    """An rclpy QoSProfile as rosbag2 on Jazzy writes it."""

    def duration(value) -> dict:
        seconds, nanoseconds = divmod(value.nanoseconds, 1_000_000_000)
        return {'sec': seconds, 'nsec': nanoseconds}

    return {
        'history': profile.history.name.lower(),
        'depth': profile.depth,
        'reliability': profile.reliability.name.lower(),
        'durability': profile.durability.name.lower(),
        'deadline': duration(profile.deadline),
        'lifespan': duration(profile.lifespan),
        'liveliness': profile.liveliness.name.lower(),
        'liveliness_lease_duration': duration(profile.liveliness_lease_duration),
        'avoid_ros_namespace_conventions': profile.avoid_ros_namespace_conventions,
    }
