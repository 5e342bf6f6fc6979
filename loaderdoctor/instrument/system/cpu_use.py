"""Who uses the CPUs in a window: this run, other programs, threads that wait for one. No torch.

Linux only; what a system or a container does not tell is None. Everything is read before the timed
part of a window and after it. CPU times of processes and of the machine come in ticks of 10 ms,
waiting times in nanoseconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from loaderdoctor.instrument.system.cgroups import ROOT, cpu_use_of_quota
from loaderdoctor.instrument.wire.records import CpuRecord
from loaderdoctor.units import NS_PER_S

# Columns of a `cpuN` line of /proc/stat: user nice system idle iowait irq softirq steal. Time that
# the hypervisor gave to other guests (steal) is as lost as time of other programs. What guests of
# this machine used is in `user` already.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class _Reading:
    """All counters at one instant, nanoseconds since some beginning."""

    at_ns: int
    main_ns: int  # CPU time of this process
    workers_ns: int | None  # of its children, ended ones included
    tree_ns: int | None  # of the whole run: command, ranks, workers
    busy_ns: int | None  # of all programs, on CPUs that this process may use
    group_ns: int | None  # of all programs that share this process's quota
    n_periods: int | None  # of the quota, and how many ended with the group held back
    n_throttled: int | None
    threads: dict[int, tuple[int, int]] | None  # of each: (ran, was ready and no CPU free)
    faults: int | None  # minor page faults of this thread


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
        first, last = self._first, self._read()
        threads = _differences(first.threads, last.threads)
        own = threads.get(threading.get_native_id()) if threads is not None else None
        python = _of_python(threads)
        return CpuRecord(
            wall_ns=last.at_ns - first.at_ns,
            main_ns=last.main_ns - first.main_ns,
            workers_ns=_more(first.workers_ns, last.workers_ns),
            tree_ns=_more(first.tree_ns, last.tree_ns),
            busy_ns=_more(first.busy_ns, last.busy_ns),
            n_cpus=len(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
            group_ns=_more(first.group_ns, last.group_ns),
            n_periods=_more(first.n_periods, last.n_periods),
            n_throttled=_more(first.n_throttled, last.n_throttled),
            waited_ns=None if threads is None else sum(ns for _, ns in threads.values()),
            thread_waited_ns=own[1] if own is not None else None,
            thread_faults=_more(first.faults, last.faults),
            thread_ns=own[0] if own is not None else None,
            python_ns=python[0] if python is not None else None,
            python_waited_ns=python[1] if python is not None else None,
        )

    def _read(self) -> _Reading:
        workers_ns, tree_ns = cpu_ns_of_run(self._root_pid)
        group = cpu_use_of_quota(self._root)
        return _Reading(
            at_ns=time.perf_counter_ns(),
            main_ns=time.process_time_ns(),
            workers_ns=workers_ns,
            tree_ns=tree_ns,
            busy_ns=busy_ns(self._root),
            group_ns=group.used_ns if group is not None else None,
            n_periods=group.n_periods if group is not None else None,
            n_throttled=group.n_throttled if group is not None else None,
            threads=_times_of_threads(),
            faults=thread_faults(),
        )


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
    try:
        lines = (root / "proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
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


def _times_of_threads() -> dict[int, tuple[int, int]] | None:
    """Of each thread of this process (ns): how long it ran, and stood ready without a CPU."""
    try:
        tasks = list(Path("/proc/self/task").iterdir())
    except OSError:
        return None
    seen = ((int(task.name), _times_of(task / "schedstat")) for task in tasks)
    found = {thread: times for thread, times in seen if times is not None}
    # A thread that runs has waited at least once, if only for nanoseconds.
    return found if any(waited for _, waited in found.values()) else None


def _times_of(schedstat: Path) -> tuple[int, int] | None:
    """Its first two numbers; None where the thread has ended, or the kernel keeps none."""
    try:
        ran, waited = schedstat.read_text().split()[:2]
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None


def _differences(
    first: dict[int, tuple[int, int]] | None, last: dict[int, tuple[int, int]] | None
) -> dict[int, tuple[int, int]] | None:
    """By thread; one that began meanwhile counts from its beginning."""
    if first is None or last is None:
        return None
    return {
        thread: (
            max(0, ran - first.get(thread, (0, 0))[0]),
            max(0, waited - first.get(thread, (0, 0))[1]),
        )
        for thread, (ran, waited) in last.items()
    }


def _of_python(threads: dict[int, tuple[int, int]] | None) -> tuple[int, int] | None:
    """Sums over the threads of this interpreter but the calling one: what may hold its lock."""
    if threads is None:
        return None
    others = {t.native_id for t in threading.enumerate()} - {threading.get_native_id(), None}
    times = [threads[thread] for thread in others if thread in threads]
    return sum(ran for ran, _ in times), sum(waited for _, waited in times)


def _more(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else max(0, last - first)
