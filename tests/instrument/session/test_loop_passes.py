"""What is told of passes: what the loop changes of its dataset between them, and their length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from loaderdoctor.instrument.wire.protocol import WindowRequest
from tests.instrument.watched import Slow, Trainer, loader_of, watch

N_PASSES = 6


class Labelled(Dataset[Any]):
    """Keeps what it made, counts what it was asked, and holds what a loop may change."""

    def __init__(self, n: int = 8) -> None:
        self.x, self.y = torch.rand(n, 4), torch.zeros(n, dtype=torch.long)
        self.rows = [[i] for i in range(n)]
        self.epoch = 0
        self.kept: dict[int, Any] = {}
        self.n_asked = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.n_asked += 1
        return self.kept.setdefault(index, (self.x[index % 8], self.y[index % 8]))


def _labels(data: Labelled, epoch: int) -> None:
    data.y = torch.full((8,), epoch)


def _in_place(data: Labelled, epoch: int) -> None:
    data.y.add_(1)


def _epoch(data: Labelled, epoch: int) -> None:
    data.epoch = epoch


def _grows(data: Labelled, epoch: int) -> None:
    data.rows.append([epoch])


def _nothing(data: Labelled, epoch: int) -> None:
    pass


def told(
    change: Callable[[Labelled, int], None], *, leaves: bool = False, **loader: Any
) -> set[Any]:
    """What the boundaries of a loop say that changes its dataset before each pass."""
    trainer, data = Trainer(), Labelled()

    def loop() -> None:
        made = DataLoader(data, batch_size=2, **loader)
        others = DataLoader(data, batch_size=4)
        for epoch in range(N_PASSES):
            change(data, epoch)
            for n, (x, _) in enumerate(made):
                trainer.step(x)
                if leaves and n == 2:
                    break
            with torch.no_grad():  # read in between by this process as well
                for x, _ in others:
                    trainer.model(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=8))
    boundaries = (*watched.observed.boundaries, *watched.windows[0].boundaries)
    ids = {x.id for x in watched.observed.loaders if x.role == "train"}
    return {b.changed for b in boundaries if b.loader in ids} - {None}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("change", "what"),
    [(_labels, {"y"}), (_in_place, {"y"}), (_epoch, {"epoch"}), (_grows, {"its length"})],
)
def test_what_the_loop_changes_between_passes_is_named(
    change: Callable[[Labelled, int], None], what: set[str], num_workers: int
) -> None:
    assert told(change, num_workers=num_workers) == what


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("leaves", [False, True])
def test_samples_that_the_dataset_keeps_itself_are_no_change_of_the_loops(
    leaves: bool, num_workers: int
) -> None:
    assert told(_nothing, leaves=leaves, num_workers=num_workers) == set()


def test_of_a_pass_that_is_left_early_its_length_still_tells() -> None:
    assert told(_grows, leaves=True) == {"its length"}


@pytest.mark.parametrize(("lengths", "steps"), [((1, 2, 9, 9, 9), 4), ((9, 9, 3, 3, 3), 3)])
def test_an_epoch_is_what_the_loop_read_of_its_last_pass(
    lengths: tuple[int, ...], steps: int
) -> None:
    trainer = Trainer()

    def loop() -> None:
        for length in lengths:
            for n, (x, _) in enumerate(loader_of(length)):
                trainer.step(x)
                if n == 3:
                    break

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=2))
    assert [x.steps_per_epoch for x in watched.ended.loaders] == [steps]


@pytest.mark.parametrize("looks", [False, True])
def test_an_epoch_that_is_left_behind_the_warm_up_is_told_by_windows(looks: bool) -> None:
    """An epoch's start of 600 ms was spread over the 31,250 batches that the loader has."""
    trainer = Trainer()

    def loop() -> None:
        loader = loader_of(400)
        for _ in range(8):
            for n, (x, _) in enumerate(loader):
                trainer.step(x)
                if n == 59:
                    break
            if looks:  # at the data that it trains on, all of it
                with torch.no_grad():
                    for x, _ in loader:
                        trainer.model(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=150))
    assert watched.observed is not None
    assert watched.observed.steps_per_epoch == 400
    assert [w.epoch_length for w in watched.windows] == [60]


