"""How a script ends that is stopped from inside a hook."""

from __future__ import annotations

import subprocess
import sys

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
