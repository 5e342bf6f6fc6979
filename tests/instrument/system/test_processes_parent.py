"""A process that is to end with its parent does so, and not before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
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


def waits(parent: int, by_thread: bool, told: Connection) -> None:
    """For ever."""
    die_with_parent(parent, by_thread=by_thread)
    told.send(os.getpid())
    while True:
        signal.pause()


def starts(method: str, where: str) -> None:
    """Start a child, say so when the thread that started it is over, and wait."""
    context = multiprocessing.get_context(method)
    in_thread = where == "thread"
    told, tells = context.Pipe(duplex=False)
    child: BaseProcess = context.Process(target=waits, args=(os.getpid(), in_thread, tells))  # type: ignore[attr-defined]
    if in_thread:
        thread = threading.Thread(target=child.start)
        thread.start()
        thread.join()
    else:
        child.start()
    tells.close()
    pid = told.recv()
    child.join(0.5)
    print(pid, child.exitcode, flush=True)
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
        pid, exit_code = parent.stdout.readline().split()
        assert exit_code == "None"
        child = psutil.Process(int(pid))
    finally:
        parent.kill()
        parent.wait()
    child.wait(20)
