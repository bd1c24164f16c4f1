"""`tr-vam COMMAND`: finds the command, runs it, turns an InputError into one line and exit 2."""

from __future__ import annotations

import importlib
import sys

from tr_vam_ros.errors import InputError

COMMANDS = {
    'demo': 'the whole graph on the simulated YAM cell: episodes, live TR, bag, video',
    'up': 'start a bring-up and keep it running, without ROS\'s launch',
    'assemble': 'build a checkpoint from public weights, adapters and an action expert',
    'embed': 'cache instructions, so that driving needs no text encoder',
    'imagine': 'decode the future that the model imagines: a video and a strip',
    'bench': 'speed and memory, against naive and against each optimisation switched off',
    'doctor': 'check the installation; looks only',
    'test': 'run the tests; --all adds the long ones',
}
_BY_ENTRY_SCRIPT = {'python': "the environment's interpreter"}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ''
    if name in ('', '-h', '--help'):
        print('usage: tr-vam COMMAND [ARGUMENTS]; tr-vam COMMAND --help tells more\n')
        for command, text in {**COMMANDS, **_BY_ENTRY_SCRIPT}.items():
            print(f'  {command:8} {text}')
        sys.exit(0 if name else 2)
    if name not in COMMANDS:
        print(
            f'error: command {name!r}: unknown; choose one of {", ".join(COMMANDS)}',
            file=sys.stderr,
        )
        sys.exit(2)
    module = importlib.import_module(f'tr_vam_ros.cli.{name}')
    try:
        sys.exit(module.main(sys.argv[2:]))
    except InputError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        sys.exit(130)


if __name__ == '__main__':
    main()
