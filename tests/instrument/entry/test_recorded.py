"""A recorded process takes its exit code from a report, and none passes what was not judged."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.instrument.command import ConnectionListener, bootstrap
from loaderdoctor.instrument.entry import verdict
from loaderdoctor.instrument.wire.channel import (
    CHANNEL_VARIABLE,
    LaunchConfig,
    encode_launch_config,
)


def config(*, judged: bool) -> LaunchConfig:
    return LaunchConfig(
        address="nowhere",
        authkey="",
        run_dir="",
        kind="script",
        target="train.py",
        args=(),
        judged=judged,
    )


@contextmanager
def heard(folder: Path, source: str) -> Iterator[subprocess.Popen[str]]:
    """A recorded process of this script, which somebody listens to."""
    (folder / "script.py").write_text(source)
    listener = ConnectionListener()
    launch_config = msgspec.structs.replace(
        config(judged=False),
        address=listener.address,
        authkey=base64.b64encode(listener.authkey).decode(),
        target="script.py",
        run_dir=str(folder),
        watch=True,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", bootstrap("entry.child")],
        cwd=folder,
        env={**os.environ, CHANNEL_VARIABLE: encode_launch_config(launch_config)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        listener.close()


def test_threads_that_wait_for_the_scripts_end_are_let_go(tmp_path: Path) -> None:
    """Of an executor that was left open, and one that joins the main thread."""
    source = (
        "import threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def last():\n"
        "    threading.main_thread().join()\n"
        "    print('behind it')\n"
        "ThreadPoolExecutor(1).submit(int).result()\n"
        "threading.Thread(target=last).start()\n"
    )
    with heard(tmp_path, source) as process:
        assert process.communicate(timeout=60) == ("behind it\n", "")
    assert process.returncode == 0


def test_a_signal_ends_the_wait_for_an_executors_threads(tmp_path: Path) -> None:
    source = (
        "import time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def work():\n"
        "    time.sleep(0.5)\n"
        "    print('works', flush=True)\n"
        "    time.sleep(600)\n"
        "ThreadPoolExecutor(1).submit(work)\n"
    )
    with heard(tmp_path, source) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_an_exception_of_a_script_that_nobody_listens_to_has_no_other_before_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "fails.py").write_text("{}['x']\n")
    launch_config = msgspec.structs.replace(
        config(judged=False), address="/nowhere", target="fails.py", watch=True
    )
    done = subprocess.run(
        [sys.executable, "-c", bootstrap("entry.child")],
        cwd=tmp_path,
        env={**os.environ, CHANNEL_VARIABLE: encode_launch_config(launch_config)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr


def test_without_a_listener_nothing_that_was_to_be_judged_passes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert verdict(None, config(judged=True)) == 1
    assert "--fail-on was not judged" in capsys.readouterr().err
    assert verdict(None, config(judged=False)) == 0
    assert not capsys.readouterr().err
