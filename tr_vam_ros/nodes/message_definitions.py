"""Definitions of installed ROS messages as a bag wants them: text with nested types, and hash.

They are read from the share folders that every interface package installs, so that the package's
own messages, those of a robot's driver and those of ROS itself are found in the same way.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tr_vam_ros.errors import InputError

_SEPARATOR = '=' * 80
_PRIMITIVES = {
    'bool', 'byte', 'char', 'float32', 'float64', 'string', 'wstring',
    *(f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)),
}  # fmt: skip
# The type at the start of a field's line, without array brackets and string bounds.
_FIELD_TYPE = re.compile(r'^[ \t]*([A-Za-z][A-Za-z0-9_/]*)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MessageDefinition:
    """text: the .msg file and those of all nested types, in the `ros2msg` schema encoding.

    type_hash: 'RIHS01_...' (REP 2016), or empty where the package does not install it.
    """

    text: str
    type_hash: str


def message_definition(type_name: str) -> MessageDefinition:
    """Definition of a type such as 'sensor_msgs/msg/Image'.

    Raises InputError if it, or a type nested in it, is not installed.
    """
    nested: dict[str, str] = {}
    _collect(type_name, nested)
    own = nested.pop(type_name)
    parts = [own.rstrip('\n') + '\n']
    for name, text in nested.items():
        short = name.replace('/msg/', '/')
        parts.append(f'{_SEPARATOR}\nMSG: {short}\n{text.rstrip()}\n')
    return MessageDefinition(''.join(parts), _type_hash(type_name))


def _collect(type_name: str, found: dict[str, str]) -> None:
    """Add a type and, depth first, those it is made of; each once."""
    if type_name in found:
        return
    found[type_name] = text = _file(type_name, '.msg').read_text(encoding='utf-8')
    package = type_name.partition('/')[0]
    for field_type in _FIELD_TYPE.findall(text):
        if field_type in _PRIMITIVES:
            continue
        owner, _, name = field_type.rpartition('/')
        _collect(f'{(owner or package).partition("/")[0]}/msg/{name}', found)


def _type_hash(type_name: str) -> str:
    """The hash that the generator wrote beside the definition when the package was built."""
    try:
        hashes = json.loads(_file(type_name, '.json').read_text(encoding='utf-8'))['type_hashes']
        return next(h['hash_string'] for h in hashes if h['type_name'] == type_name)
    except (InputError, KeyError, ValueError, StopIteration):
        return ''  # as rosbag2 does for a publisher that does not tell it


def _file(type_name: str, suffix: str) -> Path:
    package, kind, name = (*type_name.split('/'), '', '', '')[:3]
    # Without a sourced workspace, the environment of this Python holds the messages.
    prefixes = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    for prefix in (*filter(None, prefixes), sys.prefix):
        path = Path(prefix, 'share', package, kind, name + suffix)
        if path.is_file():
            return path
    raise InputError(
        f'message type {type_name!r} is not installed; the bag stores its definition: source the '
        'workspace that has the package (AMENT_PREFIX_PATH), or leave the topic out'
    )
