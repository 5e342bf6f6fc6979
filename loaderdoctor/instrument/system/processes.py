"""Processes of a run: whose parent is whose, signals, how to end them, what memory they hold."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.system.machine import (
    ROOT,
)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants, parents first; none where it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each, but for multiprocessing's resource trackers.

    A tracker ends by itself once all that it serves are gone, and takes out of /dev/shm what they
    left there: named semaphores of spawned workers, shared memory.
    """
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if not is_resource_tracker(process):
                process.kill()


def is_resource_tracker(process: psutil.Process) -> bool:
    """Whether a process is Python's own that cleans up behind others. Raises psutil.Error."""
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())


_PR_SET_PDEATHSIG = 1
PARENT_S = 1.0
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def die_with_parent(parent: int, *, by_thread: bool = False) -> None:
    """Get SIGTERM when that process dies, however it dies; on Linux, elsewhere do nothing.

    Linux sends it to children only, and when the thread ends that started them: where that is not
    the main one (`by_thread`), or a fork server is in between, a thread looks after the parent.
    """
    if not sys.platform.startswith("linux"):
        return
    if os.getppid() == parent and not by_thread:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(EXIT_INTERRUPTED)
        return
    try:
        process = psutil.Process(parent)
    except psutil.Error:
        sys.exit(EXIT_INTERRUPTED)
    threading.Thread(
        target=_die_behind, args=(process,), name="loaderdoctor-parent", daemon=True
    ).start()


def _die_behind(parent: psutil.Process) -> None:
    while _alive(parent):
        time.sleep(PARENT_S)
    os.kill(os.getpid(), signal.SIGTERM)


def outlive_terminal_reads() -> None:
    """In the measuring process: reading the terminal, which is its stdin, is an end of file.

    Scripts ask it for its width (`stty size`), which any process group may. One that is not in the
    foreground and reads it, or sets it up to be read, is stopped by the system, for good: with
    these signals ignored both fail instead, `input()` with EOFError.
    """
    for name in ("SIGTTIN", "SIGTTOU"):
        number = getattr(signal, name, None)  # Windows has neither
        if number is not None:
            signal.signal(number, signal.SIG_IGN)


class Terminated(KeyboardInterrupt):
    """A signal other than SIGINT asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def exit_code_of(interrupt: BaseException | None) -> int:
    """Exit code of an interrupted command, as shells report it: 128 + the signal's number."""
    return 128 + (interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT)


class Signals:
    """Catches them between `catch` and `release`, where nobody else does."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.catch()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def catch(self) -> None:
        """From now on they raise Terminated; only the main thread can say so."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _leave)

    def release(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


@contextmanager
def held() -> Iterator[list[KeyboardInterrupt]]:
    """Put off the first signal until the block's end, for work of some seconds that must be whole.

    What came is in the list, for the exit code; nothing is raised for it. A second signal does not
    wait: somebody wants out.
    """
    came: list[KeyboardInterrupt] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        if came:
            raise interrupt
        came.append(interrupt)

    before = {
        number: signal.getsignal(number)
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        if (number := getattr(signal, name, None)) is not None
    }
    taken = {n: h for n, h in before.items() if h in (_leave, signal.default_int_handler)}
    try:
        for number in taken:
            signal.signal(number, note)
        yield came
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


# Host memory. Pages shared between processes count once (PSS), so a forked worker doesn't count its
# parent's data again.


def host_bytes(pid: int, proc: Path = ROOT / "proc") -> int | None:
    """Memory of a process and all its descendants; None where the process is gone.

    Proportional set size where /proc has `smaps_rollup` for all of them (Linux >= 4.14), else the
    sum of resident sizes, which counts shared pages once for each process.
    """
    return bytes_of(tree(pid), proc)


def bytes_of(processes: Sequence[psutil.Process], proc: Path = ROOT / "proc") -> int | None:
    """The same of these processes; None where all are gone."""
    sizes = {process: _rollup(process.pid, proc) for process in processes}
    if None in sizes.values():
        # Unreadable because it ended meanwhile: its memory is gone. Else PSS can't be had for all.
        sizes = {process: size for process, size in sizes.items() if _alive(process)}
    if not sizes:
        return None
    shares = [size["Pss"] for size in sizes.values() if size is not None and "Pss" in size]
    return sum(shares) if len(shares) == len(sizes) else sum(map(_rss_bytes, sizes))


def unique_bytes(pid: int, proc: Path = ROOT / "proc") -> int | None:
    """What would be free if this process alone ended: pages that no other one has (USS).

    None where it is gone, or the system does not tell.
    """
    sizes = _rollup(pid, proc)
    if sizes is None:
        return None
    return sum(n for name, n in sizes.items() if name.startswith("Private_"))


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _rollup(pid: int, proc: Path) -> dict[str, int] | None:
    """Bytes by name of a smaps_rollup file, which is in KiB; None where it can't be read."""
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    rows = (line.split() for line in text.splitlines())
    return {
        words[0].removesuffix(":"): int(words[1]) * 1024
        for words in rows
        if len(words) >= 3 and words[2] == "kB" and words[1].isdigit()
    }


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


_NODES = Path("/sys/devices/system/node")
MIN_CPUS = 2  # or there is nothing to choose


class OnCpus:
    """A worker_init_fn that binds worker `i` to the `i`-th set of CPUs, then calls the user's."""

    def __init__(
        self, sets: tuple[frozenset[int], ...], init: Callable[[int], None] | None
    ) -> None:
        self._sets, self._init = sets, init

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker, before its first sample."""
        os.sched_setaffinity(0, self._sets[worker_id % len(self._sets)])
        if self._init is not None:
            self._init(worker_id)


def cpu_sets(how: str, nodes: Path = _NODES) -> tuple[frozenset[int], ...]:
    """What workers are bound to in turns: `all` CPUs, one `apart` for each, or a `numa` node each.

    `apart` and `numa` keep to the CPUs that this process may use; `all` are those that the machine,
    or the container, has. Raises TrialRefused where there is nothing to choose.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise TrialRefused("this system lets no process choose its CPUs")
    if how == "all":
        return (frozenset(range(os.cpu_count() or 1)),)
    usable = frozenset(os.sched_getaffinity(0))
    if len(usable) < MIN_CPUS:
        raise TrialRefused("the process may use one CPU only: there is none to choose")
    if how == "apart":
        return tuple(frozenset({cpu}) for cpu in sorted(usable))
    found = [cpus & usable for cpus in _of_nodes(nodes)]
    sets = tuple(cpus for cpus in found if cpus)
    if len(sets) < 2:
        raise TrialRefused(
            "the CPUs that the process may use lie on one NUMA node: binding workers to it changes "
            "nothing"
        )
    return sets


def _of_nodes(nodes: Path) -> list[frozenset[int]]:
    """The CPUs of each NUMA node; empty where the system doesn't tell."""
    found = []
    for node in sorted(nodes.glob("node[0-9]*"), key=lambda x: int(x.name.removeprefix("node"))):
        try:
            text = (node / "cpulist").read_text().strip()
        except OSError:
            continue
        cpus: set[int] = set()
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
        found.append(frozenset(cpus))
    return found
