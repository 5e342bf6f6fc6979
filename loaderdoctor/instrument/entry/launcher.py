"""Entry of the process that starts one measuring process for each rank, with torch's own launcher.

Its arguments are torchrun's options. What `torch.distributed.run` starts, watches and ends is our
`child` instead of the script, which then runs the script as a rank.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import NoReturn

import msgspec

from loaderdoctor.instrument.command import bootstrap
from loaderdoctor.instrument.entry import verdict
from loaderdoctor.instrument.system.processes import die_with_parent, outlive_terminal_reads
from loaderdoctor.instrument.wire.channel import (
    CHANNEL_VARIABLE,
    Channel,
    LaunchConfig,
    encode_launch_config,
    peek_launch_config,
)
from loaderdoctor.instrument.wire.protocol import Ended, Spawned


def main() -> None:
    """Run the launcher to its end; it exits by itself where a rank fails."""
    launch_config = peek_launch_config()
    if launch_config is not None and launch_config.watch:
        _recorded(launch_config)
    outlive_terminal_reads()
    die_with_parent(os.getppid())
    _launch()


def _launch() -> None:
    from torch.distributed import run

    # "-u" as torchrun does, so that lines of the ranks come when they are printed.
    run.main([*sys.argv[1:], "--no-python", sys.executable, "-u", "-c", bootstrap("entry.child")])


def _recorded(launch_config: LaunchConfig) -> NoReturn:
    """In the place of torchrun: its exit code, after the report of its ranks."""
    # Not the ranks wait for the report: this does, for them.
    ranks = msgspec.structs.replace(launch_config, waits=False)
    os.environ[CHANNEL_VARIABLE] = encode_launch_config(ranks)
    try:
        channel: Channel | None = Channel.open(launch_config)
    except (OSError, EOFError):
        channel = None  # nobody listens
    if channel is not None:
        channel.send(Spawned(ends=True))
    code: object = 0
    try:
        _launch()
    except SystemExit as error:
        code = error.code
        raise
    except BaseException:
        code = 1
        raise
    finally:
        if channel is not None:
            failed = code not in (0, None)
            channel.send(
                Ended(
                    how="script-failed" if failed else "script-ended",
                    exit_code=int(failed),
                    n_steps=0,
                )
            )
        passed = verdict(channel, launch_config)
    sys.exit(passed)


def ask_store() -> None:
    """In a process of its own: set or get what the commands of this job's ranks tell one another.

    Its arguments: `set` (the value comes on stdin) or `get` (it goes to stdout), and how long to
    wait (s). For commands, which are free of torch.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    what, timeout_s = sys.argv[1:]
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=float(timeout_s)),
    )
    run, restart = (os.environ.get(f"TORCHELASTIC_{x}", "") for x in ("RUN_ID", "RESTART_COUNT"))
    key = f"loaderdoctor/{run}/{restart}"
    if what == "set":
        store.set(key, sys.stdin.read())
    else:
        sys.stdout.buffer.write(store.get(key))
