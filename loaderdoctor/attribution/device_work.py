"""What the device is given in the measured steps: copies, kernels, launches, and syncs for them.

Of host-to-device copies: when they run, what they hold up on the host, and what they cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.identity import Partition
from loaderdoctor.attribution.trace_rows import Index, Mask, Rows
from loaderdoctor.facts.trace import CopyFacts, KernelFacts, SyncFacts
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import ABSENT, I64, Category
from loaderdoctor.units import NS_PER_US

# A copy of one scalar (a learning rate, a loss scale) brings no batch.
SCALAR_BYTES = 8
# Copies are told apart by source, device and stream; loops use a handful of these.
MAX_KINDS = 64
_SOURCES: tuple[Literal["pinned", "pageable", "unknown"], ...] = ("pinned", "pageable", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRows:
    """H2D copies joined to the host calls that issued them."""

    rows: Index  # device rows of H2D copies, by start
    call: I64  # runtime row of each, or ABSENT
    sync: I64  # the stream sync that belongs to that call, or ABSENT
    held: I64  # these calls and syncs: rows, of any thread, that a copy holds up
    device: Intervals  # a copy runs
    on_host: Intervals  # the training thread is inside one of `held`

    def of_batch(self, rows: Rows) -> Mask:
        """Which of them bring more than a scalar."""
        return np.asarray(rows.spans.bytes[self.rows] > SCALAR_BYTES)

    def batches_called_ns(self, rows: Rows) -> I64:
        """When those were issued, as far as their calls are known."""
        call = self.call[self.of_batch(rows) & (self.call != ABSENT)]
        return np.asarray(rows.spans.start_ns[call])


class _Kind(NamedTuple):
    """What copies are told apart by; device and stream are ABSENT where they are not."""

    source: int  # index into _SOURCES
    device: int
    stream: int


def copy_rows(rows: Rows) -> CopyRows:
    """Find the H2D copies and the host calls they hold up, by correlation id."""
    spans = rows.spans
    is_copy = (spans.category[rows.device_rows] == Category.MEMCPY) & (
        rows.flags.h2d[spans.name[rows.device_rows]]
    )
    call = rows.launched_by[is_copy]
    return _joined(rows, rows.device_rows[is_copy], call, _own_syncs(rows, call))


def copy_facts(
    rows: Rows, copies: CopyRows, clock: StepClock, partition: Partition, busy: Intervals
) -> tuple[CopyFacts, ...]:
    """One entry per source memory and stream, the most exposed first.

    Counts, bytes and bandwidth are of the copies issued within the measured host steps; exposed
    time is the part of the identity's `copy` share, each instant given to one entry. `busy` is
    when the accelerator runs kernels.
    """
    assert partition.copy is not None
    compute_streams = _compute_streams(rows)
    facts: list[CopyFacts] = []
    left, host = partition.copy, partition.host
    for kind, mine in _by_kind(rows, copies):
        exposed = left.intersect(mine.device.union(mine.on_host))
        left = left.subtract(exposed)
        within = clock.host_window.contains(_issued_ns(rows, mine))
        counted, call = mine.rows[within], mine.call[within]
        if counted.size == 0:
            continue
        beside = rows.spans.thread[call[call != ABSENT]] != rows.training_thread
        n_bytes = rows.spans.bytes[counted]
        n_bytes = n_bytes[n_bytes != ABSENT]
        total_bytes = float(n_bytes.sum(dtype=np.float64))
        busy_ns = int(_length_ns(rows, counted).sum())
        blocked = rows.intervals(mine.held).intersect(clock.host_window)
        stream = compute_streams.get(kind.device)
        idle = _idle_after(rows, mine, busy).intersect(host)
        facts.append(
            CopyFacts(
                source=_SOURCES[kind.source],
                n_per_step=counted.size / clock.per_step,
                bytes_per_step=total_bytes / clock.per_step,
                busy_ms_per_step=clock.ms_per_step(busy_ns),
                exposed_ms_per_step=clock.ms_per_step(exposed.total_ns),
                bandwidth_gb_per_s=total_bytes / busy_ns if busy_ns and n_bytes.size else None,
                host_blocked_ms_per_step=clock.ms_per_step(blocked.total_ns),
                same_stream_as_compute=kind.stream == stream if stream is not None else None,
                median_bytes=float(np.median(n_bytes)) if n_bytes.size else 0.0,
                idle_after_ms_per_step=clock.ms_per_step(idle.total_ns),
                silent_after_ms_per_step=clock.ms_per_step(
                    idle.intersect(silences_behind(rows, mine)).total_ns
                ),
                unwaited_ms_per_step=clock.ms_per_step(
                    exposed.intersect(_unwaited(rows, mine, stream)).total_ns
                ),
                op_host_ms_per_step=clock.ms_per_step(
                    _issuing_ops(rows, mine).intersect(host).total_ns
                ),
                n_beside_per_step=int(beside.sum()) / clock.per_step,
            )
        )
    return tuple(sorted(facts, key=lambda f: -f.exposed_ms_per_step))


_NEVER = np.iinfo(np.int64).max


def _idle_after(rows: Rows, copies: CopyRows, busy: Intervals) -> Intervals:
    """From the end of each call or sync that waited for earlier kernels to the next kernel.

    One that finds the accelerator idle ends no lead of the host's: there was none.
    """
    spans = rows.spans
    held = np.where(copies.sync != ABSENT, copies.sync, copies.call)
    known = (held != ABSENT) & (copies.call != ABSENT)
    held, call = held[known], copies.call[known]
    mine = spans.thread[held] == rows.training_thread
    held, call = held[mine], call[mine]
    waited = busy.contains(spans.start_ns[call])
    ends = spans.end_ns[held[waited]]
    next_kernel = np.append(busy.starts, _NEVER)[np.searchsorted(busy.ends, ends, side="right")]
    found = next_kernel < _NEVER
    return Intervals.of(ends[found], np.maximum(next_kernel, ends)[found])


# Between two ops lie tens of microseconds of Python (see `facts.host`).
MIN_SILENCE_NS = 1_000_000


def silences_behind(rows: Rows, copies: CopyRows) -> Intervals:
    """From the outermost op that made such a copy to the training thread's next op or call."""
    spans = rows.spans
    mine = rows.on_training_thread() & np.isin(spans.category, (Category.CPU_OP, Category.RUNTIME))
    index = rows.outermost(mine)
    calls = copies.call[copies.call != ABSENT]
    calls = calls[spans.thread[calls] == rows.training_thread]
    if index.size < 2 or calls.size == 0:
        return EMPTY
    at = np.unique(np.searchsorted(spans.start_ns[index], spans.start_ns[calls], side="right") - 1)
    at = at[(at >= 0) & (at < index.size - 1)]
    ends, starts = spans.end_ns[index[at]], spans.start_ns[index[at + 1]]
    long = starts - ends >= MIN_SILENCE_NS
    return Intervals.of(ends[long], starts[long])


