"""One recorded trace -> the two files people open: whole for Perfetto, dialect for TensorBoard."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loaderdoctor.facts.step import BatchCopy, Tracks
from loaderdoctor.report import RunFolder, atomic_writer
from loaderdoctor.report.traces.raw_trace import (
    gzip_writer,
    read_raw,
    row_id,
    without_crossing,
    write_raw,
    written_of,
)
from loaderdoctor.report.traces.tensorboard import Wait, write_plugin_trace
from loaderdoctor.trace.source import OnShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What we add to a recorded trace, on the file's clock (microseconds)."""

    worker_tracks: Sequence[Mapping[str, Any]] = ()  # worker and pin-thread spans, complete events
    waits_outside_next: Sequence[Wait] = ()
    exposed_waits: Sequence[tuple[float, float]] = ()  # (start, duration) of idling for the loader
    step_shares: Sequence[StepShares] = ()
    copies: Sequence[Arrow] = ()  # from each `__next__` to the H2D copy of its batch
    end_us: float | None = None  # of the last step's share counter

    @staticmethod
    def of(tracks: Tracks, worker_tracks: Sequence[Mapping[str, Any]] = ()) -> Overlay:
        """The tracks of a divided trace, and those of workers where they were recorded."""
        waits: tuple[Wait, ...] = ()
        copies: tuple[Arrow, ...] = ()
        if tracks.training_pid is not None and tracks.training_tid is not None:
            pid, tid = row_id(tracks.training_pid), row_id(tracks.training_tid)
            if pid is not None and tid is not None:
                waits = tuple((at, length, pid, tid) for at, length in tracks.outside_next)
                copies = tuple(_copy_arrows(pid, tid, tracks.batch_copies))
        return Overlay(
            worker_tracks=worker_tracks,
            waits_outside_next=waits,
            exposed_waits=tracks.exposed_waits,
            copies=copies,
            step_shares=tuple(StepShares(at_us=at, shares=x) for at, x in tracks.step_shares),
            end_us=tracks.end_us,
        )


def write_capture(
    folder: RunFolder,
    run: str,
    source: Path,
    *,
    at_ns: int,
    overlay: Overlay | None = None,
    rank: int | None = None,
    on_share: OnShare | None = None,
) -> Path:
    """Both files of one capture in the run folder; the plugin's is returned.

    `run` is the capture's name in TensorBoard, `at_ns` when it was taken, since the epoch. Captures
    of several ranks share a run, where the plugin shows them side by side. `on_share` is told how
    much is written (0…1).
    Raises TraceError where `source` is not a trace, RunError where a file can't be written.
    """
    added = overlay or Overlay()
    full = folder.perfetto_trace(run if rank is None else f"rank-{rank}")
    write_perfetto_trace(source, full, added, on_share=_half(on_share, 0.0))
    target = folder.plugin_trace(run, worker=worker_name(rank or 0), at_ns=at_ns)
    write_plugin_trace(
        source,
        target,
        extra_waits=added.waits_outside_next,
        tracks=added.worker_tracks,
        on_share=_half(on_share, 0.5),
    )
    return target


def worker_name(rank: int = 0) -> str:
    """The plugin groups workers of a name `<host>_<number>` by host."""
    return f"{platform.node()}_{rank}"


def _half(on_share: OnShare | None, begin: float) -> OnShare | None:
    """Tells of one of two files as a part of both."""
    return None if on_share is None else lambda share: on_share(begin + share / 2)


def _copy_arrows(pid: int, tid: int, copies: Sequence[BatchCopy]) -> Iterator[Arrow]:
    for one in copies:
        to_pid, to_tid = row_id(one.copy_pid), row_id(one.copy_tid)
        if to_pid is not None and to_tid is not None:
            yield Arrow(
                from_pid=pid, from_tid=tid, from_us=one.next_us,
                to_pid=to_pid, to_tid=to_tid, to_us=one.copy_us,
            )  # fmt: skip


