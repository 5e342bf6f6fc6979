"""Lets the commands of a job's ranks find one another, through the store of torch's launcher.

`torchrun … -m loaderdoctor diagnose SCRIPT` starts one command for each rank. Rank 0's drives all
of them, so the others must learn where it listens, and its key. torchrun's store is there before
any rank is, and only the job's own ranks are told where. The store's client is torch, so another
process asks it and the commands stay free of torch.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.command.measuring_process import bootstrap
from loaderdoctor.instrument.wire.channel import LaunchConfig

TIMEOUT_S = 300.0  # ranks of other machines may start later


def check_launcher() -> None:
    """Raise UsageError where torchrun did not start the ranks: there is nowhere to meet."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    raise UsageError(
        "RANK and WORLD_SIZE say that this is one rank of several, but not under torchrun, whose "
        "store the ranks would meet in. Use `loaderdoctor diagnose --nproc-per-node N SCRIPT` or "
        "`torchrun … -m loaderdoctor diagnose SCRIPT`; for one rank alone, unset WORLD_SIZE."
    )


def publish(launch_config: LaunchConfig) -> None:
    """Tell the other ranks' commands. Raises RunError."""
    _ask("set", msgspec.json.encode(launch_config))


def fetch() -> LaunchConfig:
    """What rank 0's command published; waits for it. Raises RunError."""
    return msgspec.json.decode(_ask("get", b""), type=LaunchConfig)


def same_machine() -> bool:
    """Whether all ranks of the job run on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _ask(what: str, text: bytes) -> bytes:
    try:
        done = subprocess.run(
            [sys.executable, "-c", bootstrap("entry.store_client"), what, str(TIMEOUT_S)],
            input=text,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_S + 60.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise RunError(
            "The ranks did not find one another through torchrun's store at "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}."
        ) from None
    return done.stdout
