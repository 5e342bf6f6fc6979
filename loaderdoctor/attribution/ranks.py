"""What one rank's trace says, and what its peers make it wait for.

The same collective is matched in the traces of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loaderdoctor.attribution import Attributed, facts_of
from loaderdoctor.attribution.trace_rows import Rows, flags_of
from loaderdoctor.facts import RankFacts
from loaderdoctor.facts.step import Shares
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, I32, I64, Category, Trace
from loaderdoctor.units import NS_PER_MS

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
    n_later_events: int = 0  # left out for want of memory
    pid: str | None = None  # of the process that trains, as the trace has it
    start_ns: int  # the trace's beginning, since the epoch
    end_ns: int
    collectives: Collectives
    communication: Intervals  # exposed, within the steps; ns since the epoch, this rank's clock

    @property
    def per_step(self) -> int:
        """What totals are divided by."""
        return max(self.facts.n_steps, 1)


def rank_trace(attributed: Attributed, *, recorded_here: bool = True) -> RankTrace:
    """Keep of a divided trace what the comparison needs; `recorded_here` as in `facts_of`."""
    trace = attributed.trace
    at = epoch_ns(trace)
    communication = attributed.partition.communication
    training = attributed.rows.training_thread
    return RankTrace(
        source=str(trace.source),
        rank=trace.rank,
        n_ranks=trace.n_ranks,
        host=trace.host_name,
        facts=facts_of(attributed, recorded_here=recorded_here),
        n_malformed=trace.n_dropped_events,
        n_other_processes=attributed.n_other_processes,
        n_later_events=trace.n_later_events,
        pid=trace.threads[training].pid if training != ABSENT else None,
        start_ns=at,
        end_ns=at + int(trace.spans.end_ns.max(initial=0)),
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
        work = flags_of(rows.names, lambda name: name.startswith(_HOST_WORK))
        if work[spans.name[chosen]].any():
            chosen = chosen[work[spans.name[chosen]]]
    used, name = np.unique(spans.name[chosen], return_inverse=True)
    return Collectives(
        names=tuple(rows.names[i] for i in used),
        name=name.astype(np.int32),
        start_ns=spans.start_ns[chosen] + at_ns,
        end_ns=spans.end_ns[chosen] + at_ns,
    )


# Which rank the others wait for: one collective seen from every rank.
#
# A collective ends on all ranks at about the same time, and only begins in earnest when the last
# rank has come to it. What an earlier rank spends in it before that is waiting for a peer, not
# communication.
#
# Traces of one machine share a clock. Those of different machines are aligned by the ends of the
# collectives: clocks kept by NTP are right to within milliseconds, which tells one step's
# collectives from the next one's, and the median difference of the ends is what is left of the
# offset.

# Fewer matches could be chance.
MIN_MATCHED = 3
# How far apart the same event may be told by two ranks of one machine: a thread is woken this much
# later at the worst (0.5 ms seen between two gloo ranks on two busy cores).
SLACK_NS = 1_000_000
# Traces may begin some collectives apart; with clocks of different machines, some steps.
REACH = 64
REACH_OTHER_HOST = 512
# Shifts by whole steps of a steady loop agree equally well, but for noise of this factor.
AS_GOOD = 1.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Match:
    """For each collective of a rank the same one of the reference (or -1), and its clock's lead."""

    index: I64
    offset_ns: int


def compare(traces: Sequence[RankTrace], ranks: Sequence[int]) -> tuple[RankFacts, ...]:
    """Every rank's figures with waiting for peers told apart; in the order given.

    `ranks` numbers the traces. Waits are None where no collective could be matched.
    """
    waits = _peer_waits(traces)
    return tuple(
        _rank_facts(trace, rank, wait)
        for trace, rank, wait in zip(traces, ranks, waits, strict=True)
    )


def slowest(ranks: Sequence[RankFacts]) -> RankFacts:
    """The rank that the others wait for; without collectives the one whose steps take longest."""
    waiting = [r for r in ranks if r.peer_wait_ms is not None]
    if waiting:
        return min(waiting, key=lambda r: r.peer_wait_ms or 0.0)
    return max(ranks, key=lambda r: r.wall_ms)


def without_peer_wait(facts: TraceFacts, peer_wait_ms: float | None) -> TraceFacts:
    """The facts with shares of the step less the wait for peers, which is no communication."""
    if peer_wait_ms is None or facts.kernels.communication_ms is None:
        return facts
    if not peer_wait_ms:
        return replace(facts, peers_compared=True)
    wall_ms = facts.wall_ms
    own_ms = wall_ms - peer_wait_ms
    if own_ms <= 0.0:
        return facts
    parts = {k: None if v is None else v * wall_ms for k, v in facts.shares.as_dict().items()}
    parts["communication"] = max(0.0, (parts["communication"] or 0.0) - peer_wait_ms)
    total = sum(v for v in parts.values() if v is not None)
    if total <= 0.0:
        return facts
    communication_ms = max(0.0, facts.kernels.communication_ms - peer_wait_ms)
    return replace(
        facts,
        shares=Shares(**{k: None if v is None else v / total for k, v in parts.items()}),
        kernels=replace(facts.kernels, communication_ms=communication_ms),
        peers_compared=True,
    )