# The full trace for the Perfetto UI: the profiler's own events, and tracks of ours.
#
# The profiler's events stay as they are, but for the row of those that Perfetto would drop
# (`without_crossing`).

# A process of its own for our tracks: above any pid Linux gives out (PID_MAX_LIMIT is 2**22), so
# that it meets neither a process nor a device of the trace, and below the ids Perfetto reserves.
TRACK_PID = 2**22 + 1
CATEGORY = "loaderdoctor"
# Ids of the arrows to copies: apart from torch's own (small numbers) and from those of our tracks.
FIRST_ARROW = 1 << 41
_WAIT_TID = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """How one step divides: `at_us` when it begins, on the file's clock; shares by name, 0…1."""

    at_us: float
    shares: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """From a span to another, each named by its row and an instant within it (file's clock)."""

    from_pid: int
    from_tid: int
    from_us: float
    to_pid: int
    to_tid: int
    to_us: float


def write_perfetto_trace(
    source: Path, target: Path, overlay: Overlay | None = None, *, on_share: OnShare | None = None
) -> int:
    """Write `source` with our tracks to `target` (.json.gz); the number of events written.

    Raises TraceError for the source.
    """
    raw, added = read_raw(source), overlay or Overlay()
    own = (*added.worker_tracks, *_own_tracks(added), *_arrows(added.copies))
    events: list[msgspec.Raw | bytes] = [*raw.events, *map(msgspec.json.encode, own)]
    with atomic_writer(target) as out, gzip_writer(out) as packed:
        told = written_of(len(events), on_share)
        return write_raw(packed, raw.metadata, without_crossing(events), on_written=told)


def _own_tracks(added: Overlay) -> list[dict[str, Any]]:
    """The events of our own process in the trace: one wait track, one counter of the shares."""
    exposed_waits, step_shares, end_us = added.exposed_waits, added.step_shares, added.end_us
    if not exposed_waits and not step_shares:
        return []
    tracks: list[dict[str, Any]] = [
        _named("process_name", 0, name="loaderdoctor"),
        _named("process_sort_index", 0, sort_index=-1),
    ]
    if exposed_waits:
        tracks.append(_named("thread_name", _WAIT_TID, name="waiting for the loader, exposed"))
    tracks += [
        {
            "ph": "X", "cat": CATEGORY, "name": "exposed wait", "pid": TRACK_PID, "tid": _WAIT_TID,
            "ts": round(start, 3), "dur": round(duration, 3),
        }
        for start, duration in exposed_waits
    ]  # fmt: skip
    tracks += [_counter(step.at_us, step.shares) for step in step_shares]
    if step_shares and end_us is not None:
        recorded = {
            name for step in step_shares for name, x in step.shares.items() if x is not None
        }
        tracks.append(_counter(end_us, dict.fromkeys(sorted(recorded), 0.0)))
    return tracks


def _arrows(copies: Sequence[Arrow]) -> Iterator[dict[str, Any]]:
    """Flow events, tail and head of each; Perfetto binds an end to the span that last began."""
    for number, arrow in enumerate(copies):
        common = {"name": "copy of the batch", "cat": CATEGORY, "id": FIRST_ARROW + number}
        yield {
            **common, "ph": "s", "pid": arrow.from_pid, "tid": arrow.from_tid,
            "ts": round(arrow.from_us, 3),
        }  # fmt: skip
        yield {
            **common, "ph": "f", "bp": "e", "pid": arrow.to_pid, "tid": arrow.to_tid,
            "ts": round(arrow.to_us, 3),
        }  # fmt: skip


def _named(what: str, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": TRACK_PID, "tid": tid, "args": args}


def _counter(at_us: float, shares: Mapping[str, float | None]) -> dict[str, Any]:
    """A point of the stacked counter, in percent; a share that was not recorded is left out."""
    values = {name: round(100 * share, 2) for name, share in shares.items() if share is not None}
    return {
        "ph": "C", "cat": CATEGORY, "name": "step shares (%)", "pid": TRACK_PID, "tid": 0,
        "ts": round(at_us, 3), "args": values,
    }  # fmt: skip