def _unwaited(rows: Rows, copies: CopyRows, stream: int | None) -> Intervals:
    """When copies run that neither a call nor a launched kernel waits for.

    Whatever the host does before it launches the next kernel (on `stream`, which computes) would
    delay that as long.
    """
    spans = rows.spans
    if copies.rows.size == 0 or stream is None:
        return EMPTY
    is_kernel = spans.category[rows.device_rows] == Category.KERNEL
    kernels, call = rows.device_rows[is_kernel], rows.launched_by[is_kernel]
    same = (spans.device[kernels] == spans.device[copies.rows[0]]) & (call != ABSENT)
    same &= spans.stream[kernels] == stream
    kernels, launched = kernels[same], spans.start_ns[call[same]]
    starts, ends = spans.start_ns[copies.rows], spans.end_ns[copies.rows]
    # With no kernel behind it nothing tells: it is waited for.
    behind = np.searchsorted(spans.start_ns[kernels], starts)
    until = np.minimum(np.append(launched, np.iinfo(np.int64).min)[behind], ends)
    held = np.where(copies.sync != ABSENT, copies.sync, copies.call)
    returned = np.where(held != ABSENT, spans.end_ns[np.maximum(held, 0)], _NEVER)
    begin = np.maximum(starts, returned)
    free = until > begin
    return Intervals.of(begin[free], until[free])


def _issuing_ops(rows: Rows, copies: CopyRows) -> Intervals:
    """The outermost ops of the training thread that issue these copies."""
    spans = rows.spans
    call = copies.call[copies.call != ABSENT]
    call = np.sort(spans.start_ns[call[spans.thread[call] == rows.training_thread]])
    ops = rows.outermost((spans.category == Category.CPU_OP) & rows.on_training_thread())
    n = np.searchsorted(call, spans.end_ns[ops]) - np.searchsorted(call, spans.start_ns[ops])
    return rows.intervals(ops[n > 0])


def _joined(rows: Rows, copies: Index, call: I64, sync: I64) -> CopyRows:
    held = np.concatenate((call, sync))
    held = held[held != ABSENT]
    return CopyRows(
        rows=copies,
        call=call,
        sync=sync,
        held=held,
        device=rows.intervals(copies),
        on_host=rows.intervals(held[rows.spans.thread[held] == rows.training_thread]),
    )


