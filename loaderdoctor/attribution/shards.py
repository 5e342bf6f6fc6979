"""The workers' log -> how whole epochs of a stream were dealt out to them."""

from __future__ import annotations

import numpy as np

from loaderdoctor.facts.shards import ShardFacts
from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.instrument.wire.worker_log import Batches, WorkerLog
from loaderdoctor.units import NS_PER_S


def shard_facts(
    log: WorkerLog, loader: LoaderRecord | None, *, until_ns: int | None = None
) -> ShardFacts | None:
    """Of the loader's epochs that were over before `until_ns`; None where none was seen whole.

    From then on windows with other batches, and trials, hold the loop's own workers up.
    """
    if loader is None or loader.kind != "iterable":
        return None
    found = []
    for iterator in log.iterators:
        if iterator.loader != loader.id or iterator.num_workers < 2:
            continue
        of_iterator = log.batches.where(log.batches.serial == iterator.serial)
        for epoch in np.unique(of_iterator.epoch):
            rows = of_iterator.where(of_iterator.epoch == epoch)
            one = _epoch(rows, iterator.num_workers, until_ns)
            if one is not None:
                found.append(one)
    if not found:
        return None
    found.sort(key=lambda x: x.lost_share)
    middle = found[(len(found) - 1) // 2]
    return ShardFacts(
        batches=middle.batches,
        ended_s=middle.ended_s,
        epoch_s=middle.epoch_s,
        n_epochs=len(found),
    )


def _epoch(rows: Batches, n_workers: int, until_ns: int | None) -> ShardFacts | None:
    """None where not every worker was seen to come to the end of its data."""
    ends = rows.where(rows.outcome == Outcome.EXHAUSTED)
    made = rows.where(rows.outcome == Outcome.OK)
    if not len(made) or sorted(set(ends.worker.tolist())) != list(range(n_workers)):
        return None
    begin_ns, end_ns = int(rows.begin_ns.min()), int(ends.end_ns.max())
    if end_ns <= begin_ns or (until_ns is not None and end_ns > until_ns):
        return None
    last = [int(ends.end_ns[ends.worker == w].max()) for w in range(n_workers)]
    return ShardFacts(
        batches=tuple(int((made.worker == w).sum()) for w in range(n_workers)),
        ended_s=tuple((at_ns - begin_ns) / NS_PER_S for at_ns in last),
        epoch_s=(end_ns - begin_ns) / NS_PER_S,
    )
