"""Progress of reading and writing one large trace: time left at a terminal, nothing elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from loaderdoctor.commands.output import progress
from loaderdoctor.report import RunFolder
from loaderdoctor.report.traces import write_capture
from loaderdoctor.trace import read_trace
from tests.report.conftest import trace_path

BIG = 70 << 20  # plain files of this size are read in parts, by several processes
EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":1}'


def shown(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=80, force_terminal=terminal, color_system=None), file


@pytest.mark.alone
def test_time_left_is_drawn_after_a_second_and_a_few_times_a_second() -> None:
    console, file = shown(terminal=True)
    now_s = [0.0]
    with progress("Reading a.json", console=console, clock=lambda: now_s[0]) as told:
        assert told is not None
        for n in range(101):
            now_s[0] = n / 10
            told(n / 100)
    text = file.getvalue()
    assert "about 9 s left" in text and "nearly done" in text
    assert "about 10 s left" not in text  # it was silent then
    assert 30 <= text.count("Reading a.json") <= 50


def test_a_pipe_is_not_told() -> None:
    console, file = shown(terminal=False)
    with progress("Reading a.json", console=console) as told:
        assert told is None
    assert file.getvalue() == ""


@pytest.mark.parametrize("packed", [True, False])
def test_reading_tells_how_much_is_read(packed: bool, tmp_path: Path) -> None:
    path = trace_path("launch_bound_tiny")
    if not packed:
        path = tmp_path / "plain.json"
        path.write_bytes(b'{"traceEvents":[' + b",".join(EVENT % n for n in range(9000)) + b"]}")
    told: list[float] = []
    read_trace(path, on_share=told.append)
    assert told == sorted(told)
    assert 0 < told[0] <= told[-1] == 1.0


@pytest.mark.slow
def test_reading_in_parts_tells_of_its_own_part(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    n = BIG // len(EVENT % 1_000_000)
    path.write_bytes(b'{"traceEvents":[' + b",".join(EVENT % t for t in range(n)) + b"]}")
    told: list[float] = []
    assert len(read_trace(path, on_share=told.append).spans) == n
    assert told == sorted(told)
    assert told[0] < 0.2 and told[-1] == 1.0


def test_writing_tells_how_much_of_both_files_is_written(tmp_path: Path) -> None:
    told: list[float] = []
    folder = RunFolder.create("train.py", parent=tmp_path, at=0.0)
    source = trace_path("launch_bound_tiny")
    write_capture(folder, "baseline", source, at_ns=1, on_share=told.append)
    assert told == sorted(told)
    assert len(told) > 4
    assert told[0] < 0.2 and 0.9 < told[-1] <= 1.0