def _by_kind(rows: Rows, copies: CopyRows) -> Iterator[tuple[_Kind, CopyRows]]:
    """The copies of each kind, those that run longest first."""
    if copies.rows.size == 0:
        return
    spans, flags = rows.spans, rows.flags
    name = spans.name[copies.rows]
    source = np.where(flags.pinned[name], 0, np.where(flags.pageable[name], 1, 2))
    columns = np.stack((source, spans.device[copies.rows], spans.stream[copies.rows]))
    kinds, number = np.unique(columns, axis=1, return_inverse=True)
    if kinds.shape[1] > MAX_KINDS:  # more than any loop has: then by source alone
        columns[1:] = ABSENT
        kinds, number = np.unique(columns, axis=1, return_inverse=True)
    number = number.reshape(-1)
    total_ns = np.bincount(number, weights=_length_ns(rows, copies.rows))
    for i in np.argsort(-total_ns).tolist():
        mine = number == i
        part = _joined(rows, copies.rows[mine], copies.call[mine], copies.sync[mine])
        yield _Kind(*kinds[:, i].tolist()), part


def _issued_ns(rows: Rows, copies: CopyRows) -> I64:
    """When each copy was issued; where no call of its own was recorded, when it ran."""
    start_ns = rows.spans.start_ns
    called = copies.call != ABSENT
    return np.where(called, start_ns[np.maximum(copies.call, 0)], start_ns[copies.rows])


def _length_ns(rows: Rows, index: Index) -> I64:
    return rows.spans.end_ns[index] - rows.spans.start_ns[index]


def _own_syncs(rows: Rows, call: I64) -> I64:
    """The stream sync torch makes right after a copy that is not `non_blocking`.

    `copy_` issues `cudaMemcpyAsync` and `cudaStreamSynchronize` within one op: same thread, same
    External id, the sync after the copy and before any other copy. Without ids it must be the
    thread's very next runtime call.
    """
    spans = rows.spans
    syncs = np.full(call.size, ABSENT, np.int64)
    known = np.flatnonzero(call != ABSENT)
    if known.size == 0:
        return syncs
    is_call = np.zeros(len(spans), np.bool_)
    is_call[call[known]] = True
    runtime = spans.category == Category.RUNTIME
    is_sync = runtime & rows.flags.sync[spans.name]
    no_ids = bool((spans.external_id[call[known]] == ABSENT).all())
    chain = np.flatnonzero(runtime if no_ids else (is_call | is_sync))
    chain = chain[np.lexsort((spans.start_ns[chain], spans.thread[chain]))]
    follows = np.full(len(spans), ABSENT, np.int64)
    tied = (
        is_call[chain[:-1]]
        & is_sync[chain[1:]]
        & (spans.thread[chain[:-1]] == spans.thread[chain[1:]])
        & (spans.external_id[chain[:-1]] == spans.external_id[chain[1:]])
    )
    follows[chain[:-1][tied]] = chain[1:][tied]
    syncs[known] = follows[call[known]]
    return syncs


def _compute_streams(rows: Rows) -> dict[int, int]:
    """The stream of each device on which most kernel time is spent, collectives left out."""
    spans = rows.spans
    kernels = rows.device_rows[spans.category[rows.device_rows] == Category.KERNEL]
    kernels = kernels[~rows.flags.collective_kernel[spans.name[kernels]]]
    if kernels.size == 0:
        return {}
    order = np.lexsort((spans.stream[kernels], spans.device[kernels]))
    device, stream = spans.device[kernels][order], spans.stream[kernels][order]
    changes = (np.diff(device) != 0) | (np.diff(stream) != 0)
    first = np.flatnonzero(np.concatenate(([True], changes)))
    total_ns = np.add.reduceat(_length_ns(rows, kernels)[order], first)
    longest: dict[int, tuple[int, int]] = {}
    for on, of, ns in zip(
        device[first].tolist(), stream[first].tolist(), total_ns.tolist(), strict=True
    ):
        if on not in longest or ns > longest[on][1]:
            longest[on] = (of, ns)
    return {on: of for on, (of, _) in longest.items()}


