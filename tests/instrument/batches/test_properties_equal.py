"""Whether the first batches of all workers hold the same, seen in a running loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loaderdoctor.instrument.batches import fingerprint
from loaderdoctor.instrument.wire.protocol import WindowRequest
from tests.instrument.watched import Trainer, watch


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """400 samples, each other than the last; or all the same."""

    def __init__(self, *, split: bool = False, constant: bool = False) -> None:
        self.split, self.constant = split, constant

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        info = get_worker_info() if self.split else None
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for i in range(first, 400, step):
            yield torch.full((4,), 1.0 if self.constant else float(i)), 0


@pytest.mark.parametrize(
    ("dataset", "n_workers", "equal"),
    [
        (Stream(), 3, 3),
        (Stream(), 5, 5),
        (Stream(split=True), 3, 1),
        (Stream(constant=True), 3, None),
        (Stream(), 0, 1),
    ],
    ids=["unsplit", "more workers than are looked at otherwise", "split", "constant", "alone"],
)
def test_equal_first_batches_are_counted(
    dataset: Stream, n_workers: int, equal: int | None
) -> None:
    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader(dataset, batch_size=4, num_workers=n_workers):
            trainer.step(x)

    run = watch(loop, WindowRequest(id=1, mode="plain", n_steps=4))
    assert run.observed.loaders[0].n_equal_first == equal


@pytest.mark.parametrize("name", ["sample", 1])
def test_whether_batches_hold_more_than_tensors_is_recorded(name: str | int) -> None:
    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader([(torch.zeros(4), name)] * 64, batch_size=4):  # type: ignore[arg-type]  # a list
            trainer.step(x)

    run = watch(loop, WindowRequest(id=1, mode="plain", n_steps=4))
    assert run.observed.loaders[0].holds_others is isinstance(name, str)


def test_values_make_a_fingerprint_and_not_the_tensors_that_hold_them() -> None:
    one = {"x": torch.arange(6.0), "y": [torch.zeros(2, dtype=torch.bool)]}
    same = {"x": torch.arange(6.0).clone(), "y": [torch.zeros(2, dtype=torch.bool)]}
    assert fingerprint(one) == fingerprint(same) is not None
    assert fingerprint(one) != fingerprint({**one, "x": torch.arange(6.0) + 1})
    assert fingerprint(one) != fingerprint({**one, "x": torch.arange(6.0).reshape(2, 3)})
    assert fingerprint(torch.arange(12.0).reshape(3, 4).T) is not None
    assert fingerprint(torch.tensor(1.0, dtype=torch.bfloat16)) is not None
    assert fingerprint("words") is None
    assert fingerprint(torch.zeros(2, 2).to_sparse()) is None
