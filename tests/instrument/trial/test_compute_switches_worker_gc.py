"""Workers whose collector leaves alone what they began with: the same batches, or refused."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.trial.compute_switches import (
    FEWEST_FROZEN,
    RARE_THRESHOLDS,
    LessCollected,
    less_collected,
)
from loaderdoctor.settings import Settings, StartMethod
from tests.instrument.opening import ids, opened, reason
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")
N_OBJECTS = 50_000
kept: list[list[int]] = []  # by a worker


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    was_frozen = gc.get_freeze_count() >= FEWEST_FROZEN  # as the whole suite is
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


def keep_some(worker_id: int) -> None:
    kept.extend([worker_id] for _ in range(N_OBJECTS))


class Collector(Squares):
    """Sample i is (objects frozen, the first threshold, objects that a full collection sees; i)."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: list[list[int]] = [[i] for i in range(N_OBJECTS)]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        seen = [gc.get_freeze_count(), gc.get_threshold()[0], len(gc.get_objects())]
        return torch.tensor(seen, dtype=torch.float64), index


def first_sample(settings: Settings, init: Any = None) -> list[float]:
    loader: DataLoader[Any] = DataLoader(Collector(), batch_size=4, worker_init_fn=init)
    source = opened(loader, settings)
    try:
        seen: list[float] = source.next_batch()[0][0].tolist()
    finally:
        source.close()
    return seen


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["frozen", "rarely"])
def test_a_workers_collector_never_looks_at_the_dataset(how: Any, start: StartMethod) -> None:
    threshold = gc.get_threshold()[0]
    as_is = first_sample(Settings(num_workers=1, start_method=start))
    assert as_is[0] < FEWEST_FROZEN and as_is[2] > N_OBJECTS
    frozen, first, looked_at = first_sample(
        Settings(num_workers=1, start_method=start, worker_gc=how), keep_some
    )
    assert frozen > 2 * N_OBJECTS  # the dataset, and what the script's own function has made
    assert looked_at < N_OBJECTS
    assert first == (RARE_THRESHOLDS[0] if how == "rarely" else threshold)
    assert gc.get_threshold()[0] == threshold and gc.get_freeze_count() < FEWEST_FROZEN  # here


def test_it_runs_on_the_cpus_that_are_asked_for_too() -> None:
    pytest.importorskip("resource")  # where there are affinities
    frozen, *_ = first_sample(Settings(num_workers=1, worker_cpus="all", worker_gc="frozen"))
    assert frozen > N_OBJECTS


def test_what_a_spawned_worker_gets_pickles() -> None:
    found = pickle.loads(pickle.dumps(LessCollected("rarely", keep_some)))
    assert isinstance(found, LessCollected)


def test_what_changes_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Squares(), batch_size=4)
    assert "num_workers > 0" in reason(loader, Settings(worker_gc="frozen"))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 10 * FEWEST_FROZEN)
    with pytest.raises(TrialRefused, match="frozen its objects already"):
        less_collected("frozen", None, forks=True)
    less_collected("rarely", None, forks=True)
    less_collected("frozen", None, forks=False)  # spawned workers inherit nothing
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    with pytest.raises(TrialRefused, match="switched the garbage collector off"):
        less_collected("rarely", None, forks=True)
    less_collected("rarely", None, forks=False)


def test_batches_stay_what_they_are() -> None:
    source = opened(
        DataLoader(Squares(), batch_size=4), Settings(num_workers=2, worker_gc="rarely")
    )
    try:
        assert ids(source, 16) == [*range(32)] * 2
    finally:
        source.close()
