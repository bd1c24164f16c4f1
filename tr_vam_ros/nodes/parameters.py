"""ROS parameters from one dataclass per node: description, unit, range, read-only.

    @dataclass
    class Parameters:
        max_age: float = parameter(0.1, 'oldest frame in a stack, s', low=0.01, high=1.0)
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node

from tr_vam_ros.errors import InputError

T = TypeVar('T')


def parameter(
    default: Any,
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is a ROS parameter. All are read-only: set them at start."""
    metadata = {'description': description, 'low': low, 'high': high, 'choices': choices}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def declare(node: Node, kind: type[T]) -> T:
    """Declares every field of the dataclass `kind` and returns it with the values given.

    Raises InputError that names the parameter, its rule and the value.
    """
    values = {}
    for field in dataclasses.fields(kind):
        values[field.name] = _declare_one(node, field)
    return kind(**values)


def _declare_one(node: Node, field: dataclasses.Field) -> Any:
    meta = field.metadata
    default = (
        field.default if field.default is not dataclasses.MISSING else field.default_factory()
    )
    description = meta['description']
    if meta['choices']:
        description += f' ({" | ".join(meta["choices"])})'
    descriptor = ParameterDescriptor(description=description, read_only=True)
    low, high = meta['low'], meta['high']
    if low is not None or high is not None:
        # Open ends: the widest numbers of the type.
        if isinstance(default, float):
            descriptor.floating_point_range.append(
                FloatingPointRange(
                    from_value=float(-1e300 if low is None else low),
                    to_value=float(1e300 if high is None else high),
                )
            )
        else:
            descriptor.integer_range.append(
                IntegerRange(
                    from_value=int(-(2**62) if low is None else low),
                    to_value=int(2**62 if high is None else high),
                )
            )
    try:
        value = node.declare_parameter(field.name, default, descriptor).value
    except (InvalidParameterTypeException, InvalidParameterValueException) as error:
        raise InputError(
            f'parameter {field.name} of {node.get_name()}: {description}'
            f'{_range_text(low, high)}; {str(error).splitlines()[0]}'
        ) from error
    if meta['choices'] and value not in meta['choices']:
        raise InputError(
            f'parameter {field.name} of {node.get_name()}: {value!r} is not one of '
            f'{", ".join(meta["choices"])}'
        )
    return value


def _range_text(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ''
    return f', from {"-inf" if low is None else low} to {"inf" if high is None else high}'
