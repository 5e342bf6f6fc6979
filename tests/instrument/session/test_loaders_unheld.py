"""`for x in DataLoader(…)`: nobody but the iterator knows the loader while the loop runs."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.instrument.session.loaders import LoaderRegistry
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument.watched import Numbers, Trainer, loader_of, watch


def test_a_loader_that_only_its_iterator_knows_can_be_tried_with_other_settings() -> None:
    trainer = Trainer()
    seen: list[int] = []

    def loop() -> None:
        for _ in range(30):
            n = 0
            for x, _ in loader_of(10):
                trainer.step(x)
                n += 1
            seen.append(n)

    watched = watch(
        loop,
        WindowRequest(id=1, mode="plain", n_steps=8),
        WindowRequest(id=2, mode="no_input", n_steps=8),
        WindowRequest(id=3, mode="trial", n_steps=8, settings=Settings(num_workers=1)),
        WindowRequest(id=4, mode="plain", n_steps=8),
    )
    assert [w.status for w in watched.windows] == ["ok"] * 4, watched.windows
    assert set(seen) == {10}


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_that_is_dropped_dies_at_once_with_its_workers(persistent: bool) -> None:
    class Keeps(DataLoader[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.mine = super().__iter__()

    gone: list[bool] = []

    def loop() -> None:
        loader = Keeps(Numbers(8), 2, num_workers=1, persistent_workers=persistent)
        next(loader.mine)
        iterator = weakref.ref(loader.mine)
        del loader
        gone.append(iterator() is None)

    gc.disable()
    try:
        loop()  # as torch has it
        watch(loop)
    finally:
        gc.enable()
    assert gone[0] == gone[1]


class Kept(Numbers):
    """Those of its samples that are even, which it finds with a loader of its own, once asked."""

    def __len__(self) -> int:
        found = [x for batch, _ in DataLoader(Numbers(self.n), 8) for x in batch[:, 0].tolist()]
        return sum(x % 2 == 0 for x in found)


def test_a_dataset_may_read_a_loader_to_know_how_long_it_is() -> None:
    runs: list[Any] = []

    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader(Kept(64), 2):
            trainer.step(x)

    running = threading.Thread(target=lambda: runs.append(watch(loop)), daemon=True)
    running.start()
    running.join(60)
    assert runs, "each waits for the other"
    states = runs[0].session.registry.states
    assert [x.index for x in states] == list(range(len(states)))
    assert {x.record.n_samples for x in states if x.role == "train"} == {32}


def test_a_helper_that_builds_both_loaders_each_epoch_builds_two() -> None:
    trainer = Trainer()

    def make(n_batches: int) -> DataLoader[object]:
        return loader_of(n_batches)

    def loop() -> None:
        for _ in range(12):
            for x, _ in make(10):
                trainer.step(x)
            with torch.no_grad():
                for x, _ in make(6):
                    trainer.model(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=8))
    roles = [(x.role, x.n_samples) for x in watched.ended.loaders]
    assert roles == [("train", 20), ("other", 12)]


def test_a_dataset_that_grows_from_epoch_to_epoch_stays_one_loader() -> None:
    trainer = Trainer()

    def loop() -> None:
        for epoch in range(12):
            for x, _ in loader_of(4 + epoch):
                trainer.step(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=8))
    assert [x.role for x in watched.ended.loaders] == ["train"]


def test_batches_that_grow_from_stage_to_stage_come_of_one_loader() -> None:
    trainer, data = Trainer(), Numbers(48)

    def loop() -> None:
        for stage in range(12):
            for x, _ in DataLoader(data, batch_size=2 + 2 * (stage % 3), shuffle=True):
                trainer.step(x)
            with torch.no_grad():
                for x, _ in DataLoader(data, batch_size=4):
                    trainer.model(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=60))
    assert [x.role for x in watched.ended.loaders] == ["train", "other"]


@pytest.mark.parametrize("rebuilt", [False, True])
def test_epochs_of_a_loader_built_for_each_are_told_from_those_of_one(rebuilt: bool) -> None:
    trainer = Trainer()

    def loop() -> None:
        one = loader_of(4)
        for _ in range(8):
            for x, _ in loader_of(4) if rebuilt else one:
                trainer.step(x)

    watched = watch(loop, WindowRequest(id=1, mode="plain", n_steps=12))
    later = [b.rebuilt for b in watched.windows[0].boundaries if not b.first]
    assert later and set(later) == {rebuilt}


def test_where_a_loader_is_built_and_read_its_files_are_known() -> None:
    registry = LoaderRegistry()
    loader = DataLoader(Numbers(4))
    registry.built(loader)
    state = registry.state_of(loader)
    assert str(Path(__file__).resolve()) in registry.files()
    state.loop = "engine.py:12"
    assert "engine.py" in registry.files()
    assert all(name == "engine.py" or Path(name).is_absolute() for name in registry.files())


class ByValue(DataLoader[Any]):
    """Compares by value, as a dataclass does, and so has no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue)

    __hash__ = None  # type: ignore[assignment]


def test_a_loader_without_a_hash_is_watched_and_tried_as_any_other() -> None:
    trainer = Trainer()

    def loop() -> None:
        one, other = ByValue(Numbers(16), 2, num_workers=1), ByValue(Numbers(8), 4)
        for _ in range(16):
            for x, _ in one:
                trainer.step(x)
            for _ in other:
                pass

    watched = watch(
        loop,
        WindowRequest(id=1, mode="plain", n_steps=8),
        WindowRequest(id=2, mode="trial", n_steps=8, settings=Settings(num_workers=2)),
        WindowRequest(id=3, mode="trial", n_steps=8, settings=Settings(threads=2, num_workers=0)),
    )
    assert [(w.status, w.reason) for w in watched.windows] == [("ok", None)] * 3
    assert [(x.n_samples, x.role) for x in watched.ended.loaders] == [(16, "train"), (8, "other")]
