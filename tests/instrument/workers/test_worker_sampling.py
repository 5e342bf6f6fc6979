"""What a worker tells of what its dataset holds, without running the user's code."""

from __future__ import annotations

import functools
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.attribution.workers import worker_facts
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker, worker_sampling
from loaderdoctor.instrument.workers.worker_sampling import HeapFree, lengths


class Asked:
    """Has a `cache_info` of its own, which is no business of ours."""

    def cache_info(self) -> object:
        raise AssertionError


class Kept:
    other = Asked()

    def __init__(self) -> None:
        self.seen = [1, 2, 3]

    @functools.lru_cache(maxsize=8)  # noqa: B019  # that it keeps them is the point
    def read(self, index: int) -> int:
        return index


def test_only_a_cache_of_functools_is_asked_what_it_keeps() -> None:
    kept = Kept()
    kept.read(1)
    kept.read(2)
    assert lengths(kept) == {"seen": 3, "read()": 2}


def test_a_heap_that_takes_long_to_look_at_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_sampling, "MAX_ASKING_S", float("inf"))
    asked = HeapFree()
    if asked() is None:
        pytest.skip("malloc does not tell")
    assert asked() is not None
    monkeypatch.setattr(worker_sampling, "MAX_ASKING_S", -1.0)
    assert asked() is not None
    assert asked() is None  # not told from then on


class Converting(Dataset[torch.Tensor]):
    """Each sample ends in an operation that gives the interpreter up for microseconds."""

    def __init__(self, n_rows: int) -> None:
        self.rows = [[float(i % 7) for i in range(n_rows)] for _ in range(8)]

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.rows)[0, :4]


@pytest.mark.parametrize("n_rows", [60, 400, 1500, 4000])  # 0.06 to 4 ms a sample
def test_samples_fall_where_the_time_goes_though_collating_gives_the_interpreter_up_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_rows: int
) -> None:
    monkeypatch.setattr(worker_sampling, "MAX_SAMPLING_SHARE", 0.4)
    monkeypatch.setattr(worker_sampling, "STACK_SAMPLES_AT_FULL_RATE", 10_000)
    worker.install(tmp_path)
    began = time.perf_counter_ns()
    try:
        loader = DataLoader(Converting(n_rows), batch_size=8)
        while time.perf_counter_ns() < began + 1_500_000_000:
            for _ in loader:
                pass
        worker.flush()
    finally:
        worker.remove()
    facts = worker_facts(read(tmp_path), began, time.perf_counter_ns(), n_steps=1)
    assert facts is not None
    counts: Counter[str] = Counter()
    for line in facts.lines:
        counts[line.phase] += line.n_stack_samples
    expected = facts.fetch_ms / facts.batch_ms
    assert counts.total() > 20, counts
    assert counts["fetch"] / counts.total() > expected - 0.3, (counts, facts.fetch_ms)