def _rank_facts(trace: RankTrace, rank: int, peer_wait_ms: float | None) -> RankFacts:
    own = without_peer_wait(trace.facts, peer_wait_ms)
    own_ms = trace.facts.wall_ms - (peer_wait_ms or 0.0)
    return RankFacts(
        rank=rank,
        host=trace.host,
        source=trace.source,
        n_steps=trace.facts.n_steps,
        wall_ms=trace.facts.wall_ms,
        shares=own.shares,
        own_ms=own_ms,
        peer_wait_ms=peer_wait_ms,
    )


def _peer_waits(traces: Sequence[RankTrace]) -> list[float | None]:
    if not traces:
        return []
    reference = max(traces, key=lambda t: len(t.collectives))
    n = len(reference.collectives)
    matches = [_match(reference, trace) for trace in traces]
    late = np.full(n, np.iinfo(np.int64).min)
    first_end = np.full(n, np.iinfo(np.int64).max)
    seen = np.zeros(n, np.int64)
    for trace, match in zip(traces, matches, strict=True):
        if match is None:
            continue
        matched = match.index >= 0
        at = match.index[matched]
        np.maximum.at(late, at, trace.collectives.start_ns[matched] - match.offset_ns)
        np.minimum.at(first_end, at, trace.collectives.end_ns[matched] - match.offset_ns)
        np.add.at(seen, at, 1)
    # No rank can leave before the last one has come: else these are not the same collective.
    known = (seen >= 2) & (late <= first_end + SLACK_NS)
    return [
        None if match is None else _wait_ms(trace, match, late, known)
        for trace, match in zip(traces, matches, strict=True)
    ]


def _wait_ms(
    trace: RankTrace, match: _Match, late: I64, known: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> float | None:
    """Per step: in collectives before the last rank has come, as far as that is exposed."""
    counted = (match.index >= 0) & known[np.maximum(match.index, 0)]
    if int(counted.sum()) < MIN_MATCHED:
        return None
    own = trace.collectives
    until = np.minimum(late[match.index[counted]] + match.offset_ns, own.end_ns[counted])
    waiting = Intervals.of(own.start_ns[counted], until).intersect(trace.communication)
    return waiting.total_ns / NS_PER_MS / trace.per_step


def _match(reference: RankTrace, trace: RankTrace) -> _Match | None:
    """Collectives of a rank next to the reference's, in order; None where they don't agree."""
    ours, theirs = trace.collectives, reference.collectives
    if trace is reference:
        return _Match(index=np.arange(len(ours), dtype=np.int64), offset_ns=0)
    if len(ours) < MIN_MATCHED or len(theirs) < MIN_MATCHED:
        return None
    same_clock = trace.host is not None and trace.host == reference.host
    names = _common_names(theirs, ours)
    middle = len(ours) // 2
    guess = int(np.searchsorted(theirs.end_ns, ours.end_ns[middle])) - middle
    reach = REACH if same_clock else REACH_OTHER_HOST
    found: list[tuple[int, float, float]] = []  # shift, spread, |median|, of differences of ends
    for shift in range(guess - reach, guess + reach + 1):
        low, high = max(0, -shift), min(len(ours), len(theirs) - shift)
        if high - low < MIN_MATCHED or high - low < min(len(ours), len(theirs)) // 2:
            continue
        if (names[low:high] != theirs.name[low + shift : high + shift]).any():
            continue
        difference = ours.end_ns[low:high] - theirs.end_ns[low + shift : high + shift]
        centre = float(np.median(difference))
        spread = float(np.median(np.abs(difference - centre)))
        found.append((shift, spread, centre))
    if not found:
        return None
    if same_clock:
        shift, spread, centre = min(found, key=lambda f: abs(f[2]))
        offset_ns = 0
    else:
        least = min(spread for _, spread, _ in found)
        good = [f for f in found if f[1] <= AS_GOOD * least + SLACK_NS / 10]
        shift, spread, centre = min(good, key=lambda f: abs(f[2]))
        offset_ns = round(centre)
    index = np.arange(len(ours), dtype=np.int64) + shift
    index[(index < 0) | (index >= len(theirs))] = -1
    return _Match(index=index, offset_ns=offset_ns)


def _common_names(theirs: Collectives, ours: Collectives) -> I64:
    """Names of our collectives as the other trace numbers them; -1 where it has none such."""
    number = {name: i for i, name in enumerate(theirs.names)}
    table = np.asarray([number.get(name, -1) for name in ours.names], np.int64)
    return table[ours.name]
