"""A mapping, usually from YAML, into nested frozen dataclasses: every mistake is an InputError.

The dataclasses are the schema: field names, types and defaults are read from them, so a config
file cannot hold a key that nothing reads.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tr_vam_ros.errors import InputError

T = TypeVar('T')


def read_mapping(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file. Raises InputError if it cannot be read or is no mapping."""
    try:
        data = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = ' '.join(str(error).split())
        raise InputError(f'{path}: cannot be read ({reason}); expected a YAML file') from error
    if not isinstance(data, Mapping):
        raise InputError(f'{path}: got {type(data).__name__}, expected a mapping of sections')
    return data


def build(schema: type[T], data: Any, where: str) -> T:
    """An instance of the dataclass `schema` from `data`; `where` names the place in errors."""
    if not isinstance(data, Mapping):
        raise InputError(f'{where}: got {data!r}, expected a mapping of keys to values')
    fields = {field.name: field for field in dataclasses.fields(schema)}
    unknown = sorted(str(key) for key in data if key not in fields)
    if unknown:
        raise InputError(
            f'{where}: unknown key {", ".join(unknown)}; known keys are {", ".join(fields)}'
        )
    missing = [
        name for name, field in fields.items()
        if name not in data
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f'{where}: missing key {", ".join(missing)}; add it')
    hints = typing.get_type_hints(schema)
    values = {name: _convert(hints[name], value, f'{where}.{name}') for name, value in data.items()}
    try:
        return schema(**values)
    except InputError as error:
        raise InputError(f'{where}: {error}') from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type, without the silent casts YAML invites (1.0 -> 1, 'no')."""
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
        return _convert(hint, value, where)
    if origin is tuple:
        return _convert_tuple(typing.get_args(hint), value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InputError(f'{where}: got {value!r}, expected a finite number')
        return float(value)
    if type(value) is hint:
        return value
    raise InputError(f'{where}: got {value!r}, expected {hint.__name__}')


def _convert_tuple(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f'{where}: got {value!r}, expected a list')
    if hints[-1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(value) != len(hints):
        raise InputError(f'{where}: got {len(value)} entries, expected {len(hints)}')
    return tuple(
        _convert(hint, entry, f'{where}[{i}]') for i, (hint, entry) in enumerate(zip(hints, value))
    )
