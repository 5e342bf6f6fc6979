"""Steps of a running training, gathered into windows that can be compared.

A window is a whole number of worker cycles, long enough for single slow steps not to decide; it is
one sample of the statistics, since steps within it are correlated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import NamedTuple

from loaderdoctor.estimate import MIN_GAIN_SHARE, Estimate, mean, t95
from loaderdoctor.settings import Settings

# A window lasts this long at least, and this many steps. Of 0.4 s, windows of one and the same
# setting differ by 1 to 3 % on a quiet machine with two cores (`tests/tuning/simulated.py` draws
# the same), which four of them tell a gain of 5 % from.
WINDOW_MS = 400.0
MIN_STEPS = 8
MAX_KEPT = 64
# A machine's pace drifts: what a trial costs is told from the best's last seconds.
PACE_WINDOWS = 10
# A loop that was done is watched on; longer steps and new waits by this much begin a new search.
SLOWER = 1.25
# Windows of one setting that differ by more (standard deviation) are of a machine that others use
# too: what a trial's steps take there can't be predicted. A choice: on quiet machines windows
# differ by 1 to 3 %, in the drifting runs that tests play by 10 and 20.
DRIFT_SHARE = 0.05
MIN_BOUNDARIES = 2  # the first opens workers that are kept


class Step(NamedTuple):
    """One step, from the batch before to this one; or `n` of a kind in a row, all together."""

    ms: float
    wait_ms: float  # of it, getting the batch
    serving: Settings  # complete: they made the batch
    settled: bool  # batches come from their pool, and from no other any more
    first: bool = False  # of an epoch: opening its iterator is in it
    n: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """Means over whole worker cycles."""

    step_ms: float
    wait_share: float
    n_steps: int


@dataclass(slots=True)
class Served:
    """What is known of some settings: of their last windows and epochs, MAX_KEPT of each."""

    windows: list[StepWindow] = field(default_factory=list)
    boundaries_ms: list[float] = field(default_factory=list)  # an epoch's first step, whole
    pace_ms: float | None = None  # mean step of the last PACE_WINDOWS, for each step's account

    def add(self, window: StepWindow) -> None:
        """Another window."""
        self.windows.append(window)
        del self.windows[:-MAX_KEPT]
        last = self.windows[-PACE_WINDOWS:]
        self.pace_ms = math.fsum(x.step_ms for x in last) / len(last)

    def lately(self, last: int) -> Served:
        """Its `last` windows alone."""
        made = Served()
        for window in self.windows[-last:]:
            made.add(window)
        return made

    def add_boundary(self, ms: float) -> None:
        """Another epoch's first step."""
        self.boundaries_ms.append(ms)
        del self.boundaries_ms[:-MAX_KEPT]

    def step_ms(self, last: int | None = None) -> Estimate | None:
        """Mean step of its windows (its `last` ones), with its interval; None before the first."""
        chosen = self.windows if last is None else self.windows[-last:]
        return mean([window.step_ms for window in chosen]) if chosen else None

    def wait_share(self, last: int) -> float:
        """Share of the step that is spent getting the batch, in its `last` windows."""
        chosen = self.windows[-last:]
        return math.fsum(window.wait_share for window in chosen) / max(1, len(chosen))

    @property
    def drifts(self) -> bool:
        """Whether its last PACE_WINDOWS differ by more than they do on a quiet machine."""
        paces = [window.step_ms for window in self.windows[-PACE_WINDOWS:]]
        return len(paces) > 1 and stdev(paces) > DRIFT_SHARE * fmean(paces)

    @property
    def boundary_ms(self) -> float | None:
        """An epoch's first step, mean; None where none was seen."""
        seen = self.boundaries_ms
        return math.fsum(seen) / len(seen) if seen else None


