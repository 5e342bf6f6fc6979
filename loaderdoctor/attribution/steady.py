"""Which plain windows were measured before the loop settled at the pace it then kept.

Figures of two paces have no common mean, and an interval over both is of neither. What remains of
the training runs at the later one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from loaderdoctor.attribution.step import usable, window_times
from loaderdoctor.estimate import t95
from loaderdoctor.facts.loop import UNLIKE_SHARE
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.units import NS_PER_MS

MIN_LATER = 3  # the fewest windows whose spread says what one more would have been


def before_steady(windows: Sequence[WindowDone]) -> list[WindowDone]:
    """The first windows of these, in time, where each of them is slower than all that follow.

    Slower by `UNLIKE_SHARE` and by more than one further window of the later ones would differ,
    without the time that other programs had the CPU. Empty where there is no such change, or where
    too few windows follow. Where there are several such changes, those before the last.
    """
    known = sorted((w for w in windows if usable(w)), key=lambda w: w.start_ns)
    for n in range(len(known) - MIN_LATER, 0, -1):
        first, later = known[:n], known[n:]
        limit_ms = _limit_ms(later)
        if all(excess_ms(window, later) > limit_ms for window in first):
            return first
    return []


def excess_ms(window: WindowDone, later: Sequence[WindowDone]) -> float:
    """How much longer its step took than theirs, but for waiting longer for a CPU."""
    excess = window_times(window).within_ms - fmean(window_times(w).within_ms for w in later)
    waited = [ms for w in later if (ms := waited_ms(w)) is not None]
    own = waited_ms(window)
    return excess - max(0.0, own - fmean(waited)) if waited and own is not None else excess


def waited_ms(window: WindowDone) -> float | None:
    """How long the training thread stood ready without a CPU, a step."""
    waited_ns = window.cpu.thread_waited_ns if window.cpu is not None else None
    return waited_ns / window.n_steps / NS_PER_MS if waited_ns is not None else None


def _limit_ms(later: Sequence[WindowDone]) -> float:
    """How far one more window may lie from their mean (95 of 100 do); `UNLIKE_SHARE` at least."""
    times, n = [window_times(w).within_ms for w in later], len(later)
    noise_ms = t95(n - 1) * stdev(times) * math.sqrt(1 + 1 / n)
    return max(noise_ms, UNLIKE_SHARE * fmean(times))
