"""A process that is to end with its parent does so, and not before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.process import BaseProcess

import psutil
import pytest

from loaderdoctor.instrument.system.processes import die_with_parent

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are let live"),
    pytest.mark.usefixtures("no_process_is_left"),
]
# Threads and fork servers of its own, and it is killed: no part of this process may be that.
STARTS = "from tests.instrument.system.test_processes_parent import starts; starts({!r}, {!r})"


def waits(parent: int, by_thread: bool) -> None:
    """For ever."""
    die_with_parent(parent, by_thread=by_thread)
    print(os.getpid(), flush=True)
    while True:
        signal.pause()


def starts(method: str, where: str) -> None:
    """Start a child, say so when the thread that started it is over, and wait."""
    context = multiprocessing.get_context(method)
    in_thread = where == "thread"
    child: BaseProcess = context.Process(target=waits, args=(os.getpid(), in_thread))  # type: ignore[attr-defined]
    if in_thread:
        thread = threading.Thread(target=child.start)
        thread.start()
        thread.join()
    else:
        child.start()
    child.join(0.8)
    print("lives" if child.exitcode is None else f"exit {child.exitcode}", flush=True)
    signal.pause()


@pytest.mark.parametrize(
    ("method", "where"), [("fork", "thread"), ("fork", "main"), ("forkserver", "main")]
)
def test_a_child_lives_as_long_as_its_parent(method: str, where: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS.format(method, where)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert parent.stdout.readline() == "lives\n"
    finally:
        parent.kill()
        parent.wait()
    child.wait(20)
