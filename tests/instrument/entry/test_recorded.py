"""A recorded process takes its exit code from a report, and none passes what was not judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.instrument.command import bootstrap
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
