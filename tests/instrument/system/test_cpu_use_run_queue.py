"""How long a thread stood ready without a CPU: told by the system, next to a program that spins."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from loaderdoctor.instrument.system.cpu_use import READ_EVERY_NS, RunQueue

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SPIN = "while True: pass"


def spun_ns(queue: RunQueue, seconds: float) -> tuple[int, int]:
    """Spins for so much CPU time: (wall time, of it ready without a CPU), ns."""
    before, start_ns = queue.waited_ns(), time.perf_counter_ns()
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    os.sched_yield()  # what it stood in the queue counts once it has been given a CPU again
    wall_ns, after = time.perf_counter_ns() - start_ns, queue.waited_ns()
    assert before is not None and after is not None
    return wall_ns, after - before


def test_a_thread_that_shares_its_cpu_stands_ready_while_the_other_runs() -> None:
    own = os.sched_getaffinity(0)
    queue = RunQueue()
    os.sched_setaffinity(threading.get_native_id(), {min(own)})  # its child inherits it
    other = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        time.sleep(0.5)
        wall_ns, waited_ns = spun_ns(queue, 0.3)
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(threading.get_native_id(), own)
        queue.close()
    # Two that always want one CPU have half of it each; a quarter leaves room.
    assert 0.25 * wall_ns < waited_ns <= wall_ns


def test_sleeping_is_no_standing_ready() -> None:
    queue = RunQueue()
    before, start_ns = queue.waited_ns(), time.perf_counter_ns()
    time.sleep(0.5)
    wall_ns, after = time.perf_counter_ns() - start_ns, queue.waited_ns()
    queue.close()
    assert before is not None and after is not None
    assert after - before <= wall_ns - 450_000_000


def test_each_thread_is_told_its_own() -> None:
    queue = RunQueue()
    told: list[int | None] = []

    def ask() -> None:
        for _ in range(20):  # one that was given a CPU at once has not waited for any
            time.sleep(0.001)
        told.append(queue.waited_ns())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    queue.close()
    assert told[0] is not None
    assert told[0] < 10_000_000_000  # of its own short life, whatever this process waited so far


def test_closed_it_holds_no_file_and_tells_nothing() -> None:
    n_open = len(list(Path("/proc/self/fd").iterdir()))
    queue = RunQueue()
    assert len(list(Path("/proc/self/fd").iterdir())) == n_open + 1
    queue.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == n_open
    assert queue.waited_ns() is None


def test_a_system_that_tells_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", missing)
    assert RunQueue().waited_ns() is None


@pytest.mark.parametrize("said", [b"", b"17", b"no numbers here", None])
def test_counters_that_cannot_be_read_are_none_and_leave_no_file_open(
    monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """It is asked inside the user's `next()`: nothing may rise from it."""

    def read(*_: object) -> bytes:
        if said is None:
            raise OSError
        return said

    n_open = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "pread", read)
    assert RunQueue().waited_ns() is None
    assert len(list(Path("/proc/self/fd").iterdir())) == n_open


def test_closed_between_two_readings_it_tells_nothing() -> None:
    queue = RunQueue()
    before = queue.waited_ns()
    after = queue.waited_ns()
    assert before is not None and after is not None and after >= before
    queue.close()
    assert queue.waited_ns() is None


@pytest.mark.parametrize(("step_ms", "least", "most"), [(1.0, 0.15, 0.4), (8.0, 1.0, 1.0)])
def test_of_short_steps_some_are_asked_and_of_long_ones_all(
    step_ms: float, least: float, most: float
) -> None:
    queue, step_ns = RunQueue(), round(step_ms * 1e6)
    asked = [n for n in range(400) if queue.if_due(0, n * step_ns) is not None]
    queue.close()
    assert least <= len(asked) / 400 <= most
    gaps = [b - a for a, b in pairwise(asked)]
    assert median(gaps) * step_ns == pytest.approx(max(step_ns, READ_EVERY_NS), rel=0.4)
    assert len(set(gaps)) > 1 or set(gaps) == {1}  # no worker is left out by turns


def test_each_loader_of_a_step_is_asked() -> None:
    queue = RunQueue()
    asked = {0: 0, 1: 0}
    for n in range(200):
        for loader in asked:
            now_ns = n * 10_000_000 + loader * 300_000  # the second right behind the first
            asked[loader] += queue.if_due(loader, now_ns) is not None
    queue.close()
    assert asked == {0: 200, 1: 200}
