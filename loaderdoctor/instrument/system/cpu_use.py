"""Who uses the CPUs in a window: this run, other programs, threads that wait for one. No torch.

Linux only; what a system or a container does not tell is None. Everything is read before the timed
part of a window and after it. CPU times of processes and of the machine come in ticks of 10 ms,
waiting times in nanoseconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from random import Random
from threading import get_ident
from typing import Any

import psutil

from loaderdoctor.instrument.system.machine import ROOT, cpu_use_of_quota, text_of
from loaderdoctor.instrument.wire.measured import CpuRecord
from loaderdoctor.units import NS_PER_S

# Columns of a `cpuN` line of /proc/stat: user nice system idle iowait irq softirq steal. Time that
# the hypervisor gave to other guests (steal) is as lost as time of other programs. What guests of
# this machine used is in `user` already.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
# Of each thread (ns): how long it ran, and stood ready without a CPU.
Times = dict[int, tuple[int, int]]

_MAX_BYTES = (
    64  # of schedstat: three numbers: ns it ran, ns it waited to, how often it was given a CPU
)
# Two readings in a fetch take 22 us of a step (RunQueue): half a percent of so long a time.
READ_EVERY_NS = 4_000_000
_UNREADABLE = (OSError, ValueError, IndexError)


class CpuMeter:
    """Reads at its making; `since` tells what was used from then on. Belongs to one thread.

    `n_above` processes above this one belong to the run: what runs below the topmost is not "other
    programs".
    """

    def __init__(self, n_above: int = 0, root: Path = ROOT) -> None:
        self._root_pid, self._root = root_of_run(n_above), root
        self._first = self._read()

    def since(self) -> CpuRecord:
        """What was used since this meter was made."""
        (first, threads_before), (last, threads_now) = self._first, self._read()
        threads = _differences(threads_before, threads_now)
        own_ns, own_waited_ns = (threads or {}).get(threading.get_native_id(), (None, None))
        python_ns, python_waited_ns = _of_python(threads)
        used: dict[str, Any] = {name: _more(first[name], n) for name, n in last.items()}
        return CpuRecord(
            **used,
            n_cpus=len(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
            waited_ns=None if threads is None else sum(ns for _, ns in threads.values()),
            thread_waited_ns=own_waited_ns,
            thread_ns=own_ns,
            python_ns=python_ns,
            python_waited_ns=python_waited_ns,
        )

    def _read(self) -> tuple[dict[str, Any], Times | None]:
        """Counters by the names that their differences have in the record, and by thread."""
        workers_ns, tree_ns = cpu_ns_of_run(self._root_pid)
        group = cpu_use_of_quota(self._root)
        counters = {
            "wall_ns": time.perf_counter_ns(),
            "main_ns": time.process_time_ns(),
            "workers_ns": workers_ns,
            "tree_ns": tree_ns,
            "busy_ns": busy_ns(self._root),
            "group_ns": group.used_ns if group is not None else None,
            "n_periods": group.n_periods if group is not None else None,
            "n_throttled": group.n_throttled if group is not None else None,
        }
        return {**counters, "thread_faults": thread_faults()}, _times_of_threads()


def thread_faults() -> int | None:
    """Minor page faults of the calling thread so far; None where the system tells none by thread.

    Costs a microsecond.
    """
    if sys.platform != "linux":
        return None
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def busy_ns(root: Path = ROOT) -> int | None:
    """Time for which CPUs that this process may use have worked for anyone; None: not told.

    None too where the list is of other CPUs than this process may use, as in containers that see
    their own CPUs.
    """
    if sys.platform != "linux":
        return None
    wanted = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    total, seen = 0, set()
    for line in text_of(root / "proc/stat").splitlines():
        name, *columns = line.split()
        if name in wanted and len(columns) > max(_BUSY_COLUMNS):
            total += sum(int(columns[i]) for i in _BUSY_COLUMNS)
            seen.add(name)
    # All zero: a sandbox that shows the file and counts nothing.
    return total * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if seen == wanted and total else None


def cpu_ns_of_run(root_pid: int) -> tuple[int | None, int | None]:
    """CPU time (of this process's children, of all below `root_pid` and itself).

    Ended children are included, so that differences add up: one that ends between two readings
    moves from "alive" to what the system sums for children that were waited for.
    """
    own = os.getpid()
    try:
        times = os.times()
        below = psutil.Process(root_pid).children(recursive=True)
        workers = times.children_user + times.children_system
        tree = _cpu_s(psutil.Process(root_pid)) or 0.0
        mine = {own}
        for process in below:  # parents come before their children
            parent, used = _ppid(process), _cpu_s(process)
            tree += used or 0.0
            if parent in mine:
                mine.add(process.pid)
                workers += used or 0.0
    except (OSError, psutil.Error):
        return None, None
    return round(workers * NS_PER_S), round(tree * NS_PER_S)


def root_of_run(n_above: int) -> int:
    """The topmost process of a run that has `n_above` processes above this one."""
    if not n_above:
        return os.getpid()
    try:
        return int(psutil.Process().parents()[n_above - 1].pid)
    except (OSError, psutil.Error, IndexError):
        return os.getpid()


def _cpu_s(process: psutil.Process) -> float | None:
    """CPU time of a process and of those of its children that were waited for."""
    try:
        cpu = process.cpu_times()
    except psutil.Error:
        return None
    ended = getattr(cpu, "children_user", 0.0) + getattr(cpu, "children_system", 0.0)
    return float(cpu.user + cpu.system + ended)


def _ppid(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def _times_of_threads() -> Times | None:
    """Of each thread of this process; None where the system does not tell."""
    found: Times = {}
    try:
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, ValueError):  # it has ended, or the kernel keeps none
                ran, waited = (task / "schedstat").read_text().split()[:2]
                found[int(task.name)] = int(ran), int(waited)
    except OSError:
        return None
    # A thread that runs has waited at least once, if only for nanoseconds.
    return found if any(waited for _, waited in found.values()) else None


def _differences(first: Times | None, last: Times | None) -> Times | None:
    """By thread; one that began meanwhile counts from its beginning."""
    if first is None or last is None:
        return None
    before = {thread: first.get(thread, (0, 0)) for thread in last}
    return {
        thread: (max(0, ran - before[thread][0]), max(0, waited - before[thread][1]))
        for thread, (ran, waited) in last.items()
    }


def _of_python(threads: Times | None) -> tuple[int, int] | tuple[None, None]:
    """Sums over the threads of this interpreter but the calling one: what may hold its lock."""
    if threads is None:
        return None, None
    others = {t.native_id for t in threading.enumerate()} - {threading.get_native_id(), None}
    times = [threads[thread] for thread in others if thread in threads]
    return sum(ran for ran, _ in times), sum(waited for _, waited in times)


def _more(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else max(0, last - first)


class RunQueue:
    """How long a thread stood ready to run and no CPU was free, told while it runs.

    The kernel counts it as soon as the thread has a CPU again, so two readings around a wait say
    how much of it was waiting for a CPU and not for what the thread asked for. Reads it for
    whichever thread asks: a file stays open for each until `close`. A reading takes a microsecond
    in a row and 11 us where a batch has left caches cold, so two in each step of 2 ms cost 1 % of
    it (22 us: `hook_overhead.py` on an H200, 53 us with and 31 without); `if_due` spaces them.
    """

    def __init__(self) -> None:
        self._due_ns: dict[int, int] = {}  # by loader
        self._draw = Random().random  # not the user's generator
        self._files: dict[int, int] = {}  # by thread; -1: the system tells nothing
        self._closed = False
        self.waited_ns()  # opening the first takes ten times as long as reading it

    def if_due(self, loader: int, now_ns: int) -> int | None:
        """`waited_ns` at the first of two readings; None also where its last pair was just now.

        At irregular intervals, so that no worker's batches are left out by turns; of each loader,
        since the first of a step would else be asked each time and the second never.
        """
        if now_ns < self._due_ns.get(loader, 0):
            return None
        self._due_ns[loader] = now_ns + int(READ_EVERY_NS * (0.5 + self._draw()))
        return self.waited_ns()

    def waited_ns(self) -> int | None:
        """Of the calling thread, since it began; None where the system does not tell."""
        file = self._files.get(get_ident())
        if file is None:
            file = self._files[get_ident()] = -1 if self._closed else _open()
        if file < 0:
            return None
        try:  # in place, not in a function of its own: this runs twice in each fetch
            return int(os.pread(file, _MAX_BYTES, 0).split()[1])
        except _UNREADABLE:
            return None  # closed meanwhile

    def close(self) -> None:
        """No file stays open; readings are None from then on."""
        self._closed = True
        files, self._files = self._files, dict.fromkeys(self._files, -1)
        for file in files.values():
            if file >= 0:
                os.close(file)


def _open() -> int:
    """The calling thread's counters; -1 where there are none, or none that count."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    if _counts(file):
        return file
    os.close(file)
    return -1


def _counts(file: int) -> bool:
    """Whether the kernel counts: a thread that runs was given a CPU, if it never waited for one."""
    try:
        return int(os.pread(file, _MAX_BYTES, 0).split()[2]) > 0
    except _UNREADABLE:
        return False
