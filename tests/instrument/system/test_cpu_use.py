"""Who uses the CPUs: real programs on this machine; files of other machines are faked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from loaderdoctor.attribution.cpu import cpu_facts
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.instrument.system.cpu_use import CpuMeter, busy_ns, root_of_run
from loaderdoctor.instrument.system.machine import usable_cpus
from loaderdoctor.instrument.wire.measured import CpuRecord
from loaderdoctor.instrument.wire.protocol import WindowDone

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SPIN = "while True: pass"
# Starts a program that spins and is nobody's child; prints its pid.
STRANGER = (
    "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'while True: pass'], "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
)


@contextmanager
def strangers(n: int) -> Iterator[list[psutil.Process]]:
    """Programs that spin and are not of this process's family."""
    pids = [
        int(
            subprocess.run([sys.executable, "-c", STRANGER], capture_output=True, check=True).stdout
        )
        for _ in range(n)
    ]
    processes = [psutil.Process(pid) for pid in pids]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def measured(seconds: float, work: Callable[[], object] = lambda: None) -> CpuRecord:
    meter = CpuMeter()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        work()
    return meter.since()


def facts_of(record: CpuRecord) -> CpuFacts:
    facts = cpu_facts([WindowDone(id=1, mode="plain", status="ok", cpu=record)], usable_cpus())
    assert facts is not None
    return facts


def cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(p.cpu_times().user + p.cpu_times().system for p in processes))


def test_programs_of_others_are_told_with_what_they_used() -> None:
    n = len(os.sched_getaffinity(0))
    with strangers(n) as hogs:
        before = cpu_s(hogs)
        record = measured(1.0, lambda: time.sleep(0.01))
        used = (cpu_s(hogs) - before) / (record.wall_ns / 1e9)
    facts = facts_of(record)
    assert facts.other_cores is not None
    # Whatever else runs here counts too; ticks of 10 ms and sampling make it uncertain.
    assert facts.other_cores >= 0.8 * used - 0.1
    assert facts.other_cores <= n + 0.1


def test_children_of_the_run_are_no_other_programs() -> None:
    children = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2)]
    try:
        known = [psutil.Process(child.pid) for child in children]
        before = cpu_s(known)
        record = measured(0.6, lambda: time.sleep(0.01))
        used_ns = (cpu_s(known) - before) * 1e9
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert record.workers_ns is not None and record.tree_ns is not None
    assert record.workers_ns == pytest.approx(used_ns, abs=0.1e9)
    assert record.tree_ns >= record.workers_ns
    assert record.tree_ns == pytest.approx(record.workers_ns + record.main_ns, abs=0.1e9)


def test_a_child_that_ends_meanwhile_still_counts() -> None:
    meter = CpuMeter()
    code = "import time\nwhile time.process_time() < 0.25: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    record = meter.since()
    assert record.workers_ns is not None
    assert record.workers_ns >= 0.2e9


def test_threads_that_find_no_cpu_are_seen_waiting() -> None:
    """One CPU for a stranger and the thread of this process: each gets about half."""
    own = os.sched_getaffinity(0)
    one = {min(own)}
    with strangers(1) as (hog,):
        hog.cpu_affinity(list(one))
        os.sched_setaffinity(0, one)
        try:
            record = measured(0.8)
        finally:
            os.sched_setaffinity(0, own)
    assert record.waited_ns is not None and record.thread_waited_ns is not None
    assert record.n_cpus == 1
    share = record.thread_waited_ns / record.wall_ns
    # What it did not run, it waited.
    assert share == pytest.approx(1 - record.main_ns / record.wall_ns, abs=0.1)
    assert share > 0.2


def test_a_thread_that_sleeps_waits_for_no_cpu() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    record = measured(0.3, lambda: time.sleep(0.05))
    stop.set()
    assert record.waited_ns is not None
    # Also where the machine is full it asks for a CPU a few times only.
    assert record.waited_ns < 0.5 * record.wall_ns


def test_the_root_of_a_run_is_as_far_up_as_told() -> None:
    assert root_of_run(0) == os.getpid()
    assert root_of_run(1) == os.getppid()
    assert root_of_run(999) == os.getpid()  # there is no such process


def proc_stat(root: Path, lines: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc/stat").write_text(lines)
    return root


def test_only_cpus_that_may_be_used_count_with_stolen_time_and_without_idle(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    rows = [f"cpu{n} 10 5 20 1000 500 1 2 3 7 7" for n in mine]
    root = proc_stat(
        tmp_path, "\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *rows, "cpu9999 99 99 99 9 9 9 9 9"])
    )
    ticks = 10 + 5 + 20 + 1 + 2 + 3
    assert busy_ns(root) == len(mine) * ticks * 10**9 // os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "cpu 1 2 3 4 5 6 7 8\n",
        "cpu9999 1 2 3 4 5 6 7 8\n",
        None,
        "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n",
    ],
    ids=["empty", "no CPUs", "other CPUs", "no file", "nothing counted"],
)
def test_where_the_system_does_not_tell_it_is_not_known(tmp_path: Path, lines: str | None) -> None:
    root = tmp_path if lines is None else proc_stat(tmp_path, lines)
    assert busy_ns(root) is None
