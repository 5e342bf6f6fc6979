"""Files of a run that goes on: small, and whole at any moment."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.alerts import Counted
from loaderdoctor.commands.run import run_files
from loaderdoctor.commands.run.run_files import (
    EVENTS,
    OLDER,
    Loop,
    Recorded,
    RunFiles,
    openmetrics,
    read_recorded,
)
from loaderdoctor.instrument.wire.measured import Surroundings
from loaderdoctor.instrument.wire.records import ScriptRecord
from loaderdoctor.report.run_model import Run, RunTime
from tests.attribution.builders import observed


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


def test_arguments_that_look_like_secrets_are_kept_nowhere(tmp_path: Path) -> None:
    """The report of a run that was killed is made of this file, which stays in its folder."""
    words = ("--lr", "0.1", "--api-key", "KEY-0123456789")
    script = ScriptRecord(given="train.py", args=words, cwd="/", n_ranks=1)
    watched = msgspec.structs.replace(observed(), script=script)
    loop = Loop(rank=0, hello=None, observed=watched, windows=(), notes=())
    RunFiles(tmp_path, None).loops(Recorded(label="train.py", began_s=0.0, loops=(loop,)))
    read, _ = read_recorded(tmp_path)
    assert read is not None
    assert read.loops[0].observed.script == msgspec.structs.replace(
        script, args=("--lr", "0.1", "--api-key", "***")
    )


def test_what_can_not_take_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "run.prom").mkdir()
    RunFiles(tmp_path, tmp_path / "run.prom").metrics("# EOF")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".recorded", "run.prom"]


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


def test_faults_queues_and_the_network_are_in_the_metrics_file_with_their_units() -> None:
    seconds = [f for f in RunTime.__struct_fields__ if f.endswith("_s")]
    run = Run(
        took_s=1.0,
        before_s=0.0,
        time=RunTime(n_steps=7, **dict.fromkeys(seconds, 0.0)),
        n_steps=7,
        step_ms_quantiles=None,
        wait_ms_quantiles=None,
    )
    look = Surroundings(at_s=1.0, end_ns=1, took_s=1.0, received_bytes_per_s=2.5e6)
    counted = Counted(minor_faults=350, major_faults=2, ready_batches=3, asked_batches=4)
    lines = openmetrics(run, look, counted).splitlines()
    assert 'loaderdoctor_page_faults_total{kind="minor"} 350' in lines
    assert 'loaderdoctor_page_faults_total{kind="major"} 2' in lines
    assert "loaderdoctor_ready_batches 3" in lines
    assert "loaderdoctor_asked_batches 4" in lines
    assert "loaderdoctor_received_bytes_per_second 2500000" in lines
    untold = openmetrics(run, None, Counted())
    assert not any(name in untold for name in ("page_faults", "_batches", "received"))
