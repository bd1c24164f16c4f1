"""`tr-vam test`: the tests, with pytest."""

from __future__ import annotations

import argparse
import subprocess
import sys

from tr_vam_ros.cli.supervisor import REPOSITORY


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog='tr-vam test', description='Run the tests.')
    parser.add_argument('--all', action='store_true', help='the long ones too')
    options, rest = parser.parse_known_args(arguments)
    marker = [] if options.all else ['-m', 'not long']
    return subprocess.call(
        [sys.executable, '-m', 'pytest', *marker, *rest], cwd=REPOSITORY
    )
