"""Sums that workers keep: differences, beginnings, ends and deaths; files of the ended go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from loaderdoctor.instrument.recording.workers_beat import WorkersReader
from loaderdoctor.instrument.wire.record_file import SUMS, SUMS_MAGIC, SUMS_SUFFIX


def write(folder: Path, pid: int, *, n: int = 0, make_ns: int = 0, ended: int = 0) -> Path:
    path = folder / f"{pid}-1{SUMS_SUFFIX}"
    path.write_bytes(SUMS.pack(SUMS_MAGIC, pid, 0, ended, 1, n, make_ns, make_ns // 2, 7, 3))
    return path


def test_what_workers_did_since_the_last_look(tmp_path: Path) -> None:
    reader = WorkersReader(tmp_path)
    assert reader.take() is None
    write(tmp_path, os.getpid(), n=5, make_ns=50)
    first = reader.take()
    write(tmp_path, os.getpid(), n=8, make_ns=90)
    second = reader.take()
    assert first is not None and second is not None
    assert (first.n_started, first.n_alive, first.n_batches, first.make_ns) == (1, 1, 5, 50)
    assert (second.n_started, second.n_batches, second.make_ns, second.cpu_ns) == (0, 3, 40, 20)
    assert second.pids == (os.getpid(),)


def test_one_that_says_so_has_ended_and_one_that_does_not_has_died(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    reader = WorkersReader(tmp_path)
    write(tmp_path, gone.pid, n=1)
    write(tmp_path, os.getpid(), ended=1)
    beat = reader.take()
    assert beat is not None
    assert (beat.n_died, beat.n_ended, beat.n_alive) == (1, 1, 0)
    assert not list(tmp_path.iterdir())
    assert reader.take() is None


def test_files_that_are_no_such_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"x{SUMS_SUFFIX}").write_bytes(b"short")
    (tmp_path / f"y{SUMS_SUFFIX}").write_bytes(bytes(SUMS.size))
    assert WorkersReader(tmp_path).take() is None
    assert len(list(tmp_path.iterdir())) == 2
