"""Another number of intra-op threads for one window of a running loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument.watched import Numbers, Trainer, watch


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class OnePass(IterableDataset[tuple[torch.Tensor, int]]):
    """Can't be opened a second time."""

    def __init__(self) -> None:
        self.items = iter(Numbers(400)[i] for i in range(400))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return self.items


def plain(id_: int) -> WindowRequest:
    return WindowRequest(id=id_, mode="plain", n_steps=5)


@pytest.mark.parametrize("dataset", [Numbers(400), OnePass()], ids=["map", "one pass"])
def test_threads_are_switched_for_the_window_alone_and_every_batch_reaches_the_loop(
    dataset: Dataset[tuple[torch.Tensor, int]],
) -> None:
    threads: list[int] = []
    seen: list[float] = []

    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader(dataset, batch_size=4):
            trainer.step(x)
            threads.append(torch.get_num_threads())
            seen.append(float(x[0, 0]))

    trial = WindowRequest(id=2, mode="trial", n_steps=6, settings=Settings(num_threads=1))
    run = watch(loop, plain(1), trial, plain(3))
    first, other, last = run.windows
    assert (first.status, other.status, last.status) == ("ok", "ok", "ok"), other.reason
    assert other.n_steps == 6
    # Warm-up and the window, and nothing after it.
    on = [i for i, n in enumerate(threads) if n == 1]
    assert 6 <= len(on) <= 12
    assert on == list(range(on[0], on[-1] + 1))
    assert set(threads) == {1, 3}
    assert threads[-1] == torch.get_num_threads() == 3
    assert seen == [4.0 * i for i in range(100)]  # none was dropped, substituted or repeated


def test_with_other_loader_settings_a_trial_has_its_own_loader_and_the_threads() -> None:
    threads: list[int] = []

    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader(Numbers(600), batch_size=4):
            trainer.step(x)
            threads.append(torch.get_num_threads())

    settings = Settings(num_threads=2, background="host")
    trial = WindowRequest(id=2, mode="trial", n_steps=6, settings=settings, measure_boundary=True)
    run = watch(loop, plain(1), trial)
    assert run.windows[1].status == "ok", run.windows[1].reason
    assert run.windows[1].boundary_ns is not None
    assert threads.count(2) >= 6
    assert threads[-1] == 3


def test_a_trial_that_is_the_last_window_leaves_no_thread_behind() -> None:
    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader(Numbers(400), batch_size=4):
            trainer.step(x)

    settings = Settings(background="host")
    run = watch(loop, plain(1), WindowRequest(id=2, mode="trial", n_steps=6, settings=settings))
    assert run.windows[1].status == "ok", run.windows[1].reason
    assert [t.name for t in threading.enumerate() if t.name == "loaderdoctor-background"] == []
