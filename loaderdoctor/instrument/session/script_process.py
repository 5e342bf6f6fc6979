"""The script's own process: its files, which rank of how many it is, how hooks end it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
import tokenize
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loaderdoctor.instrument.system.interpreter import is_own
from loaderdoctor.instrument.wire.channel import LaunchConfig
from loaderdoctor.instrument.wire.protocol import Hello
from loaderdoctor.instrument.wire.records import ScriptRecord

# A script that catches everything, or cleans up for longer than this, is ended without it.
GRACE_S = 5.0
# A script with its modules; what is more is no place that advice is about.
MAX_FILES = 40
MAX_LETTERS = 600_000
_ABOUT = (re.compile(rb"DataLoader|num_workers"), re.compile(rb"Dataset|__getitem__"))


class StopTraining(BaseException):
    """Raised out of a hook to end the script; the script's `finally` blocks run."""


def exit_now() -> None:
    """Flush the standard streams, kill our children (workers), and leave with exit code 0."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        import psutil

        from loaderdoctor.instrument.system.processes import kill

        kill(psutil.Process().children(recursive=True))
    os._exit(0)


def exit_after_grace() -> None:
    """Start the daemon thread that ends the process if the script has not ended by itself.

    From now on a thread of the script's that `StopTraining` ends prints no traceback of ours.
    """
    shown = threading.excepthook

    def quietly(ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, StopTraining):
            shown(ended)

    threading.excepthook = quietly

    def wait() -> None:
        time.sleep(GRACE_S)
        exit_now()

    threading.Thread(target=wait, name="loaderdoctor-stop", daemon=True).start()


def as_launched(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Rank and number of ranks as a launcher such as torchrun sets them; None without one."""
    rank, n_ranks = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return (int(rank), int(n_ranks)) if rank.isdigit() and n_ranks.isdigit() else None


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """The same; None without several."""
    found = as_launched(environment)
    return found if found is not None and found[1] > 1 else None


def process_group() -> tuple[int, int] | None:
    """Rank and number of ranks of torch's process group; None where there is none."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.get_rank(), dist.get_world_size()


def hello(launch_config: LaunchConfig) -> Hello:
    """What this rank says first. Its folder is made here: on another machine in none shared."""
    rank, n_ranks = place() or (0, 1)
    return Hello(
        rank=rank,
        n_ranks=n_ranks,
        host=socket.gethostname(),
        run_dir=str(Path(launch_config.run_dir) / f"rank{rank}"),
    )


def script_of(launch_config: LaunchConfig, *, n_ranks: int = 1) -> ScriptRecord:
    """How it was started; `with_sources` adds its files once they are loaded."""
    path = launch_config.kind == "script"
    return ScriptRecord(
        given=launch_config.target if path else None,
        module=None if path else launch_config.target,
        args=launch_config.args,
        n_added_args=launch_config.n_added_args,
        n_ranks=n_ranks,
        cwd=str(Path.cwd()),
        launched="TORCHELASTIC_RUN_ID" in os.environ,
    )


def with_sources(script: ScriptRecord | None) -> ScriptRecord | None:
    """The record with the main script and the modules of its folder that are loaded."""
    if script is None:
        return None
    sources: dict[str, str] = {}
    left = MAX_LETTERS
    files = _files()
    if len(files) > MAX_FILES:  # a library next to the script: what advice is about, first
        files = [*files[:1], *sorted(files[1:], key=_distance)]
    for path in files:
        if len(sources) == MAX_FILES:
            break
        try:
            with tokenize.open(path) as file:  # in the encoding that it declares
                text = file.read()
        except (OSError, UnicodeDecodeError, SyntaxError):
            continue
        if len(text) <= left:
            sources[path] = text
            left -= len(text)
    return msgspec.structs.replace(script, sources=sources)


def _distance(path: str) -> int:
    """0 for a file that speaks of loaders, 1 of datasets, 2 of neither."""
    try:
        text = Path(path).read_bytes()
    except OSError:
        return len(_ABOUT)
    return next((i for i, words in enumerate(_ABOUT) if words.search(text)), len(_ABOUT))


def _files() -> list[str]:
    """The main script, then modules that lie below its folder or the working one."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(main, str):
        return []
    first = os.path.realpath(main)
    found = {first: None}
    folders = tuple({str(Path(first).parent) + os.sep, str(Path.cwd()) + os.sep})
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            path = os.path.realpath(path)
            if path.startswith(folders) and is_own(path):
                found[path] = None
    return list(found)
