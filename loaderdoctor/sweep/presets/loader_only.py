"""`--loader-only`: what the loader can deliver over its workers, beside what the model can take.

The loop stands still while its loader is drained; the model runs on batches that are ready.
"""

from __future__ import annotations

from loaderdoctor.sweep.presets.model import Preset, rows_of
from loaderdoctor.tryout.trials import Row

COUNTS = tuple(range(0, 51, 5))


LOADER, MODEL = "the loader alone", "the model alone"


def name(workers: int) -> str:
    """`10 workers`."""
    return f"{workers} workers"


LOADER_ONLY = Preset(
    name="loader-only",
    summary="Samples/s of the loader alone over 0, 5, … 50 workers, and of the model alone.",
    recipe="mnist",
    baseline=name(0),
    rows=rows_of(
        *(
            Row(
                name=name(n),
                # Workers started anew each epoch would be another question.
                settings={"num_workers": n, "persistent_workers": n > 0},
                group=LOADER,
            )
            for n in COUNTS
        ),
        Row(name=MODEL, settings={"synthetic": True}, group=MODEL, base=MODEL),
    ),
    budget_s=240.0,
    one_loop=False,
)
