"""What a batch costs is told of the settings that made it, and of no other loader's workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.instrument.recording.batch_costs import MIN_BATCHES, BatchCosts
from loaderdoctor.instrument.wire.record_file import SUMS, SUMS_MAGIC, SUMS_SUFFIX
from loaderdoctor.settings import Settings

BEST, TRIAL = Settings(num_workers=2), Settings(num_workers=8)


def made(folder: Path, name: str, n: int, ms: float) -> None:
    """A worker that has made so many batches, each in so long, half of it CPU."""
    ns = int(n * ms * 1e6)
    sums = SUMS.pack(SUMS_MAGIC, 1, 0, 0, 1, n, ns, ns // 2, 0, 0)
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