class Stream(IterableDataset[Any]):
    """Twelve samples of no known length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.rand(12, 4))


def test_the_epoch_of_a_stream_is_told_once_it_ran_out() -> None:
    trainer = Trainer()

    def loop() -> None:
        loader = DataLoader(Stream(), batch_size=2)
        for _ in range(6):
            for x in loader:
                trainer.step(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=12))
    assert [w.epoch_length for w in watched.windows] == [6]


def test_a_pass_over_the_steps_own_loader_without_gradients_lies_outside_the_steps() -> None:
    trainer, data = Trainer(), Slow(20, 1.0)

    def loop() -> None:
        loader = DataLoader(data, batch_size=2)
        for _ in range(8):
            for x, _ in loader:
                trainer.step(x)
            with torch.no_grad():
                for x, _ in loader:
                    trainer.model(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=30))
    (window,), wall = watched.windows, watched.windows[0].wall
    assert wall is not None
    (told,) = wall.outside
    assert (told.what, told.n, told.n_at_epoch_end) == ("pass", wall.n_epochs, wall.n_epochs)
    assert (told.n_batches, told.n_with_grad, told.n_worked) == (10 * told.n, 0, 0)
    assert wall.gaps_known_ns == told.timed_ns > 0.5 * told.n * 20e6
    assert len(window.boundary_steps) == 3  # of 30 steps, one in ten


class Sums(Dataset[Any]):
    """Built for each epoch, with what it is built of."""

    def __init__(self, length: int, n: int = 8) -> None:
        self.length, self.n = length, n
        self.table = torch.arange(n)
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.kept.setdefault(index, torch.full((4,), float(self.table[index])))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda epoch: Sums(4 + epoch // 3), {"length"}),
        (lambda epoch: Sums(4, n=8 + 2 * epoch), {"its length"}),
        (lambda _: Sums(4), set()),
    ],
    ids=["other-values", "longer", "the-same"],
)
def test_a_dataset_built_anew_is_compared_by_its_values(
    build: Callable[[int], Dataset[Any]], what: set[str], num_workers: int
) -> None:
    trainer = Trainer()

    def loop() -> None:
        for epoch in range(N_PASSES):
            for x in DataLoader(build(epoch), batch_size=2, num_workers=num_workers):
                trainer.step(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=8))
    boundaries = (*watched.observed.boundaries, *watched.windows[0].boundaries)
    assert {b.changed for b in boundaries} - {None} == what


class Replay(IterableDataset[Any]):
    """Reads what the loop fills; counts, which is its own doing."""

    def __init__(self, items: list[Any] | None = None) -> None:
        self.items, self.n_read = items, 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.n_read += 1
            yield (BUFFER if self.items is None else self.items)[-1]


BUFFER = [torch.rand(4)]


@pytest.mark.parametrize("fills", [True, False])
@pytest.mark.parametrize("of_its_own", [True, False])
def test_a_buffer_that_the_loop_fills_while_it_is_read_is_named(
    fills: bool, of_its_own: bool
) -> None:
    trainer, data = Trainer(), Replay([torch.rand(4)] if of_its_own else None)
    buffer = data.items if data.items is not None else BUFFER

    def loop() -> None:
        for step, x in enumerate(DataLoader(data, batch_size=2)):
            if step == 60:
                break
            trainer.step(x)
            if fills:
                buffer.append(torch.rand(4))

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=8))
    (record,) = watched.observed.loaders
    named = "items" if of_its_own else "BUFFER"
    assert record.safety.changed_while_read == (named if fills else None)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "data",
    [torch.rand(16, 4), np.ones((16, 4), np.float32), [torch.ones(4)] * 16],
    ids=["tensor", "array", "list"],
)
def test_a_loader_reads_whatever_has_a_length_and_items(data: Any, num_workers: int) -> None:
    """A tensor has no attributes to be compared by: such a script failed by our doing."""
    trainer = Trainer()

    def loop() -> None:
        for _ in range(N_PASSES):
            for x in DataLoader(data, batch_size=2, num_workers=num_workers):
                trainer.step(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=8))
    assert watched.windows[0].n_steps == 8
    assert {b.changed for b in watched.windows[0].boundaries} <= {None}
