"""Where the step goes: shares that sum to one by construction, and from when on one matters.

And what pictures of it show: single steps, waits, sample times, tracks of a viewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Literal

import numpy as np

Bound = Literal["input", "copy", "communication", "compute", "host", "outside", "unknown"]
VerdictSeverity = Literal["high", "moderate", "none", "uncertain"]

# A fifth of the step: worth acting on, and what the user should do first. A twentieth: the smallest
# share that stands out from the run-to-run noise of such loops (repeats of the 12 traced cases
# spread by 0.3-12 % of a step, median 3 %: `spread_ms` in traces/truth.json).
HIGH_SHARE = 0.20
MODERATE_SHARE = 0.05
# A share counts as shown where the lower end of its interval is as high, but for two points: nearer
# an ablation does not settle it. With the lower end above 0 alone, drift made up to one run in 35
# of a loop with 2 % input moderate (`benchmarks/false_alarms.py`, "raw").
SETTLED_TO_SHARE = 0.02
HIGH_MIN_LOW_SHARE = HIGH_SHARE - SETTLED_TO_SHARE
MODERATE_MIN_LOW_SHARE = MODERATE_SHARE - SETTLED_TO_SHARE


def shown_severity(share: float, low: float | None) -> Literal["high", "moderate", "uncertain"]:
    """Of a share of `MODERATE_SHARE` or more: what the lower end of its interval bears.

    None: a single trace, without an interval.
    """
    if share >= HIGH_SHARE and (low is None or low >= HIGH_MIN_LOW_SHARE):
        return "high"
    return "moderate" if low is None or low >= MODERATE_MIN_LOW_SHARE else "uncertain"


SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Of a recording, what lies between its ends and is in none of its steps' figures."""

    n_edge_steps: int = 0  # that could not be measured whole
    pause_ms: float = 0.0  # of a step that stood still, seen once; 0: there is none
    outside_ms: float = 0.0  # in no step though something was recorded: validation, saving

    def outside_share(self, steps_ms: float) -> float:
        """Of the recorded time, beside `steps_ms` of all steps: 0…1."""
        return self.outside_ms / (self.outside_ms + steps_ms) if self.outside_ms else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Each instant of the window in exactly one share; None = not applicable or not recorded.

    Raises ValueError when built with a negative share or a sum other than 1: a wrong one
    cannot exist.
    """

    compute: float | None
    communication: float | None
    copy: float | None
    input: float | None
    host: float | None
    other: float | None

    def __post_init__(self) -> None:
        present = [v for v in self.as_dict().values() if v is not None]
        if any(not (-SUM_TOLERANCE <= v <= 1 + SUM_TOLERANCE) for v in present):
            raise ValueError(f"share outside 0..1: {self.as_dict()}")
        total = math.fsum(present)
        if abs(total - 1.0) > SUM_TOLERANCE:
            raise ValueError(f"shares sum to {total!r}, not 1: {self.as_dict()}")

    def as_dict(self) -> dict[str, float | None]:
        """By name, in the order of the identity."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in fields(Shares))
NO_SHARES = Shares(
    compute=None, communication=None, copy=None, input=None, host=None, other=1.0
)  # none is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Time per step that overlapped with busier work: reported next to the shares, never inside."""

    input_ms: float | None
    copy_ms: float | None


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
