"""What one rank's trace brings to the comparison of ranks: small, whatever the trace's size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loaderdoctor.attribution.rows import Rows
from loaderdoctor.attribution.trace_facts import Attributed, facts_of
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import I32, I64, Category, Trace

LATEST_NS = 1 << 62  # the year 2116; times within a trace may be added to it
# Spans of the collective itself, by the libraries that run it on the host. c10d's own op only
# enqueues it, so that one stands in where no library's span was recorded.
_HOST_WORK = ("gloo:", "mpi:", "ucc:", "xccl:", "nccl:")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives:
    """Collectives of one rank in order of their start. Times in ns since the epoch, its clock."""

    names: tuple[str, ...]
    name: I32  # index into `names`
    start_ns: I64
    end_ns: I64

    def __len__(self) -> int:
        return int(self.start_ns.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace:
    """One rank's figures, its collectives, and when it was communicating by the identity."""

    source: str
    rank: int | None  # as the trace says
    n_ranks: int | None
    host: str | None
    facts: TraceFacts
    n_malformed: int
    n_other_processes: int
    start_ns: int  # the trace's beginning, since the epoch
    collectives: Collectives
    communication: Intervals  # exposed, within the steps; ns since the epoch, this rank's clock

    @property
    def per_step(self) -> int:
        """What totals are divided by."""
        return max(self.facts.n_steps, 1)


def rank_trace(attributed: Attributed) -> RankTrace:
    """Keep of a divided trace what the comparison needs."""
    trace = attributed.trace
    at = epoch_ns(trace)
    communication = attributed.partition.communication
    return RankTrace(
        source=str(trace.source),
        rank=trace.rank,
        n_ranks=trace.n_ranks,
        host=trace.host_name,
        facts=facts_of(attributed),
        n_malformed=trace.n_dropped_events,
        n_other_processes=attributed.n_other_processes,
        start_ns=at,
        collectives=_collectives(attributed.rows, at),
        communication=Intervals(communication.starts + at, communication.ends + at),
    )


def epoch_ns(trace: Trace) -> int:
    """The trace's 0 in nanoseconds since the epoch; 0 where what the file says is no such time."""
    at = trace.base_time_ns + round(trace.origin_us * 1000.0)
    return at if abs(at) < LATEST_NS else 0


def _collectives(rows: Rows, at_ns: int) -> Collectives:
    spans, flags = rows.spans, rows.flags
    chosen = np.flatnonzero(rows.named(flags.collective_kernel, Category.KERNEL))
    if chosen.size == 0:
        chosen = np.flatnonzero(
            rows.named(flags.communication, Category.CPU_OP, Category.USER_ANNOTATION)
        )
        work = np.fromiter(
            (n.startswith(_HOST_WORK) for n in rows.names), np.bool_, len(rows.names)
        )
        if work[spans.name[chosen]].any():
            chosen = chosen[work[spans.name[chosen]]]
    used, name = np.unique(spans.name[chosen], return_inverse=True)
    return Collectives(
        names=tuple(rows.names[i] for i in used),
        name=name.astype(np.int32),
        start_ns=spans.start_ns[chosen] + at_ns,
        end_ns=spans.end_ns[chosen] + at_ns,
    )
