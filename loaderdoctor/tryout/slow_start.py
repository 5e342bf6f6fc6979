"""A loop whose first steps are slower than those that follow: what to say of it, and why it is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from loaderdoctor import format as fmt
from loaderdoctor.attribution.step import waited_ms, window_times
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.tryout.ablating import LoopEvidence

# Page faults a step from which memory that is given back and fetched anew counts: a fault costs
# some 2.5 µs (1,600 a step took 4 ms on recipe mnist; none with glibc's trimming switched off).
MANY_FAULTS = 100
FEWER = 4.0  # fallen by this factor: no longer each step's


def slow_start(evidence: LoopEvidence) -> str | None:
    """What to say where the first plain windows of a diagnosis are slower than all later ones.

    None where they are not (see `attribution.step`).
    """
    earlier, steady = evidence.earlier, evidence.steady
    if not earlier:
        return None
    first_ms, later_ms = (
        fmean(window_times(window).within_ms for window in windows) for windows in (earlier, steady)
    )
    left_out = sum(window.n_steps for window in earlier)
    return (
        f"the loop took {fmt.number(first_ms)} ms a step at first "
        f"({fmt.count(left_out, 'step')} in {fmt.count(len(earlier), 'window')}) and "
        f"{fmt.number(later_ms)} from then on; all figures of the step are of the later pace, "
        f"which the rest of the training has{memory_anew(earlier[0], steady)}"
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


def _faults(window: WindowDone) -> float | None:
    """Page faults of the training thread, a step."""
    faults = window.cpu.thread_faults if window.cpu is not None else None
    return faults / window.n_steps if faults is not None else None
