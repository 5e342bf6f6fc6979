"""Threads in place of workers: the same batches in order, or refused with the reason."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from loaderdoctor.instrument.dataset import loading_threads
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import digests, plainly, taken
from tests.instrument.opening import ids, opened, reason
from tests.instrument.trial_cases import Failing, Squares, Unsharded

pytestmark = pytest.mark.usefixtures("nothing_is_left")
TWO = Settings(threads=2, num_workers=0)


class Told(Squares):
    """Which thread made each sample; the first samples take longest."""

    def __init__(self) -> None:
        super().__init__()
        self.makers: dict[int, str] = {}

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.makers[index] = threading.current_thread().name
        time.sleep(0.01 if index < 8 else 0.0)
        return super().__getitem__(index)


def test_batches_come_in_the_samplers_order_whoever_is_done_first() -> None:
    dataset = Told()
    source = opened(DataLoader(dataset, batch_size=4), TWO)
    try:
        assert ids(source, 16) == [*range(32)] * 2
    finally:
        source.close()
    makers = {dataset.makers[i] for i in range(32)}
    assert all(name.startswith("loaderdoctor-loading") for name in makers)
    assert not any(t.name.startswith("loaderdoctor-loading") for t in threading.enumerate())


def test_a_shuffle_draws_what_the_loaders_own_iterator_draws() -> None:
    def loader() -> DataLoader[Any]:
        draws = torch.Generator().manual_seed(7)
        return DataLoader(Squares(), batch_size=4, shuffle=True, generator=draws)

    once = loader()
    own = [x for _ in range(2) for x in plainly(once, 8)]
    assert digests(taken(loader(), TWO, 16)) == own


def test_what_a_dataset_raises_reaches_the_loop() -> None:
    with pytest.raises(ValueError, match="sample 3 is broken"):
        opened(DataLoader(Failing(), batch_size=2), TWO)


class Hangs(Squares):
    """Waits at every sample until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.go_on.wait(60.0)
        return super().__getitem__(index)


def test_a_batch_that_hangs_is_given_up_and_its_thread_left_behind() -> None:
    dataset = Hangs()
    source = opened(DataLoader(dataset, batch_size=2), TWO, fetch_limit_s=0.3)
    try:
        source.next_batch()
        dataset.go_on.clear()
        with pytest.raises(TimeoutError):
            source.drop(16)
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < 5.0  # of 10 that threads at work are given
    finally:
        dataset.go_on.set()
        source.close()
    deadline = time.monotonic() + 10.0
    while any(t.name.startswith("loaderdoctor-loading") for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Lazy(Squares):
    """Opens its file at the first sample."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.file: Any = None

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.file is None:
            self.file = self.path.open()
        return super().__getitem__(index)


class Careless(Squares):
    """Keeps the sample that it makes in itself: two at once mix."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.current = index
        time.sleep(0.002)
        return torch.full((3,), float(self.current)), index


class Asking(Squares):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        info = get_worker_info()
        return super().__getitem__(index if info is None else info.id)


def prepare(worker_id: int) -> None:
    os.nice(0)


def test_what_threads_would_break_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")

    def why(dataset: Dataset[Any], **more: Any) -> str:
        return reason(DataLoader(dataset, batch_size=4, **more), TWO)

    lazy = Lazy(tmp_path / "data")
    assert "opens files" in why(lazy)
    assert "holds open files" in why(lazy)  # now it is open
    assert lazy.file is not None
    lazy.file.close()
    assert "differently" in why(Careless())
    assert "get_worker_info" in why(Asking())
    assert "worker_init_fn" in why(Squares(), num_workers=1, worker_init_fn=prepare)
    assert "one stream" in why(Unsharded())
    workers = Settings(threads=2)
    assert "must be 0" in reason(DataLoader(Squares(), batch_size=4, num_workers=1), workers)


def test_random_draws_are_told_and_said_to_be_others() -> None:
    class Noisy(Squares):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.randn(3), index

    told: list[tuple[str, str]] = []
    source = opened(
        DataLoader(Noisy(), batch_size=4), TWO, note=lambda kind, text: told.append((kind, text))
    )
    try:
        assert ids(source, 8) == [*range(32)]
    finally:
        source.close()
    assert [kind for kind, _ in told] == ["threads-draw"] and "no seed repeats" in told[0][1]
    assert "could not be checked" in told[0][1] and "shapes and types are the same" in told[0][1]


class Drawing(Squares):
    """Random samples; what goes wrong when two are made at once is the subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = 0

    def made(self) -> Tensor:
        return torch.randn(3)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.at_once += 1
        try:
            time.sleep(0.002)
            return self.made(), index
        finally:
            self.at_once -= 1


def test_random_samples_are_made_at_once_as_well() -> None:
    class Raises(Drawing):
        def made(self) -> Tensor:
            if self.at_once > 1:
                raise ValueError("two at once")
            return super().made()

    class Widens(Drawing):
        def made(self) -> Tensor:
            return torch.randn(4, 3).sum(0).double() if self.at_once > 1 else super().made()

    class Hangs(Drawing):
        def made(self) -> Tensor:
            if self.at_once > 1:
                let_go.wait(60.0)
            return super().made()

    def loader(dataset: Dataset[Any]) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=1)

    with pytest.raises(ValueError, match="two at once"):
        opened(loader(Raises()), TWO)
    assert "other shapes or types" in reason(loader(Widens()), TWO)
    let_go = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading_threads, "END_LIMIT_S", 0.3)
        assert "did not come to an end" in reason(loader(Hangs()), TWO)
    let_go.set()
    deadline = time.monotonic() + 10.0
    while any(t.name.startswith("loaderdoctor-loading") for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_shapes_that_are_drawn_are_no_reason_to_refuse() -> None:
    class Cropped(Drawing):
        def made(self) -> Tensor:
            return torch.zeros(int(torch.randint(1, 1_000_000, ())))

    told: list[str] = []
    opened(
        DataLoader(Cropped(), batch_size=1), TWO, note=lambda kind, text: told.append(text)
    ).close()
    assert "no error was met" in told[0] and "the same" not in told[0].split("no error")[1]


def test_what_releases_the_lock_is_made_at_the_same_time() -> None:
    class Waits(Squares):
        at_once = most = 0

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            time.sleep(0.02)
            self.at_once -= 1
            return super().__getitem__(index)

    dataset = Waits()
    source = opened(DataLoader(dataset, batch_size=2), Settings(threads=4, num_workers=0))
    try:
        dataset.most = 0
        source.drop(8)
    finally:
        source.close()
    assert dataset.most >= 2
