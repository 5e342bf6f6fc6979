"""One recorded trace -> the two files people open: whole for Perfetto, dialect for TensorBoard."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loaderdoctor.facts.pictures import BatchCopy, Tracks
from loaderdoctor.report.files import RunFolder
from loaderdoctor.report.traces.perfetto import Arrow, StepShares, write_perfetto_trace
from loaderdoctor.report.traces.tensorboard import Wait, write_plugin_trace
from loaderdoctor.trace.source import OnShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What we add to a recorded trace, on the file's clock (microseconds)."""

    worker_tracks: Sequence[Mapping[str, Any]] = ()  # worker and pin-thread spans, complete events
    waits_outside_next: Sequence[Wait] = ()
    exposed_waits: Sequence[tuple[float, float]] = ()
    step_shares: Sequence[StepShares] = ()
    copies: Sequence[Arrow] = ()
    end_us: float | None = None

    @staticmethod
    def of(tracks: Tracks, worker_tracks: Sequence[Mapping[str, Any]] = ()) -> Overlay:
        """The tracks of a divided trace, and those of workers where they were recorded."""
        waits: tuple[Wait, ...] = ()
        copies: tuple[Arrow, ...] = ()
        if tracks.training_pid is not None and tracks.training_tid is not None:
            pid, tid = _number(tracks.training_pid), _number(tracks.training_tid)
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
    write_perfetto_trace(
        source,
        folder.perfetto_trace(run if rank is None else f"rank-{rank}"),
        tracks=added.worker_tracks,
        exposed_waits=added.exposed_waits,
        step_shares=added.step_shares,
        copies=added.copies,
        end_us=added.end_us,
        on_share=_half(on_share, 0.0),
    )
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
        to_pid, to_tid = _number(one.copy_pid), _number(one.copy_tid)
        if to_pid is not None and to_tid is not None:
            yield Arrow(
                from_pid=pid, from_tid=tid, from_us=one.next_us,
                to_pid=to_pid, to_tid=to_tid, to_us=one.copy_us,
            )  # fmt: skip


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None
