"""Workers that only just keep up: how little it takes until the loop waits for them."""

from __future__ import annotations

from loaderdoctor.facts.loop import AblationFacts, StepFacts
from loaderdoctor.facts.workers import EdgeFacts, WorkerFacts

# Busy for this part of their time: a step a tenth shorter, and they fall behind. Steps and batches
# vary by some percent, so that even now a slow one is waited for at times.
EDGE_BUSY_SHARE = 0.9
# A wait of this part of the step is long; receiving a batch takes less.
LONG_WAIT_SHARE = 0.1


def edge_facts(
    step: StepFacts | None, workers: WorkerFacts | None, ablation: AblationFacts | None
) -> EdgeFacts | None:
    """None where the workers have time to spare, or that was not recorded.

    Busy is what does not wait for an index; where that was not recorded, a batch over what the
    workers that make any have for it: a step without its loader.
    """
    rest = ablation.no_input_ms if ablation is not None else None
    if step is None or workers is None or rest is None or rest.value <= 0.0:
        return None
    n = workers.n_workers - workers.n_idle_workers
    if n < 1 or not workers.n_batches:
        return None
    supply_ms = workers.batch_ms / n
    idle = workers.idle_share
    busy_share = min(1.0, supply_ms / rest.value) if idle is None else 1.0 - idle
    if busy_share < EDGE_BUSY_SHARE:
        return None
    long = [ms for ms in step.waits_ms if ms > LONG_WAIT_SHARE * step.wall_ms.value]
    return EdgeFacts(
        n_workers=n,
        busy_share=busy_share,
        supply_ms=supply_ms,
        rest_ms=rest.value,
        n_waits=len(step.waits_ms),
        n_long_waits=len(long),
        longest_wait_ms=max(long, default=None),
    )
