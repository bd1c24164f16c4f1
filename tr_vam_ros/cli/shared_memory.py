"""Fast DDS's files in /dev/shm: which are there, which were left behind by a killed process."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path('/dev/shm')
PATTERNS = ('fastrtps_*', 'fastdds_*', 'sem.fastrtps_*', 'sem.fastdds_*')


def segments() -> set[Path]:
    return {path for pattern in PATTERNS for path in FOLDER.glob(pattern)}


def leftover_segments(before: set[Path]) -> list[Path]:
    """Files that came after `before` was taken and that no living process has mapped or open."""
    new = segments() - before
    if not new:
        return []
    used = _files_in_use()
    return sorted(path for path in new if str(path) not in used)


def _files_in_use() -> set[str]:
    used = set()
    for process in Path('/proc').glob('[0-9]*'):
        try:
            for line in (process / 'maps').read_text().splitlines():
                if str(FOLDER) in line:
                    used.add(line.split(maxsplit=5)[5].removesuffix(' (deleted)'))
            used.update(str(link.readlink()) for link in (process / 'fd').iterdir())
        except OSError:  # it ended meanwhile, or is not ours to look at
            continue
    return used
