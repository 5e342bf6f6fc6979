"""Faults in a real run are told with their cause, and a sound run is told nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.recorded import recorded, unwatched
from tests.scripts.running import SHAPES

pytestmark = [pytest.mark.scripts, pytest.mark.slow]

FAULTY = SHAPES / "faulty.py"


def test_storage_that_becomes_slow_is_told_and_changes_nothing(tmp_path: Path) -> None:
    alone = unwatched(FAULTY, "storage", "2400", cwd=tmp_path)
    done = recorded(FAULTY, "storage", "2400", cwd=tmp_path)
    assert done.stdout.startswith(alone.stdout)
    begins = [a for a in done.run.alerts if a.kind == "input-begins"]
    assert begins, done.told
    assert begins[0].cause == "storage"
    assert 1100 <= begins[0].step <= 1300
    assert begins[0].text in done.stderr


def test_a_slow_shard_is_told_with_its_period(tmp_path: Path) -> None:
    done = recorded(FAULTY, "shard", "2000", cwd=tmp_path)
    stalls = [a for a in done.run.alerts if a.kind == "stalls"]
    assert stalls, done.told
    assert "Every 50 steps" in stalls[0].text
    assert stalls[0].cause == "late-batch"


def test_collections_are_told(tmp_path: Path) -> None:
    done = recorded(FAULTY, "collections", "2000", cwd=tmp_path)
    assert "collections" in done.causes, done.told


def test_a_worker_that_leaks_is_told(tmp_path: Path) -> None:
    done = recorded(FAULTY, "leak", "9000", cwd=tmp_path)
    assert "memory-fills" in done.told, done.run.timeline[-1]
    assert "worker-memory-growth" in done.causes


def test_a_rank_that_loads_slowly_is_told_by_the_first_one(tmp_path: Path) -> None:
    done = recorded(
        SHAPES / "ranks_wait.py", "700", "0.03", cwd=tmp_path, options=["--nproc-per-node", "2"]
    )
    assert done.code == 0, done.stderr
    assert done.told["rank-behind"].startswith("Rank 1 waits")
    assert [r.n_steps for r in done.run.ranks] == [700, 700]
    assert "rank 0 " in done.stdout and "rank 1 " in done.stdout
