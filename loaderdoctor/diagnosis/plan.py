"""How many steps each window gets, from the step time found and the seconds there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.units import NS_PER_S

# A window this long averages over scheduler and page-cache hiccups of some milliseconds: on two
# shared cores, window means of 0.5 s windows of a 10 ms step spread by about 2 %.
WINDOW_S = 1.0
MIN_WINDOW_S = 0.25
# Within the whole budget there must be room for three rounds of three windows, each with as much
# again for drop and warm-up, beside profile and verification: about 40 window lengths.
WINDOWS_PER_BUDGET = 40
MIN_STEPS = 4
MAX_STEPS = 1000
# The profiled window needs a whole worker cycle and enough steps for means; more only costs
# export time (about 1 s per 100,000 events) and tells nothing new.
MIN_PROFILED_STEPS = 8
MAX_PROFILED_STEPS = 40
PROFILED_S = 1.0
# Slow steps are profiled fewer at a time, where they would take more than this of the budget.
MAX_PROFILED_SHARE = 0.25
# Epochs of up to this many windows' length are measured whole, so that each window holds its share
# of boundaries. Longer ones would leave time for one or two rounds, which decide nothing: epochs of
# 2.5 s got one round in 45 s. What a boundary costs is told apart from the steps in any case.
WHOLE_EPOCH_WINDOWS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Steps per window, and the time one step takes (seconds)."""

    step_s: float
    n_steps: int
    n_profiled_steps: int
    cycle: int  # batches after which the loader's waits repeat

    @property
    def window_s(self) -> float:
        """Expected length of one window's measured part."""
        return self.step_s * self.n_steps


def step_seconds(step_ns: Sequence[int], cycle: int) -> float:
    """Mean of the last whole worker cycles of the warm-up: waits repeat with the cycle.

    Raises ValueError on no steps.
    """
    if not step_ns:
        raise ValueError("no steps were observed")
    whole = len(step_ns) // cycle * cycle if cycle <= len(step_ns) else len(step_ns)
    return fmean(step_ns[-whole:]) / NS_PER_S


def sizes(observed: Observed, *, budget_s: float) -> Sizes:
    """Window sizes for this loop: whole cycles, whole epochs where epochs are short."""
    cycle = max(1, observed.batches_per_cycle)
    step_s = max(step_seconds(observed.step_ns, cycle), 1e-6)
    window_s = min(WINDOW_S, max(MIN_WINDOW_S, budget_s / WINDOWS_PER_BUDGET))
    n_steps = _whole(window_s / step_s, cycle, low=MIN_STEPS, high=MAX_STEPS)
    fewest = MIN_PROFILED_STEPS
    if fewest * step_s > MAX_PROFILED_SHARE * budget_s:
        fewest = MIN_STEPS + 1
    n_profiled = _whole(PROFILED_S / step_s, cycle, low=fewest, high=MAX_PROFILED_STEPS)
    epoch = observed.steps_per_epoch
    if epoch and epoch * step_s <= WHOLE_EPOCH_WINDOWS * window_s:
        n_steps = _whole(n_steps, epoch, low=epoch, high=max(epoch, MAX_STEPS))
        if epoch <= MAX_PROFILED_STEPS // 2:
            # Two boundaries at least, so that worker start-up shows in the trace.
            n_profiled = _whole(n_profiled, epoch, low=2 * epoch, high=MAX_PROFILED_STEPS)
    return Sizes(step_s=step_s, n_steps=n_steps, n_profiled_steps=n_profiled, cycle=cycle)


def _whole(steps: float, unit: int, *, low: int, high: int) -> int:
    """`steps` within low..high, then up to a whole number of `unit`s."""
    wanted = min(high, max(low, math.ceil(steps)))
    return math.ceil(wanted / unit) * unit
