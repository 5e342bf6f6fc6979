"""Sums that workers keep: differences, beginnings, ends and deaths; what a batch costs by them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loaderdoctor.instrument.recording.process_counts import MIN_BATCHES, BatchCosts, WorkersReader
from loaderdoctor.instrument.wire.record_file import SUMS, SUMS_MAGIC, SUMS_SUFFIX
from loaderdoctor.settings import Settings

BEST, TRIAL = Settings(num_workers=2), Settings(num_workers=8)


def made(folder: Path, name: str, n: int, ms: float) -> None:
    """A worker that has made so many batches, each in so long, half of it CPU."""
    ns = int(n * ms * 1e6)
    sums = SUMS.pack(SUMS_MAGIC, 1, 0, 0, 1, n, ns, ns // 2, 0)
    (folder / f"{name}{SUMS_SUFFIX}").write_bytes(sums)


def make_ms(costs: BatchCosts, settings: Settings) -> float | None:
    found = costs.of(settings)
    return found.make_ms if found is not None else None


def test_a_trials_batches_are_not_told_as_the_bests(tmp_path: Path) -> None:
    costs = BatchCosts(tmp_path)
    costs.serves(BEST)
    made(tmp_path, "best", 20, 10.0)
    assert make_ms(costs, BEST) == pytest.approx(10.0)
    costs.serves(None)  # both pools make batches
    made(tmp_path, "trial", 10, 90.0)
    assert make_ms(costs, BEST) == pytest.approx(10.0)
    assert costs.of(TRIAL) is None
    costs.serves(TRIAL)
    made(tmp_path, "trial", 30, 50.0)  # 20 more, 30 ms each
    assert make_ms(costs, TRIAL) == pytest.approx(30.0)
    assert make_ms(costs, BEST) == pytest.approx(10.0)
    costs.serves(BEST)
    made(tmp_path, "best-again", 20, 12.0)
    assert make_ms(costs, BEST) == pytest.approx(12.0)


def test_batches_of_other_loaders_workers_are_left_out(tmp_path: Path) -> None:
    given = [0]
    costs = BatchCosts(tmp_path, lambda: given[0])
    costs.serves(BEST)
    made(tmp_path, "train", 20, 10.0)
    assert make_ms(costs, BEST) == pytest.approx(10.0)
    made(tmp_path, "train", 40, 10.0)
    made(tmp_path, "validation", 40, 200.0)
    given[0] = 40
    assert make_ms(costs, BEST) == pytest.approx(10.0)
    made(tmp_path, "train", 60, 12.0)  # 20 more, 16 ms each, and none of the other's
    assert make_ms(costs, BEST) == pytest.approx(16.0)


def test_too_few_batches_say_nothing(tmp_path: Path) -> None:
    costs = BatchCosts(tmp_path)
    costs.serves(BEST)
    made(tmp_path, "best", MIN_BATCHES - 1, 10.0)
    assert costs.of(BEST) is None


def test_batches_made_in_this_process_are_those_of_no_workers(tmp_path: Path) -> None:
    costs, none = BatchCosts(tmp_path), Settings(num_workers=0)
    costs.serves(none)
    for _ in range(MIN_BATCHES):
        costs.fetched(4_000_000, 1_000_000)
    assert make_ms(costs, none) == pytest.approx(4.0)
    assert costs.of(BEST) is None


def write(folder: Path, pid: int, *, n: int = 0, make_ns: int = 0, ended: int = 0) -> Path:
    path = folder / f"{pid}-1{SUMS_SUFFIX}"
    path.write_bytes(SUMS.pack(SUMS_MAGIC, pid, 0, ended, 1, n, make_ns, make_ns // 2, 7))
    return path


def test_what_workers_did_since_the_last_look(tmp_path: Path) -> None:
    reader = WorkersReader(tmp_path)
    assert reader.take() is None
    write(tmp_path, os.getpid(), n=5, make_ns=50)
    first = reader.take()
    write(tmp_path, os.getpid(), n=8, make_ns=90)
    second = reader.take()
    assert first is not None and second is not None
    assert (first.n_alive, first.n_batches, first.make_ns) == (1, 5, 50)
    assert (second.n_alive, second.n_batches, second.make_ns, second.cpu_ns) == (1, 3, 40, 20)
    assert second.pids == (os.getpid(),)


def test_one_that_says_so_has_ended_and_one_that_does_not_has_died(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    reader = WorkersReader(tmp_path)
    write(tmp_path, gone.pid, n=1)
    write(tmp_path, os.getpid(), ended=1)
    beat = reader.take()
    assert beat is not None
    assert (beat.n_died, beat.n_alive) == (1, 0)
    assert not list(tmp_path.iterdir())
    assert reader.take() is None


def test_files_that_are_no_such_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"x{SUMS_SUFFIX}").write_bytes(b"short")
    (tmp_path / f"y{SUMS_SUFFIX}").write_bytes(bytes(SUMS.size))
    assert WorkersReader(tmp_path).take() is None
    assert len(list(tmp_path.iterdir())) == 2
