"""A recorded process takes its exit code from a report, and none passes what was not judged."""

from __future__ import annotations

import pytest

from loaderdoctor.instrument.entry.recorded import verdict
from loaderdoctor.instrument.wire.channel import LaunchConfig


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


def test_without_a_listener_nothing_that_was_to_be_judged_passes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert verdict(None, config(judged=True)) == 1
    assert "--fail-on was not judged" in capsys.readouterr().err
    assert verdict(None, config(judged=False)) == 0
    assert not capsys.readouterr().err
