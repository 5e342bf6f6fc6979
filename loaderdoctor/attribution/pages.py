"""Page faults of plain windows against those with ready batches -> what mapping batches costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loaderdoctor.facts.loop import PageFacts
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.units import NS_PER_MS


def page_facts(rounds: Sequence[tuple[WindowDone, WindowDone]]) -> PageFacts | None:
    """Of (plain, no_input) windows, round by round, while memory allocators may change their ways.

    None where faults were not counted or no batch was probed.
    """
    probed = [w.pages for pair in rounds for w in pair if w.pages is not None]
    counted = [(_faults(plain), _faults(ready)) for plain, ready in rounds]
    known = [(a, b) for a, b in counted if a is not None and b is not None]
    if not probed or not known:
        return None
    pages = max(probed, key=lambda x: x.n_batches)  # each record covers those before it
    return PageFacts(
        batch_bytes=pages.n_bytes,
        faults_per_batch=pages.n_faults,
        touch_ms=pages.touch_ns / NS_PER_MS,
        release_ms=pages.release_ns / NS_PER_MS,
        faults_per_step=median(a for a, _ in known),
        extra_faults_per_step=median(a - b for a, b in known),
    )


def synthetic_faults(windows: Sequence[WindowDone]) -> float | None:
    """The fewest of these no_input windows, a step; None where they were not counted."""
    return min((n for w in windows if (n := _faults(w)) is not None), default=None)


def _faults(window: WindowDone) -> float | None:
    """Minor faults of the training thread, a step; None where they were not counted."""
    faults = window.cpu.thread_faults if window.cpu is not None else None
    return faults / window.n_steps if faults is not None and window.n_steps else None
