"""What the pictures of a run show: single steps, waits, sample times, tracks of a viewer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np

Doing = Literal[
    "compute", "communication", "copy", "input", "host", "other",  # the shares
    "sync",  # the host waits for the accelerator
    "fetch", "collate", "send", "pin",  # where batches are made
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSeries:
    """How long the training thread waited for each batch, in order (ms)."""

    source: Literal["plain windows", "trace"]
    waits_ms: tuple[float, ...]
    windows: tuple[int, ...]  # batches that are the first of a later window
    epochs: tuple[int, ...]  # batches that are the first of an epoch
    cycle: int  # batches after which waits repeat (num_workers); 0: not known, or no workers
    cycle_means_ms: tuple[tuple[int, float], ...]  # (first batch, mean) of whole cycles
    n_left_out: int

    @property
    def mean_ms(self) -> float:
        return fmean(self.waits_ms)

    def quantile_ms(self, q: float) -> float:
        """The wait that a part `q` (0…1) of the batches does not exceed."""
        return float(np.quantile(self.waits_ms, q))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTimes:
    """How long samples took to load, as a histogram (ms); `edges_ms` has one more entry."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]
    n: int
    logarithmic: bool
    median_ms: float
    p95_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """When one row does one thing, within the step: (start, length, part of it covered), ms.

    Covered is below 1 where spans too many to draw were joined.
    """

    doing: Doing
    spans: tuple[tuple[float, float, float], ...]

    @property
    def total_ms(self) -> float:
        """Time covered."""
        return sum(length * covered for _, length, covered in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """One thread, device or worker; its strips are disjoint."""

    name: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step of a trace."""

    which: Literal["typical", "slowest", "only"]
    number: int  # of the steps measured in the trace, from 1
    n_steps: int
    wall_ms: float
    rows: tuple[TimelineRow, ...]
    n_workers_left_out: int = 0
    axis_ms: float | None = None  # where its picture ends, next to a longer one; None: with it


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCopy:
    """A `__next__` of the training thread, and the H2D copy that moved what it returned."""

    next_us: float  # just within its start, before what nests in it
    copy_us: float  # its middle on the device
    copy_pid: str
    copy_tid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracks:
    """Microseconds on the file's clock (`ts`)."""

    # (start, duration): the training thread gets a batch, outside every `__next__` span
    outside_next: tuple[tuple[float, float], ...]
    exposed_waits: tuple[tuple[float, float], ...]  # (start, duration): the `input` share
    step_shares: tuple[tuple[float, Mapping[str, float | None]], ...]  # (start, shares) per step
    batch_copies: tuple[BatchCopy, ...]
    end_us: float | None
    training_pid: str | None
    training_tid: str | None
