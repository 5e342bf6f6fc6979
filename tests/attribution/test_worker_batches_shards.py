"""How an epoch of a stream was dealt out: from records, of known times and of real workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loaderdoctor.attribution.worker_batches import shard_facts
from loaderdoctor.facts.loop import ShardFacts
from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.instrument.wire.worker_log import Batches, IteratorRecord, WorkerLog
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker

RECORD = LoaderRecord(id="train.py:1", role="train", kind="iterable")
S = 1_000_000_000


def dealt(*n_batches: int, n_epochs: int = 1, left_early: bool = False) -> WorkerLog:
    """Each worker makes a batch a second, then comes to the end of its data at once."""
    rows = [
        (epoch, w, (epoch * 1000 + i) * S, (epoch * 1000 + min(i + 1, n)) * S,
         Outcome.OK if i < n else Outcome.EXHAUSTED)
        for epoch in range(n_epochs)
        for w, n in enumerate(n_batches)
        for i in range(n if left_early and w == 0 else n + 1)
    ]  # fmt: skip
    empty = read(Path(__file__).parent / "no such folder")
    columns = {x.name: np.zeros(len(rows), dtype=np.int64) for x in fields(empty.batches)}
    for name, values in zip(
        ("epoch", "worker", "begin_ns", "end_ns", "outcome"), zip(*rows, strict=True), strict=True
    ):
        columns[name] = np.array([int(x) for x in values], dtype=np.int64)
    columns["serial"] += 3
    iterator = IteratorRecord(
        serial=3, created_ns=0, num_workers=len(n_batches), prefetch_factor=2, in_order=True,
        pin_memory=False, dataset=1, loader=RECORD.id,
    )  # fmt: skip
    return replace(empty, batches=Batches(**columns), iterators=(iterator,))


def test_batches_and_ends_are_told_of_each_worker() -> None:
    seen = shard_facts(dealt(50, 10, n_epochs=2), RECORD)
    assert seen == ShardFacts(batches=(50, 10), ended_s=(50.0, 10.0), epoch_s=50.0, n_epochs=2)
    assert seen.lost_share == 0.4
    assert (seen.left_at(0.1), seen.left_at(0.75)) == (2, 1)


def test_only_whole_epochs_before_other_windows_count() -> None:
    log = dealt(5, 5)
    assert shard_facts(log, RECORD) is not None
    assert shard_facts(log, RECORD, until_ns=5 * S - 1) is None
    two = shard_facts(dealt(5, 5, n_epochs=2), RECORD, until_ns=900 * S)
    assert two is not None
    assert two.n_epochs == 1
    assert shard_facts(log, LoaderRecord(id="other.py:1", role="train", kind="iterable")) is None
    assert shard_facts(log, LoaderRecord(id=RECORD.id, role="train", kind="map")) is None
    assert shard_facts(log, None) is None
    assert shard_facts(dealt(5), RECORD) is None  # one worker has no other to wait for


def test_an_epoch_that_was_left_early_is_none() -> None:
    assert shard_facts(dealt(50, 10, left_early=True), RECORD) is None


def test_lost_time_is_the_mean_of_what_each_idles() -> None:
    assert ShardFacts(batches=(2, 1), ended_s=(4.0, 1.0), epoch_s=4.0).lost_share == 3 / 8
    assert ShardFacts(batches=(2, 2), ended_s=(4.0, 4.0), epoch_s=4.0).lost_share == 0.0


class Shards(IterableDataset[int]):
    """Each of two workers has its own."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield from range((200, 40)[info.id])


def test_real_workers_leave_the_records_that_this_is_read_from(tmp_path: Path) -> None:
    worker.install(tmp_path, lambda loader: RECORD.id)
    try:
        for _ in range(2):
            assert len(list(DataLoader(Shards(), batch_size=4, num_workers=2))) == 60
    finally:
        worker.remove()
    seen = shard_facts(read(tmp_path), RECORD)
    assert seen is not None
    assert (seen.batches, seen.n_epochs) == ((50, 10), 2)
    assert max(seen.ended_s) == seen.epoch_s
