"""A ROS domain of its own for a graph that must not meet another one.

The simulated cell publishes on the names of the real controllers: in the domain of a robot it would
move that robot. So a demo takes a free domain and stays on this host, unless ROS_DOMAIN_ID says
where it should go.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tr_vam_ros.errors import InputError

# Above 101 Fast DDS's ports reach into the range the kernel hands out to clients.
FIRST, LAST = 1, 101


@contextmanager
def own_domain() -> Iterator[dict[str, str]]:
    """Environment variables of a domain that no other graph of this package uses meanwhile.

    Raises InputError when the domain asked for is taken or none is free.
    """
    asked = os.environ.get('ROS_DOMAIN_ID')
    if asked is not None and not (asked.isdigit() and int(asked) <= LAST):
        raise InputError(f'ROS_DOMAIN_ID {asked!r}: must be a number from 0 to {LAST}')
    candidates = [int(asked)] if asked is not None else range(FIRST, LAST + 1)
    for domain in candidates:
        # One file per domain, locked while the graph lives; the kernel unlocks it at any death.
        path = Path(tempfile.gettempdir()) / f'tr_vam_domain_{domain}.lock'
        with _open_shared(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield {
                'ROS_DOMAIN_ID': str(domain),
                'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
            }
            return
    if asked is not None:
        raise InputError(
            f'ROS_DOMAIN_ID {asked}: another graph of this package runs in it; stop that one or '
            'choose another number'
        )
    raise InputError('no free ROS domain from 1 to 101: stop a running graph')


def _open_shared(path: Path):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, 'r+')
