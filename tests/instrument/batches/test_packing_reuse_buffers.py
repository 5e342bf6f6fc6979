"""Batches in shared memory that is used again: never while anything of a batch is left."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import digest, packing
from loaderdoctor.instrument.batches.packing import RingBatch, ring_for
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import digests, plainly
from tests.instrument.opening import opened, reason
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")
TWO = Settings(num_workers=2, reuse_buffers=True)


def sent(batch: Any, ring: packing.Ring) -> Any:
    """What arrives of a batch that worker 0 sent."""
    put = ring.put(0, batch)
    if put is batch:
        return batch
    make, parts = put.__reduce__()
    return make(*parts)


def batch_of(value: float) -> list[Tensor]:
    return [torch.full((3, 5), value), torch.arange(4)]


def test_a_buffer_is_given_back_with_the_last_tensor_slice_or_array_of_it() -> None:
    ring = ring_for(batch_of(0.0), n_workers=1, ahead=1)  # three buffers
    first = sent(batch_of(1.0), ring).host()
    assert digest(first) == digest(batch_of(1.0))
    kept: Any = first[0][1:].numpy()[0]
    del first
    others = [sent(batch_of(float(k)), ring) for k in range(2, 6)]
    assert [type(x) for x in others] == [RingBatch, RingBatch, list, list]  # none is free
    assert kept.tolist() == [1.0] * 5
    del kept
    assert isinstance(sent(batch_of(7.0), ring), RingBatch)
    del others
    assert all(isinstance(sent(batch_of(8.0), ring), RingBatch) for _ in range(9))


def test_a_forked_child_gives_back_nothing_of_its_parents() -> None:
    ring = ring_for(batch_of(0.0), n_workers=1, ahead=1)
    kept = [sent(batch_of(1.0), ring).host()]
    child = os.fork()
    if child == 0:
        kept.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert ring._taken.tolist() == [1, 0, 0]
    assert digest(kept[0]) == digest(batch_of(1.0))
    kept.clear()
    assert ring._taken.tolist() == [0, 0, 0]


def test_only_the_present_owner_of_a_buffer_gives_it_back() -> None:
    ring = ring_for(batch_of(0.0), n_workers=1, ahead=1)
    earlier, later = ring.received(0), ring.received(0)
    ring._taken[0] = 1
    del earlier
    assert ring._taken[0] == 1
    del later
    assert ring._taken[0] == 0


def test_a_batch_that_does_not_fit_travels_as_before() -> None:
    ring = ring_for(batch_of(0.0), n_workers=1, ahead=1)
    large = [torch.zeros(1000)]
    assert ring.put(0, large) is large


def test_what_was_lost_on_its_way_is_free_in_the_next_epoch() -> None:
    ring = ring_for(batch_of(0.0), n_workers=1, ahead=1)
    held = sent(batch_of(1.0), ring)
    for _ in range(2):
        ring.put(0, batch_of(2.0))  # never unpickled: its worker ended
    plain = batch_of(3.0)
    assert ring.put(0, plain) is plain
    ring.new_epoch()
    assert ring.put(0, plain) is not plain
    assert digest(held.host()) == digest(batch_of(1.0))


class Lists(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return {"x": torch.full((3, 7), float(i)), "y": i, "pair": (i / 7, i % 2 == 0)}


@pytest.mark.parametrize("keep", [0, 7])
def test_a_trial_hands_out_the_loaders_own_batches_whatever_the_loop_keeps(keep: int) -> None:
    loader = DataLoader(Lists(), batch_size=4)
    own = plainly(loader, 10)
    source = opened(loader, TWO)
    held: list[Any] = []
    try:
        for k in range(30):
            batch = source.next_batch()
            assert digests([batch]) == [own[k % 10]]
            held = [*held, batch][-keep:] if keep else []
            assert digests(held) == [own[i % 10] for i in range(k + 1 - len(held), k + 1)]
        source.drop(3)
        assert digests([source.next_batch()]) == [own[3]]
    finally:
        source.close()
    del source
    gc.collect()
    assert digests(held) == [
        own[i % 10] for i in range(30 - len(held), 30)
    ]  # longer than the trial


def test_it_is_refused_where_workers_have_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Squares(), batch_size=4)
    assert "num_workers > 0" in reason(loader, Settings(reuse_buffers=True))
    assert "not forked" in reason(loader, Settings(start_method="spawn").over(TWO))

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(8))

    one = Settings(num_workers=1, reuse_buffers=True)
    assert "iterable" in reason(DataLoader(Stream(), batch_size=2), one)

    class Custom:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    custom = DataLoader(Squares(), 4, collate_fn=lambda s: Custom(default_collate(s)[0]))
    assert "no plain lists" in reason(custom, TWO)
    monkeypatch.setattr(packing, "shm_free_bytes", lambda: 1000)
    with pytest.raises(TrialRefused, match="of /dev/shm"):
        ring_for(batch_of(1.0), n_workers=4, ahead=2)
