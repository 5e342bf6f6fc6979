"""The script's own process: its files, its rank, how hooks end it, what its workers write."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
import tokenize
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec

from loaderdoctor.instrument.system import is_own
from loaderdoctor.instrument.wire.channel import LaunchConfig
from loaderdoctor.instrument.wire.protocol import Hello
from loaderdoctor.instrument.wire.records import ScriptRecord

# A script that catches everything, or cleans up for longer than this, is ended without it.
GRACE_S = 5.0
# A script with its modules; what is more is no place that advice is about.
MAX_FILES = 40
MAX_LETTERS = 600_000
# Of a library next to the script so many files are read to see what they are about, in the training
# process: 0.1 s (136 of torch's took 65 to 78 ms from memory), 1 s where opening one takes 5 ms.
MAX_LOOKED = 200
MAX_BYTES_LOOKED = 100_000
_ABOUT = (re.compile(rb"DataLoader|num_workers"), re.compile(rb"Dataset|__getitem__"))


class StopTraining(BaseException):
    """Raised out of a hook to end the script; the script's `finally` blocks run."""


def exit_now() -> NoReturn:
    """Flush the standard streams, kill our children (workers), and leave with exit code 0."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    threading.excepthook = lambda _: None  # of threads that read from them
    with contextlib.suppress(Exception):
        import psutil

        from loaderdoctor.instrument.system.processes import kill

        kill(psutil.Process().children(recursive=True))
    os._exit(0)


def exit_after_grace() -> None:
    """Start the daemon thread that ends the process if the script has not ended by itself.

    From now on a thread of the script's that `StopTraining` ends prints no traceback of ours, nor
    one that pins batches where Python's exit ends the workers first.
    """
    shown = threading.excepthook

    def quietly(ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, StopTraining) and not _lost_its_workers(ended):
            shown(ended)

    threading.excepthook = quietly

    def wait() -> None:
        time.sleep(GRACE_S)
        exit_now()

    threading.Thread(target=wait, name="loaderdoctor-stop", daemon=True).start()


def _lost_its_workers(ended: threading.ExceptHookArgs) -> bool:
    """Whether it is torch's thread that pins, which was receiving from a worker that is no more."""
    frames = traceback.walk_tb(ended.exc_traceback)
    return any(frame.f_code.co_name == "_pin_memory_loop" for frame, _ in frames)


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


def with_sources(script: ScriptRecord | None, places: Iterable[str] = ()) -> ScriptRecord | None:
    """The record with the main script and the modules of its folder that are loaded.

    Called from within the loop: first come the files whose calls are under way, then those of
    `places`, files or their names alone, where the loop was seen to do what advice may be about.
    """
    if script is None:
        return None
    sources: dict[str, str] = {}
    left = MAX_LETTERS
    for path in _in_order(_files(), places):
        if len(sources) == MAX_FILES:
            break
        try:
            with tokenize.open(path) as file:  # in the encoding that it declares
                text = file.read(left + 1)
        except (OSError, UnicodeDecodeError, SyntaxError):
            continue
        if len(text) <= left:
            sources[path] = text
            left -= len(text)
    return msgspec.structs.replace(script, sources=sources)


def _in_order(files: list[str], places: Iterable[str]) -> list[str]:
    """The main script, which is the first, what is known to matter, then the others.

    Of many the others come by what they speak of, and those that are not looked at last.
    """
    seen = set(places)
    under_way = dict.fromkeys(os.path.realpath(path) for path in _under_way())
    first = dict.fromkeys([*files[:1], *(path for path in under_way if path in files)])
    first |= dict.fromkeys(x for x in files if x in seen or Path(x).name in seen)
    others = [path for path in files if path not in first]
    if len(files) > MAX_FILES:  # a library next to the script, whose own files lie deeper
        others.sort(key=lambda path: path.count(os.sep))
        others[:MAX_LOOKED] = sorted(others[:MAX_LOOKED], key=_distance)
    return [*first, *others]


def _under_way() -> Iterator[str]:
    """Files of the calls around this one, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _distance(path: str) -> int:
    """0 for a file that speaks of loaders, 1 of datasets, 2 of neither."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES_LOOKED)
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


# Of one process's records of single batches in a run that is recorded to its end: those of some
# thousand batches, which findings rest on.
RECORDS_BYTES = 2_000_000


class WorkerRecords:
    """Whether DataLoader workers of this run write their own records, and where.

    The run goes on where that fails. What records workers imports torch, so it is imported here
    only once the script has done so.
    """

    def __init__(
        self,
        run_dir: Path,
        note: Callable[[str, str], None],
        loader_id: Callable[[Any], str | None],
        wanted: bool,
    ) -> None:
        self._folder = run_dir / "workers"
        self._note = note
        self._loader_id = loader_id
        self._wanted = wanted
        self._worker: Any = None  # the module that records, while it does
        self.bounded = False  # records of single batches end, sums go on
        self.sums_folder = run_dir / "sums"  # kept there, on a disk of this machine

    def start(self) -> None:
        """Record from now on; called at the first loader that is built.

        Not when torch.utils.data is imported: what records workers imports it itself.
        """
        if not self._wanted or self._worker is not None:
            return
        try:
            from loaderdoctor.instrument.workers import worker

            self._worker = worker
            limit = RECORDS_BYTES if self.bounded else None
            worker.install(self._folder, self._loader_id, limit_bytes=limit)
            if self.bounded:
                from loaderdoctor.instrument import workers

                workers.install(self.sums_folder)
        except Exception as error:
            self._note("workers-not-recorded", f"{type(error).__name__}: {error}")

    def flush(self) -> None:
        """Write out what this process holds back; workers write by themselves."""
        if self._worker is not None:
            self._worker.flush()

    def sums_only(self) -> None:
        """Enough batches were recorded one by one."""
        if self._worker is not None and self.bounded:
            self._worker.without_records()

    def stop(self) -> None:
        """Stop for good, and write out what this process has recorded."""
        self._wanted = False
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if self.bounded:
                from loaderdoctor.instrument import workers

                workers.remove()
            worker.remove()
        except Exception as error:
            self._note("workers-not-recorded", f"{type(error).__name__}: {error}")
