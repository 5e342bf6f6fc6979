"""A loop that goes on behind batches that can't be made: windows hold the steps that it makes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.instrument.watched import Numbers, Trainer, request, watch


class Broken(Numbers):
    """Every seventh sample raises."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % 7 == 3:
            raise ValueError(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_window_holds_a_batch_for_each_of_its_steps(num_workers: int, tmp_path: Path) -> None:
    trainer, made = Trainer(), 0
    loader = DataLoader(Broken(400), batch_size=None, num_workers=num_workers)

    def loop() -> None:
        nonlocal made
        batches, over = iter(loader), False
        while not over:
            with suppress(ValueError):
                batch = next(batches, None)
                over = batch is None
                if batch is not None:
                    trainer.step(batch[0])
                    made += 1

    trace = str(tmp_path / "trace.json")
    run = watch(
        loop,
        request(1, "plain", n_steps=50),
        request(2, "profiled", n_steps=20, trace_path=trace),
        request(3, "plain", n_steps=500),
    )
    plain, profiled, last = run.windows
    assert (plain.n_steps, len(plain.fetches), profiled.n_steps) == (50, 50, 20)
    assert last.status == "short"
    assert made - 1 <= run.ended.n_steps <= made
    assert last.n_steps <= len(last.fetches) <= last.n_steps + 1
