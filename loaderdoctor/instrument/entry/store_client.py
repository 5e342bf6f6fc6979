"""Entry of a process that asks the store of torch's launcher, for a command that is free of torch.

Arguments: `set` (the value comes on stdin) or `get` (it goes to stdout), and how long to wait (s).
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta


def main() -> None:
    """Set or get what the commands of this job's ranks tell one another."""
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
