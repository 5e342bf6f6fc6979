"""`--loader-only`: what the loader can deliver over its workers, beside what the model can take.

The loader's rate at n workers is that of the loop with n workers where it waits, so it is measured
with the loop's work left out; see `sweep.ceilings`.
"""

from __future__ import annotations

from loaderdoctor.sweep.presets.model import Preset, Row, rows_of

COUNTS = tuple(range(0, 51, 5))


def name(workers: int) -> str:
    """`10 workers`."""
    return f"{workers} workers"


LOADER_ONLY = Preset(
    name="loader-only",
    summary="Samples/s of the loader alone over 0, 5, … 50 workers, and of the model alone.",
    recipe="mnist",
    baseline=name(0),
    rows=rows_of(*(Row(name=name(n), settings={"num_workers": n}) for n in COUNTS)),
    budget_s=180.0,
)
