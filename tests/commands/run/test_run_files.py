"""Files of a run that goes on: small, and whole at any moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loaderdoctor.commands.run import run_files
from loaderdoctor.commands.run.run_files import EVENTS, OLDER, RunFiles


def lines(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_events_keep_the_newest_lines_in_two_files_of_a_few_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "ROTATE_BYTES", 2_000)
    files = RunFiles(tmp_path, None)
    for n in range(1000):
        files.event({"kind": "minute", "n": n, "text": "x" * 50})
        assert sum(p.stat().st_size for p in tmp_path.glob("events*")) < 4_200
    files.event({"kind": "minute", "n": 1000})  # so that there is a newer half, whatever was last
    kept = lines(tmp_path / OLDER) + lines(tmp_path / EVENTS)
    assert kept == list(range(1001 - len(kept), 1001))
    assert len(kept) > 20
    assert not list(tmp_path.glob("**/*.part"))


def test_a_folder_that_is_gone_is_said_once_and_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    files = RunFiles(folder, None)
    files.recorded.rmdir()
    folder.rmdir()
    for n in range(3):
        files.event({"n": n})
    assert capsys.readouterr().err.count("what it would hold is lost") == 1
