"""ROS parameters from one dataclass per node: description, unit, range, whether it may change.

    @dataclass
    class Parameters:
        max_age: float = parameter(0.1, 'oldest frame in a stack, s', low=0.01, high=1.0)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
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
    live: bool = False,
) -> Any:
    """A dataclass field that is a ROS parameter.

    live: may be set while the node runs; any other is read-only, and set at start.
    """
    metadata = {
        'description': description, 'low': low, 'high': high, 'choices': choices, 'live': live
    }
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


def on_change(node: Node, parameters: T, apply: Callable[[T], None]) -> None:
    """Lets the live parameters of a node, as `declare` returned them, be set while it runs.

    apply: takes the parameters as they would be; an InputError refuses them, and then nothing has
        changed. `parameters` is brought up to date after it.
    """
    fields = {field.name: field for field in dataclasses.fields(parameters)}

    def check(changes: list) -> SetParametersResult:
        new = {change.name: change.value for change in changes if change.name in fields}
        try:
            for name, value in new.items():
                _check_choice(node, name, value, fields[name].metadata['choices'])
            apply(dataclasses.replace(parameters, **new))
        except InputError as error:
            return SetParametersResult(successful=False, reason=str(error))
        for name, value in new.items():
            setattr(parameters, name, value)
        return SetParametersResult(successful=True)

    node.add_on_set_parameters_callback(check)


def _declare_one(node: Node, field: dataclasses.Field) -> Any:
    meta = field.metadata
    default = (
        field.default if field.default is not dataclasses.MISSING else field.default_factory()
    )
    description = meta['description']
    if meta['choices']:
        description += f' ({" | ".join(meta["choices"])})'
    descriptor = ParameterDescriptor(description=description, read_only=not meta['live'])
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
    _check_choice(node, field.name, value, meta['choices'])
    return value


def _check_choice(node: Node, name: str, value: Any, choices: tuple[str, ...]) -> None:
    if choices and value not in choices:
        raise InputError(
            f'parameter {name} of {node.get_name()}: {value!r} is not one of {", ".join(choices)}'
        )


def _range_text(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ''
    return f', from {"-inf" if low is None else low} to {"inf" if high is None else high}'
