"""A loop whose first steps are slower than those that follow: whether, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from loaderdoctor.attribution.step import NS_PER_MS, usable, window_times
from loaderdoctor.diagnosis.gather import MIN_ROUNDS, Evidence
from loaderdoctor.estimate import t95
from loaderdoctor.instrument.protocol import WindowDone
from loaderdoctor.report import format as fmt

SLOW_START = "slow-start"
# More than this is told: several times the noise of window means (about 2 %).
UNLIKE_SHARE = 0.15
# Page faults a step from which memory that is given back and fetched anew counts: a fault costs
# some 2.5 µs (1,600 a step took 4 ms on recipe mnist; none with glibc's trimming switched off).
MANY_FAULTS = 100
FEWER = 4.0  # fallen by this factor: no longer each step's


def slow_start(evidence: Evidence) -> str | None:
    """What to say where the first plain window of a diagnosis is unlike those of its rounds.

    None where it is like them, where other programs had the CPU, or with too few rounds to tell.
    """
    later = [r.plain for r in evidence.rounds if usable(r.plain)]
    if not evidence.plain or not usable(evidence.plain[0]) or len(later) < MIN_ROUNDS:
        return None
    first, n = evidence.plain[0], len(later)
    first_ms, later_ms = (
        window_times(first).within_ms,
        [window_times(window).within_ms for window in later],
    )
    middle_ms = fmean(later_ms)
    # One more window of the same kind lies within this of their mean, in 95 of 100 cases.
    noise_ms = t95(n - 1) * stdev(later_ms) * math.sqrt(1 + 1 / n)
    waited = [ms for window in later if (ms := waited_ms(window)) is not None]
    first_waited = waited_ms(first)
    excess_ms = first_ms - middle_ms
    if waited and first_waited is not None:
        excess_ms -= max(0.0, first_waited - fmean(waited))
    if excess_ms <= max(noise_ms, UNLIKE_SHARE * middle_ms):
        return None
    return (
        f"the loop took {fmt.number(first_ms)} ms a step at first and {fmt.number(middle_ms)} in "
        "the rounds of the comparison; the step time above is of both, and what was tried was "
        f"tried at the later pace{memory_anew(first, later)}"
    )


def memory_anew(first: WindowDone, later: Sequence[WindowDone]) -> str:
    """That the allocator fetched memory anew in each step, where page faults show it; else ""."""
    before = _faults(first)
    # Validation between steps needs memory of its own: the window without any has the fewest.
    known = [faults for window in later if (faults := _faults(window)) is not None]
    if before is None or not known or before < max(MANY_FAULTS, FEWER * min(known)):
        return ""
    return (
        ". Until something larger was freed (by a first validation, say) each step gave memory "
        f"back to the system and fetched it anew: {before:,.0f} page faults a step at first, "
        f"{min(known):,.0f} later. With MALLOC_TRIM_THRESHOLD_=1000000000 and "
        "MALLOC_MMAP_THRESHOLD_=33554432 in its environment the script keeps it from the start"
    )


def waited_more_ms(first: WindowDone, later: WindowDone) -> float:
    """How much longer a step of the first window stood ready without a CPU; 0 where not told."""
    told = waited_ms(first), waited_ms(later)
    return max(0.0, told[0] - told[1]) if told[0] is not None and told[1] is not None else 0.0


def waited_ms(window: WindowDone) -> float | None:
    """How long the training thread stood ready without a CPU, a step."""
    waited_ns = window.cpu.thread_waited_ns if window.cpu is not None else None
    return waited_ns / window.n_steps / NS_PER_MS if waited_ns is not None else None


def _faults(window: WindowDone) -> float | None:
    """Page faults of the training thread, a step."""
    faults = window.cpu.thread_faults if window.cpu is not None else None
    return faults / window.n_steps if faults is not None else None
