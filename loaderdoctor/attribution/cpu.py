"""CPU records of plain windows -> who used the CPUs, and who stood waiting for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.records import CpuRecord

# A system that counts for less than this part of our own CPU time tells of something else than
# what we run on (sandboxes that fake /proc/stat). It counts in ticks of 10 ms, by sampling, which
# over windows of a second is far nearer than this.
MIN_PLAUSIBLE = 0.8


def cpu_facts(windows: Sequence[WindowDone], usable_cpus: float | None) -> CpuFacts | None:
    """Over all these windows together; None where none recorded anything.

    Other programs count as far as they take from the CPUs this run may use. Where a quota leaves
    it fewer than there are, others have the rest for free; but processes of its own group eat
    from the same quota.
    """
    records = [w.cpu for w in windows if w.cpu is not None and w.cpu.wall_ns > 0]
    if not records:
        return None
    wall_ns = sum(r.wall_ns for r in records)
    return CpuFacts(
        other_cores=_others(records, wall_ns, usable_cpus),
        waiting_threads=_per_wall(records, lambda r: r.waited_ns),
        train_wait_share=_per_wall(records, lambda r: r.thread_waited_ns),
        throttled_share=_throttled(records),
    )


def _others(records: Sequence[CpuRecord], wall_ns: int, usable_cpus: float | None) -> float | None:
    run = _sum(records, lambda r: r.tree_ns)
    n_cpus = max((r.n_cpus or 0 for r in records), default=0)
    if run is None or usable_cpus is None or not n_cpus:
        return None
    found = []
    busy, group = _sum(records, lambda r: r.busy_ns), _sum(records, lambda r: r.group_ns)
    if busy is not None and busy >= MIN_PLAUSIBLE * run:
        found.append((busy - run) / wall_ns - max(0.0, n_cpus - usable_cpus))
    if group is not None:
        found.append((group - run) / wall_ns)
    return max(0.0, *found) if found else None


def _throttled(records: Sequence[CpuRecord]) -> float | None:
    periods, throttled = (
        _sum(records, lambda r: r.n_periods),
        _sum(records, lambda r: r.n_throttled),
    )
    return throttled / periods if periods and throttled is not None else None


def _per_wall(
    records: Sequence[CpuRecord], field: Callable[[CpuRecord], int | None]
) -> float | None:
    known = [r for r in records if field(r) is not None]
    total = _sum(known, field)
    return total / sum(r.wall_ns for r in known) if total is not None else None


def _sum(records: Sequence[CpuRecord], field: Callable[[CpuRecord], int | None]) -> int | None:
    """Over all of them; None where one did not record it, or there is none."""
    values = [field(r) for r in records]
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None
