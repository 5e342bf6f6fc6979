"""The full trace for the Perfetto UI: the profiler's own events, and tracks of ours.

The profiler's events stay as they are, but for the row of those that Perfetto would drop
(`crossing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loaderdoctor.report.files import atomic_writer
from loaderdoctor.report.traces.crossing import without_crossing
from loaderdoctor.report.traces.raw_trace import gzip_writer, read_raw, write_raw, written_of
from loaderdoctor.trace.source import OnShare

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
    source: Path,
    target: Path,
    *,
    tracks: Sequence[Mapping[str, Any]] = (),
    exposed_waits: Sequence[tuple[float, float]] = (),
    step_shares: Sequence[StepShares] = (),
    copies: Sequence[Arrow] = (),
    end_us: float | None = None,
    on_share: OnShare | None = None,
) -> int:
    """Write `source` with our tracks to `target` (.json.gz); the number of events written.

    `tracks` are complete trace events (of workers); `exposed_waits` are (start, duration) in
    microseconds on the file's clock, disjoint: times the accelerator idled for the loader.
    `copies` lead from each `__next__` to the H2D copy of its batch. `end_us` ends the last step's
    share counter. Raises TraceError for the source.
    """
    raw = read_raw(source)
    events: list[msgspec.Raw | bytes] = [*raw.events]
    events += map(msgspec.json.encode, tracks)
    events += map(msgspec.json.encode, own_tracks(exposed_waits, step_shares, end_us))
    events += map(msgspec.json.encode, arrows(copies))
    with atomic_writer(target) as out, gzip_writer(out) as packed:
        told = written_of(len(events), on_share)
        return write_raw(packed, raw.metadata, without_crossing(events), on_written=told)


def own_tracks(
    exposed_waits: Sequence[tuple[float, float]],
    step_shares: Sequence[StepShares],
    end_us: float | None,
) -> list[dict[str, Any]]:
    """The events of our own process in the trace: one wait track, one counter of the shares."""
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


def arrows(copies: Sequence[Arrow]) -> Iterator[dict[str, Any]]:
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
