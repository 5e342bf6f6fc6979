"""How a script ends that is stopped from inside a hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TRAINS_IN_A_THREAD = """\
import threading
from loaderdoctor.instrument.session.script_process import StopTraining, exit_after_grace

def train(error):
    raise error

def _pin_memory_loop(error):
    train(error)

exit_after_grace()
lost, own = ConnectionResetError("by a worker"), ValueError("the script's own")
for target, error in ((train, StopTraining()), (_pin_memory_loop, lost), (train, own)):
    thread = threading.Thread(target=target, args=(error,))
    thread.start()
    thread.join()
"""


def test_threads_end_without_a_traceback_of_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINS_IN_A_THREAD],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "StopTraining" not in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("ValueError: the script's own")


READS_FROM_A_CHILD = """\
import multiprocessing, os, threading, time
from loaderdoctor.instrument.session import script_process

def child(theirs):
    time.sleep(600)

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=child, args=(theirs,), daemon=True).start()
    theirs.close()
    reader = threading.Thread(target=ours.recv, daemon=True)
    reader.start()
    leave = os._exit

    def later(code):
        reader.join(60)  # it has its end of file by then
        leave(3 if reader.is_alive() else code)

    os._exit = later
    script_process.exit_now()
"""


def test_a_thread_that_reads_from_a_child_which_is_killed_prints_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(READS_FROM_A_CHILD)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
