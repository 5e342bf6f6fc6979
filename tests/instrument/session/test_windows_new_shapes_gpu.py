"""Free copies of batches that come once, on a real device: answered, with their content."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.instrument.session.test_windows_new_shapes import Longer, samples
from tests.instrument.watched import request, watch

pytestmark = pytest.mark.gpu
N = 8


@pytest.mark.parametrize("workers", [0, 2])
def test_copies_of_batches_that_come_once_are_answered_with_their_content(workers: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrong: list[int] = []

    def loop() -> None:
        for batch in samples(Longer(400), num_workers=workers):
            x = batch.to(device, non_blocking=True)
            if not torch.equal(x.cpu(), batch):
                wrong.append(len(batch))
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()

    modes = ("plain", "no_copy", "no_input", "plain")
    found = watch(loop, *(request(i, mode, N) for i, mode in enumerate(modes, 1)))
    assert [w.status for w in found.windows] == ["ok"] * 4
    free = found.windows[1]
    assert free.ready is not None and free.ready.n_new == free.ready.n_batches >= N
    assert free.copies is not None
    assert (free.copies.n_misses, free.copies.n_hits >= N) == (0, True)
    assert wrong == []
