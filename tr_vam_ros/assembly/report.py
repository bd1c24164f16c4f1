"""What became of every tensor of an assembly."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_NUMBER = re.compile(r'(?<=\.)\d+(?=\.)')


@dataclass(frozen=True)
class Taken:
    source: str
    target: str
    note: str = ''


@dataclass(frozen=True)
class NotTaken:
    source: str
    reason: str


@dataclass(frozen=True)
class Fresh:
    """A tensor of the checkpoint that no source had."""

    target: str
    reason: str


@dataclass
class Report:
    taken: list[Taken] = field(default_factory=list)
    not_taken: list[NotTaken] = field(default_factory=list)
    fresh: list[Fresh] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)  # lines for the model card
    parameters: int = 0
    bytes: int = 0

    def to_mapping(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def lines(self) -> list[str]:
        """A line for each kind of tensor: layers that share a fate stand in one."""
        return [
            *_grouped(
                'taken', ((f'{t.source} -> {t.target}', t.note) for t in self.taken)
            ),
            *_grouped('not taken', ((n.source, n.reason) for n in self.not_taken)),
            *_grouped('fresh', ((f.target, f.reason) for f in self.fresh)),
        ]


def _grouped(what: str, entries: Iterable[tuple[str, str]]) -> list[str]:
    groups: dict[tuple[str, str], int] = {}
    for name, remark in entries:
        key = _NUMBER.sub('*', name), remark
        groups[key] = groups.get(key, 0) + 1
    return [
        f'{what}: {name}' + (f' ({count})' if count > 1 else '') + (f': {remark}' if remark else '')
        for (name, remark), count in groups.items()
    ]
