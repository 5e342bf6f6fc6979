"""Trainings that callbacks record: never ended by what recording can't do."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.callbacks import Recorder
from loaderdoctor.commands.run.monitor import monitor
from loaderdoctor.errors import RunError, UsageError


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """What each training was to be written to; nothing is started."""
    asked: list[Path | None] = []

    def start(self: monitor) -> None:
        if self._output is not None and self._output.exists():
            raise UsageError(f"{self._output}: is not empty.")
        asked.append(self._output)
        if self._output is not None:
            self._output.mkdir()

    monkeypatch.setattr(monitor, "start", start)
    return asked


def recorded(output: Path | None) -> Recorder:
    return Recorder(output=output)


def test_later_trainings_have_folders_of_their_own(
    folders: list[Path | None], tmp_path: Path
) -> None:
    trainings = recorded(tmp_path / "run")
    for _ in range(3):
        trainings.begin_recording(first_rank=True)
        trainings.end_recording()
    assert folders == [tmp_path / "run", tmp_path / "run-2", tmp_path / "run-3"]


def test_a_folder_in_use_leaves_the_training_alone(
    folders: list[Path | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings = recorded(tmp_path)
    trainings.begin_recording(first_rank=True)
    trainings.end_recording()
    assert folders == []
    said = capsys.readouterr().err
    assert "This training is not recorded" in said
    assert said.count("\n") == 1
    assert trainings.report(show=False) is None


def test_a_training_within_a_block_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor, "_open", monitor())
    trainings = recorded(None)
    trainings.begin_recording(first_rank=True)
    trainings.end_recording()
    assert "another loop of this process is being recorded" in capsys.readouterr().err
    assert trainings.report(show=True) is None


def test_other_ranks_train_and_are_told_where_the_report_is(
    folders: list[Path | None], capsys: pytest.CaptureFixture[str]
) -> None:
    trainings = recorded(None)
    with pytest.raises(RunError):
        trainings.report(show=False)
    trainings.begin_recording(first_rank=False)
    trainings.end_recording()
    assert capsys.readouterr().err == ""
    assert trainings.report(show=False) is None
    assert "ranks the first is recorded" in capsys.readouterr().err
    assert folders == []