def kernel_facts(
    rows: Rows, clock: StepClock, partition: Partition, *, has_accelerator: bool
) -> KernelFacts:
    """Kernels of the measured steps, collectives apart; each is counted where it was launched."""
    spans, flags = rows.spans, rows.flags
    kernel = spans.category[rows.device_rows] == Category.KERNEL
    kernel &= ~flags.collective_kernel[spans.name[rows.device_rows]]
    kernels, call = rows.device_rows[kernel], rows.launched_by[kernel]
    begun = np.where(call != ABSENT, spans.start_ns[np.maximum(call, 0)], spans.start_ns[kernels])
    within = clock.host_window.contains(begun)
    kernels, call = kernels[within], call[within]
    lengths = spans.end_ns[kernels] - spans.start_ns[kernels]
    n_calls = np.unique(call[call != ABSENT]).size + int((call == ABSENT).sum())
    return KernelFacts(
        n_per_step=kernels.size / clock.per_step,
        busy_ms=clock.ms_per_step(partition.compute.total_ns) if has_accelerator else 0.0,
        mean_us=float(lengths.mean()) / NS_PER_US if kernels.size else None,
        communication_ms=clock.ms_per_step(partition.communication.total_ns),
        n_per_call=kernels.size / n_calls if n_calls else 1.0,
    )


def launch_calls_ns(rows: Rows, clock: StepClock) -> int | None:
    """Time inside calls that launch something in the measured steps; None: no calls recorded."""
    if not rows.of_category[Category.RUNTIME].size:
        return None
    spans = rows.spans
    launches = np.flatnonzero(rows.named(rows.flags.launch, Category.RUNTIME))
    launches = launches[clock.host_window.contains(spans.start_ns[launches])]
    return int((spans.end_ns[launches] - spans.start_ns[launches]).sum())


def sync_facts(
    rows: Rows,
    copies: CopyRows,
    clock: StepClock,
    kernels: Intervals,
    host: Intervals,
    *,
    has_accelerator: bool,
) -> SyncFacts:
    """Syncs of the loop within the measured host steps; their times only of an accelerator.

    Stream, device and event syncs of the training thread, together with the D2H copy that some
    belong to (`.item()`, `.cpu()`). Not: the sync of an H2D copy, which is the copy's own; what
    other threads wait for; the profiler's own device syncs, which lie before the second step and
    after the last. `idle_after_ms` counts only what the identity calls `host`: after a sync, a
    wait for the loader is the loader's.
    """
    spans = rows.spans
    mask = rows.named(rows.flags.sync, Category.RUNTIME) & rows.on_training_thread()
    mask[copies.sync[copies.sync != ABSENT]] = False
    every = np.flatnonzero(mask)
    syncs = every[clock.host_window.contains(spans.start_ns[every])]
    if not has_accelerator:
        return SyncFacts(n_per_step=syncs.size / clock.per_step, wait_ms=None, idle_after_ms=None)
    # What follows the syncs lies in the window of the device's steps, which the host's precede.
    ends = spans.end_ns[every]
    ends = ends[clock.window.contains(ends)]
    after = np.searchsorted(kernels.ends, ends, side="right")
    next_kernel = np.append(kernels.starts, _NEVER)[after]
    waited_ns = int((spans.end_ns[syncs] - _with_own_copy(rows, syncs)).sum())
    idle = Intervals.of(ends, next_kernel).intersect(host)
    to_host = rows.device_rows[
        (spans.category[rows.device_rows] == Category.MEMCPY)
        & rows.flags.d2h[spans.name[rows.device_rows]]
    ]
    to_host = to_host[clock.window.contains(spans.start_ns[to_host])]
    n_bytes = spans.bytes[to_host]
    return SyncFacts(
        n_per_step=syncs.size / clock.per_step,
        wait_ms=clock.ms_per_step(waited_ns),
        idle_after_ms=clock.ms_per_step(idle.total_ns),
        n_to_host_per_step=to_host.size / clock.per_step,
        to_host_bytes=float(n_bytes[n_bytes != ABSENT].sum(dtype=np.float64)) / clock.per_step,
        to_host_ms=clock.ms_per_step(rows.intervals(to_host).intersect(host).total_ns),
    )


def _with_own_copy(rows: Rows, syncs: Index) -> I64:
    """Where each sync's blocking begins: with the D2H copy of the same op, if it has one."""
    spans = rows.spans
    starts = spans.start_ns[syncs].copy()
    is_d2h = (spans.category[rows.device_rows] == Category.MEMCPY) & (
        rows.flags.d2h[spans.name[rows.device_rows]] & (rows.launched_by != ABSENT)
    )
    calls = rows.launched_by[is_d2h]
    calls = calls[
        (spans.thread[calls] == rows.training_thread) & (spans.external_id[calls] != ABSENT)
    ]
    if calls.size == 0 or syncs.size == 0:
        return starts
    calls = calls[np.argsort(spans.external_id[calls], kind="stable")]
    ids = spans.external_id[calls]
    at = np.minimum(np.searchsorted(ids, spans.external_id[syncs]), ids.size - 1)
    same = (ids[at] == spans.external_id[syncs]) & (spans.start_ns[calls[at]] <= starts)
    return np.where(same, spans.start_ns[calls[at]], starts)
