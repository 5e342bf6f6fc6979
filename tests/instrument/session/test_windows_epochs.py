"""Windows over the ends of epochs: boundaries are steps' own, and no epoch is longer or shorter."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from loaderdoctor.instrument.session.profiling import WindowProfiler
from loaderdoctor.settings import Settings
from tests.instrument.watched import (
    Numbers,
    Slow,
    Trainer,
    counting_loop,
    loader_of,
    mean_ms,
    request,
    watch,
)

alone = pytest.mark.alone


@pytest.mark.parametrize("n_workers", [0, 2])
def test_dropped_batches_never_shorten_an_epoch(n_workers: int) -> None:
    loader = loader_of(40, num_workers=n_workers)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 4, lengths),
        request(1, "no_input"),
        request(2, "plain"),
        request(3, "no_input"),
        request(4, "plain"),
    )
    assert [w.status for w in run.windows] == ["ok"] * 4
    assert lengths == [40] * 4


def test_windows_of_short_epochs_hold_whole_boundaries() -> None:
    """The boundary before the first step is not measured: what it cost was before the window."""
    loader = loader_of(6, num_workers=2)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 24, lengths), request(1, "no_input", 6), request(2, "plain", 12)
    )
    plain = run.windows[1]
    assert plain.status == "ok", plain.reason
    assert plain.boundary_steps == (5, 11)
    assert set(lengths) == {6}


@alone
def test_an_epoch_boundary_is_inside_its_step_and_validation_is_not() -> None:
    train: DataLoader[object] = DataLoader(Slow(40, 1.0), 4)
    val = loader_of(2)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(6):
            for x, _y in train:
                trainer.step(x)
            for _batch in val:
                time.sleep(0.2)

    run = watch(loop, request(1, "plain", 20, drop_batches=False))
    window = run.windows[0]
    assert len(window.host_step_ns) == 20
    assert len(window.boundary_steps) == 2
    assert max(window.host_step_ns) < 200e6
    others = {i for i, r in enumerate(run.session.registry.records()) if r.role == "other"}
    assert len([f for f in window.fetches if f.loader in others]) == 4
    assert {b.loader for b in window.boundaries} == {r.id for r in run.session.registry.records()}


def ends_slowly(_worker: int) -> None:
    Finalize(None, time.sleep, args=(0.2,), exitpriority=100)


@alone
@pytest.mark.parametrize("n_loaders", [1, 2])
@pytest.mark.parametrize("mode", ["trial", "no_input"])
def test_the_end_of_the_loops_own_pool_is_no_part_of_a_window_with_other_batches(
    n_loaders: int, mode: str
) -> None:
    loaders = [loader_of(8, num_workers=1, worker_init_fn=ends_slowly) for _ in range(n_loaders)]
    trainer = Trainer()

    def loop() -> None:
        for _ in range(8):
            for parts in zip(*loaders, strict=True):
                trainer.step(parts[0][0])

    other = request(2, mode, 16, settings=Settings(num_workers=0) if mode == "trial" else None)
    run = watch(loop, request(1, "plain", 12), other)
    plain, without = run.windows
    assert (plain.status, without.status) == ("ok", "ok"), without.reason
    assert without.boundary_steps and plain.boundary_steps
    assert max(plain.host_step_ns) > 200e6
    assert sum(without.host_step_ns) < max(plain.host_step_ns) / 4


def with_a_new_iterator_each_step(
    loader: DataLoader[object], *, n_steps: int
) -> Callable[[], None]:
    trainer = Trainer()

    def loop() -> None:
        for _ in range(n_steps):
            x, _y = next(iter(loader))
            trainer.step(x)

    return loop


def test_an_iterator_made_each_step_is_a_boundary_in_each_step() -> None:
    loop = with_a_new_iterator_each_step(loader_of(10), n_steps=60)
    run = watch(loop, request(1, "plain", 10), request(2, "no_input", 10))
    plain, without = run.windows
    assert plain.boundary_steps == tuple(range(10))
    assert len(plain.boundaries) >= 9
    assert without.status == "ok"


@alone
def test_recreating_workers_each_step_costs_nothing_without_input() -> None:
    loop = with_a_new_iterator_each_step(loader_of(10, num_workers=1), n_steps=40)
    run = watch(loop, request(1, "plain", 5), request(2, "no_input", 5))
    plain, without = run.windows
    assert mean_ms(without) < mean_ms(plain) / 4


def leaving_epochs_after_5_steps() -> Callable[[], None]:
    """Trains for ten epochs of 50 batches, of which it uses 5."""
    loader = loader_of(50)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(10):
            for i, (x, _y) in enumerate(loader):
                trainer.step(x)
                if i == 4:
                    break

    return loop


def test_leaving_an_epoch_early_counts_as_a_boundary() -> None:
    window = watch(
        leaving_epochs_after_5_steps(), request(1, "plain", 15, drop_batches=False)
    ).windows[0]
    assert window.n_steps == 15
    assert len(window.boundary_steps) == 3


def test_where_each_epoch_is_left_early_its_length_is_what_was_used() -> None:
    assert watch(leaving_epochs_after_5_steps()).observed.loaders[0].steps_per_epoch == 5


def test_cached_batches_of_itertools_cycle_are_told() -> None:
    loader = loader_of(20)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in itertools.islice(itertools.cycle(loader), 120):
            trainer.step(x)

    run = watch(loop, request(1, "plain", 30))
    assert [n.kind for n in run.notes] == ["batches-replayed"]
    assert run.windows[0].status == "ok"


def test_a_cycled_loader_beside_one_that_goes_on_ends_no_fetching() -> None:
    few, many = loader_of(8), loader_of(90)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(2):
            for (x, _y), _ in zip(itertools.cycle(few), many, strict=False):
                trainer.step(x)

    run = watch(loop, request(1, "plain", 30))
    assert [n.kind for n in run.notes] == ["one-loader-replayed"]
    assert run.windows[0].status == "ok"
    assert len(run.windows[0].fetches) >= 30  # of the loader that goes on


def test_an_endless_iterator_kept_by_a_subclass_stays_endless() -> None:
    class Repeat(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            return itertools.cycle([[0, 1], [2, 3]])

    class Endless(DataLoader[object]):
        def __init__(self) -> None:
            super().__init__(Numbers(4), batch_sampler=Repeat())
            self.kept = super().__iter__()

        def __iter__(self) -> Iterator[object]:  # type: ignore[override]
            for _ in range(10):
                yield next(self.kept)

    trainer = Trainer()
    lengths: list[int] = []

    def loop() -> None:
        loader = Endless()
        for _ in range(12):
            n = 0
            for batch in loader:
                trainer.step(batch[0])  # type: ignore[index]
                n += 1
            lengths.append(n)

    run = watch(loop, request(1, "plain"), request(2, "no_input"), request(3, "plain"))
    assert [w.status for w in run.windows] == ["ok"] * 3
    assert lengths == [10] * 12


def test_persistent_workers_survive_substitution() -> None:
    loader = loader_of(12, num_workers=1, persistent_workers=True)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 10, lengths),
        request(1, "no_input", 10),
        request(2, "plain", 10),
        request(3, "no_input", 10),
    )
    assert [w.status for w in run.windows] == ["ok"] * 3
    assert lengths == [12] * 10


def test_a_one_pass_stream_is_never_opened_twice() -> None:
    opened = []

    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            opened.append(1)
            return (torch.full((4,), float(i)) for i in range(400))

    loader: DataLoader[object] = DataLoader(Stream(), 2)
    trainer = Trainer()
    seen: list[int] = []

    def loop() -> None:
        for x in loader:
            trainer.step(x)
            seen.append(1)

    run = watch(loop, request(1, "no_input"), request(2, "plain"))
    assert [w.status for w in run.windows] == ["ok", "ok"]
    assert len(opened) == 1


@pytest.mark.parametrize("timed", [False, pytest.param(True, marks=alone)])
def test_a_window_after_a_pause_in_a_short_epoch_holds_whole_boundaries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, timed: bool
) -> None:
    finish = WindowProfiler.finish

    def slowly(self: WindowProfiler) -> None:
        finish(self)
        time.sleep(0.3)

    monkeypatch.setattr(WindowProfiler, "finish", slowly)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader_of(6, num_workers=2), 24, lengths),
        request(1, "profiled", 12, trace_path=str(tmp_path / "trace.json")),
        request(2, "plain", 12),
    )
    traced, plain = run.windows
    assert traced.status == plain.status == "ok"
    assert plain.boundary_steps == (5, 11)
    assert set(lengths) == {6}
    if timed:
        # Each epoch starts two processes; the time of the first one's start is not left out.
        first, second = (plain.host_step_ns[i] for i in plain.boundary_steps)
        assert first > second / 3
