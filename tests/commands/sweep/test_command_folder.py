"""What a sweep keeps in its run folder while it measures."""

from __future__ import annotations

from pathlib import Path

from loaderdoctor.commands.sweep import raw_traces
from loaderdoctor.report import RunFolder


def test_raw_traces_go_those_of_a_killed_command_too(tmp_path: Path) -> None:
    with raw_traces(RunFolder(tmp_path)) as killed:
        left = killed.with_name(killed.name + "-left")
        killed.rename(left)
        (left / "trace.json").touch()
        killed.mkdir()
    assert list(tmp_path.iterdir()) == [left]
    with raw_traces(RunFolder(tmp_path)) as resumed:
        assert list(tmp_path.iterdir()) == [resumed]
    assert list(tmp_path.iterdir()) == []