class Gathering:
    """Steps of one setting on their way to a window."""

    def __init__(self, settings: Settings, skip: int) -> None:
        """`skip`: steps that still come from queues that filled up while nobody took from them."""
        self._cycle = max(1, settings.num_workers or 0)
        self._skip = skip
        self._ms = self._wait_ms = 0.0
        self._n = 0

    @property
    def n_lacking(self) -> int:
        """Steps that can be told of together: no window is complete before.

        No more than are gathered: these may be the fast ones, from a queue that was full.
        """
        if self._skip > 0:
            return self._skip
        n, whole = self._n, MIN_STEPS
        if n:
            whole = max(whole, math.ceil(WINDOW_MS * n / max(self._ms, 1e-3)))
        lacking = max(1, -(-whole // self._cycle) * self._cycle - n)
        return min(lacking, n) if n else lacking

    def add(self, step: Step) -> StepWindow | None:
        """Count a step, or several; the window that it completes."""
        if self._skip > 0:
            self._skip -= step.n
            return None
        if step.first:
            return None  # told apart: it is one of many
        self._ms += step.ms
        self._wait_ms += step.wait_ms
        self._n += step.n
        if self._ms < WINDOW_MS or self._n < MIN_STEPS or self._n % self._cycle:
            return None
        made = StepWindow(
            step_ms=self._ms / self._n,
            wait_share=min(1.0, self._wait_ms / self._ms),
            n_steps=self._n,
        )
        self._ms = self._wait_ms = 0.0
        self._n = 0
        return made


def queued(settings: Settings) -> int:
    """Steps until queues are as in a long run: twice what workers hold, and the pin queue."""
    return 2 * settings.queue_length + (settings.queue_length if settings.pin_memory else 0)


def gained(before: Served, now: Served, last: int) -> Estimate:
    """How much shorter steps are now than with `before` (its `last` windows), ms.

    The noise is taken to be the same share of either's step: two windows of a trial say little of
    it, those of the loop's own more. Raises ValueError where there are no windows of one.
    """
    sides = [[window.step_ms for window in served.windows[-last:]] for served in (before, now)]
    means = [math.fsum(side) / len(side) for side in sides if side]
    if len(means) < 2:
        raise ValueError("no windows")
    value, n = means[0] - means[1], sum(map(len, sides))
    if n == 2:
        return Estimate.around(value, math.inf, n=n)
    squares = ((x / at - 1) ** 2 for side, at in zip(sides, means, strict=True) for x in side)
    share = math.sqrt(math.fsum(squares) / (n - 2))
    spread = math.hypot(*(at / math.sqrt(len(x)) for x, at in zip(sides, means, strict=True)))
    return Estimate.around(value, t95(n - 2) * share * spread, n=n)


def undecided(now: Served, was: Served) -> bool:
    """Whether a trial that was given up seemed faster, or had no windows to tell it by.

    Noise, or what opening its workers took, has decided then, and it is made once more beside other
    windows of the best: of 96 simulated runs that pinning makes 15 % faster on a machine whose pace
    drifts by 10 and 20 %, 80 end within 5 % of the best in place of 73 (docs/run.md).
    """
    now_ms, was_ms = now.step_ms(), was.step_ms(PACE_WINDOWS)
    if now_ms is None or was_ms is None or len(now.windows) < 2:
        return True
    return now_ms.value < (1 - MIN_GAIN_SHARE) * was_ms.value


def saves_boundaries(now: Served, before: Served) -> bool:
    """Whether epochs begin sooner now, workers being kept, and steps are no longer for it."""
    if len(now.boundaries_ms) < MIN_BOUNDARIES or before.boundary_ms is None:
        return False
    steps, were = now.step_ms(), before.step_ms()
    if steps is None or were is None:
        return False
    longer = steps.value - were.value > math.hypot(steps.margin, were.margin)
    return not longer and max(now.boundaries_ms[1:]) < before.boundary_ms


def became_slower(served: Served, last: int) -> bool:
    """Whether its `last` windows are longer than those before, beyond the noise."""
    recent, before = served.step_ms(last), Served(windows=served.windows[:-last]).step_ms()
    if recent is None or before is None:
        return False
    return recent.value >= SLOWER * before.value and recent.low > before.high


def is_slower(served: Served, last: int) -> bool:
    """Whether its newest window is longer than those before its `last`, be it noise."""
    before = Served(windows=served.windows[:-last]).step_ms()
    return before is not None and served.windows[-1].step_ms >= SLOWER * before.value
