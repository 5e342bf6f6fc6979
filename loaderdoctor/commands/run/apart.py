"""Entry of the process that listens to a loop of a process that runs already, as a notebook does.

Comes in, on stdin, as JSON: ListenOptions and a pid. Goes out, on stdout: where to call.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from loaderdoctor.commands.run.listen import listen
from loaderdoctor.commands.run.run_files import RECORDED
from loaderdoctor.commands.run.start import ListenOptions, config_of
from loaderdoctor.instrument.command.launch_config import Target
from loaderdoctor.instrument.command.listener import ConnectionListener


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """What such a process is told."""

    options: ListenOptions
    pid: int


def main() -> None:
    """Listen until the loop is over."""
    text = sys.stdin.buffer.read()
    told = msgspec.json.decode(text, type=Apart, dec_hook=lambda kind, value: kind(value))  # paths
    options = told.options
    listener = ConnectionListener()
    recorded = Path(options.folder) / RECORDED
    target = Target(script=options.label)
    launch_config = config_of(
        target, listener, recorded, str(options.sums), group=False, profile=False
    )
    sys.stdout.buffer.write(msgspec.json.encode(launch_config))
    sys.stdout.flush()
    os.dup2(2, 1)  # whoever reads it there waits for its end
    listen(options, listener, told.pid)


if __name__ == "__main__":
    main()
