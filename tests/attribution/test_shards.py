"""How an epoch of a stream was dealt out: from the records of real workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loaderdoctor.attribution.shards import shard_facts
from loaderdoctor.facts.shards import ShardFacts
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker

RECORD = LoaderRecord(id="train.py:1", role="train", kind="iterable")


class Shards(IterableDataset[int]):
    """Each worker has its own, of so many samples."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        for i in range(self.sizes[info.id]):
            time.sleep(0.001)
            yield i


def recorded(tmp_path: Path, *sizes: int, n_epochs: int = 1, **more: Any) -> WorkerLog:
    worker.install(tmp_path, lambda loader: RECORD.id)
    try:
        loader = DataLoader(Shards(*sizes), batch_size=4, num_workers=len(sizes), **more)
        for _ in range(n_epochs):
            for _ in loader:
                pass
    finally:
        worker.remove()
    return read(tmp_path)


def test_batches_and_ends_are_told_of_each_worker(tmp_path: Path) -> None:
    log = recorded(tmp_path, 200, 40, n_epochs=2)
    seen = shard_facts(log, RECORD)
    assert seen is not None
    assert (seen.batches, seen.n_epochs) == ((50, 10), 2)
    assert seen.ended_s[0] == seen.epoch_s
    # The second has a fifth of the first's work: 2 sleeps of 5 in all, with a margin.
    assert seen.ended_s[1] < 0.6 * seen.epoch_s
    assert 0.2 < seen.lost_share < 0.5
    assert seen.left_at(0.75) == 1


def test_only_whole_epochs_before_other_windows_count(tmp_path: Path) -> None:
    log = recorded(tmp_path, 20, 20)
    assert shard_facts(log, RECORD) is not None
    assert shard_facts(log, RECORD, until_ns=int(log.batches.end_ns.max()) - 1) is None
    assert shard_facts(log, LoaderRecord(id="other.py:1", role="train", kind="iterable")) is None
    assert shard_facts(log, LoaderRecord(id=RECORD.id, role="train", kind="map")) is None
    assert shard_facts(log, None) is None


def test_an_epoch_that_was_left_early_is_none(tmp_path: Path) -> None:
    worker.install(tmp_path, lambda loader: RECORD.id)
    try:
        batches = iter(DataLoader(Shards(400, 400), batch_size=4, num_workers=2))
        for _ in range(3):
            next(batches)
        del batches
    finally:
        worker.remove()
    assert shard_facts(read(tmp_path), RECORD) is None


def test_lost_time_is_the_mean_of_what_each_idles() -> None:
    assert ShardFacts(batches=(2, 1), ended_s=(4.0, 1.0), epoch_s=4.0).lost_share == 3 / 8
    assert ShardFacts(batches=(2, 2), ended_s=(4.0, 4.0), epoch_s=4.0).lost_share == 0.0
