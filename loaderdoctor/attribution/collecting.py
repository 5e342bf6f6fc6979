"""What Python's garbage collector took while the loop was measured -> facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from loaderdoctor.facts.loop import CollectionFacts
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.records import CollectionRecord
from loaderdoctor.units import NS_PER_MS

_NORMAL95 = 1.96


def collection_facts(windows: Sequence[WindowDone]) -> CollectionFacts | None:
    """Over all these windows; None where nothing was collected in them."""
    records = [w.collections for w in windows if w.collections is not None]
    n_steps = sum(w.n_steps for w in windows)
    if not records or not n_steps:
        return None
    steps_ns = [ns for w in windows for ns in w.host_step_ns]
    step_ns = median(steps_ns) if steps_ns else 0.0
    full_ns = [ns for r in records for ns in r.full_ns]
    total_ns = sum(sum(r.ns) for r in records)
    ms_per_step = total_ns / NS_PER_MS / n_steps
    asking = max(records, key=lambda r: r.asked_ns)
    return CollectionFacts(
        n=sum(sum(r.n) for r in records),
        n_full=sum(r.n[-1] for r in records),
        n_steps=n_steps,
        ms_per_step=ms_per_step,
        low_ms_per_step=ms_per_step * _sure_part(records, n_steps),
        full_ms_per_step=sum(r.ns[-1] for r in records) / NS_PER_MS / n_steps,
        asked_ms_per_step=sum(r.asked_ns for r in records) / NS_PER_MS / n_steps,
        longest_ms=max(full_ns) / NS_PER_MS if full_ns else None,
        n_longer_than_step=sum(1 for ns in full_ns if ns > step_ns),
        site=asking.site,
        code=asking.code,
        library=asking.library,
    )


def _sure_part(records: Sequence[CollectionRecord], n_steps: int) -> float:
    """Lower end of the total's 95 % interval / the total, as of events that come at random.

    A count of n that come at random has a variance of n, less the nearer they are to one in each
    step, which is no chance. Generations differ in what one takes, so each counts by itself.
    """
    n = [sum(r.n[i] for r in records) for i in range(len(records[0].n))]
    ns = [sum(r.ns[i] for r in records) for i in range(len(records[0].n))]
    variance = sum(
        x * x / count * (1.0 - min(1.0, count / n_steps))
        for count, x in zip(n, ns, strict=True)
        if count
    )
    total = sum(ns)
    return max(0.0, 1.0 - _NORMAL95 * math.sqrt(variance) / total) if total else 0.0
