"""Host-to-device copies: when they run, what they hold up on the host, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from loaderdoctor.attribution.clock import StepClock
from loaderdoctor.attribution.rows import Index, Rows
from loaderdoctor.facts.trace import CopyFacts
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import ABSENT, I64, Category

# Copies are told apart by source, device and stream; loops use a handful of these.
MAX_KINDS = 64
_SOURCES: tuple[Literal["pinned", "pageable", "unknown"], ...] = ("pinned", "pageable", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRows:
    """H2D copies joined to the host calls that issued them."""

    rows: Index  # device rows of H2D copies, by start
    call: I64  # runtime row of each, or ABSENT
    sync: I64  # the stream sync that belongs to that call, or ABSENT
    device: Intervals  # a copy runs
    on_host: Intervals  # the training thread is inside a copy's call or its sync


def copy_rows(rows: Rows) -> CopyRows:
    """Find the H2D copies and the host calls they hold up, by correlation id."""
    spans = rows.spans
    is_copy = (spans.category[rows.device_rows] == Category.MEMCPY) & (
        rows.flags.h2d[spans.name[rows.device_rows]]
    )
    copies = rows.device_rows[is_copy]
    call = rows.launched_by[is_copy]
    sync = _own_syncs(rows, call)
    held = np.concatenate((call[call != ABSENT], sync[sync != ABSENT]))
    held = held[spans.thread[held] == rows.training_thread]
    return CopyRows(
        rows=copies,
        call=call,
        sync=sync,
        device=rows.intervals(copies),
        on_host=rows.intervals(held) if held.size else EMPTY,
    )


def copy_facts(
    rows: Rows, copies: CopyRows, clock: StepClock, copy_share: Intervals
) -> tuple[CopyFacts, ...]:
    """One entry per source memory and stream, the most exposed first.

    Counts, bytes and bandwidth are of the copies issued within the measured host steps; exposed
    time is the part of the identity's `copy` share, each instant given to one entry.
    """
    spans, flags = rows.spans, rows.flags
    if copies.rows.size == 0:
        return ()
    issued = np.where(
        copies.call != ABSENT,
        spans.start_ns[np.maximum(copies.call, 0)],
        spans.start_ns[copies.rows],
    )
    counted = clock.host_window.contains(issued)
    name = spans.name[copies.rows]
    source = np.where(flags.pinned[name], 0, np.where(flags.pageable[name], 1, 2))
    device, stream = spans.device[copies.rows], spans.stream[copies.rows]
    key = _few(list(zip(source.tolist(), device.tolist(), stream.tolist(), strict=True)))
    keys = sorted(set(key))
    number = {k: i for i, k in enumerate(keys)}
    group = np.array([number[k] for k in key], np.int64)
    compute_streams = _compute_streams(rows)

    facts: list[CopyFacts] = []
    left = copy_share
    longest_first = np.argsort(
        -np.bincount(group, weights=spans.end_ns[copies.rows] - spans.start_ns[copies.rows])
    )
    for g in longest_first:
        mine = group == g
        held = np.concatenate((copies.call[mine], copies.sync[mine]))
        held = held[held != ABSENT]
        here = rows.intervals(copies.rows[mine])
        on_training = held[spans.thread[held] == rows.training_thread]
        exposed = left.intersect(here.union(rows.intervals(on_training)))
        left = left.subtract(exposed)
        now = mine & counted
        if not now.any():
            continue
        moved = spans.bytes[copies.rows[now]]
        moved = moved[moved != ABSENT]
        busy_ns = int((spans.end_ns[copies.rows[now]] - spans.start_ns[copies.rows[now]]).sum())
        blocked = rows.intervals(held).intersect(clock.host_window)
        kind, on_device, on_stream = keys[g]
        facts.append(
            CopyFacts(
                source=_SOURCES[kind],
                n_per_step=float(now.sum()) / clock.per_step,
                bytes_per_step=float(moved.sum(dtype=np.float64)) / clock.per_step,
                busy_ms_per_step=clock.ms_per_step(busy_ns),
                exposed_ms_per_step=clock.ms_per_step(exposed.total_ns),
                bandwidth_gb_per_s=(
                    float(moved.sum(dtype=np.float64)) / busy_ns if busy_ns and moved.size else None
                ),
                host_blocked_ms_per_step=clock.ms_per_step(blocked.total_ns),
                same_stream_as_compute=(
                    on_stream == compute_streams[on_device]
                    if on_device in compute_streams
                    else None
                ),
                median_bytes=float(np.median(moved)) if moved.size else 0.0,
            )
        )
    return tuple(sorted(facts, key=lambda f: -f.exposed_ms_per_step))


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
    lengths = spans.end_ns[kernels] - spans.start_ns[kernels]
    if kernels.size == 0:
        return {}
    order = np.lexsort((spans.stream[kernels], spans.device[kernels]))
    device, stream = spans.device[kernels][order], spans.stream[kernels][order]
    changes = (np.diff(device) != 0) | (np.diff(stream) != 0)
    first = np.flatnonzero(np.concatenate(([True], changes)))
    total_ns = np.add.reduceat(lengths[order], first)
    longest: dict[int, tuple[int, int]] = {}
    for on, of, ns in zip(
        device[first].tolist(), stream[first].tolist(), total_ns.tolist(), strict=True
    ):
        if on not in longest or ns > longest[on][1]:
            longest[on] = (of, ns)
    return {on: of for on, (of, _) in longest.items()}


def _few(keys: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The keys, where there are more kinds than any loop has without device and stream."""
    if len(set(keys)) <= MAX_KINDS:
        return keys
    return [(source, ABSENT, ABSENT) for source, _, _ in keys]
