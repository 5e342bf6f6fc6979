"""What the input cost is made of: each cause's part, as far as it is established.

Making batches, starting workers, mapping batches into memory, and what is left then: a fight over
the CPU or the interpreter.
"""

from __future__ import annotations

from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import batch_ms, pool_falls_short_ms
from loaderdoctor.findings.exposure import Cost, input_cost, num_workers

# A loader whose removal gains twice what the loop ever waited for it costs by other means.
MAX_WAIT_PART = 0.5


def making_cost(facts: Facts) -> Cost | None:
    """The part of the established input cost that making batches explains; None where none is.

    Without workers that is the batch itself; with a pool what it falls short by. The rest of the
    cost (start-up, stalls behind a slow batch, the sampler) no faster dataset would save.
    """
    cost = input_cost(facts)
    if cost is None:
        return None
    makes_itself = num_workers(facts) == 0
    explained_ms = batch_ms(facts) if makes_itself else pool_falls_short_ms(facts)
    return cost.part(explained_ms) if explained_ms else None


def startup_ms_per_step(facts: Facts) -> float | None:
    """The loader's part of one epoch boundary of a run, spread over an epoch's steps.

    None where no boundary was measured.
    """
    boundary_ms = boundary_of_loader_ms(facts)
    if facts.step is None or boundary_ms is None or not facts.step.steps_per_epoch:
        return None
    return boundary_ms / facts.step.steps_per_epoch


def boundary_of_loader_ms(facts: Facts) -> float | None:
    """What of one epoch boundary the loader takes; all of it where that was not told apart."""
    step = facts.step
    if step is None or step.loader_boundary_ms is None:
        return step.boundary_ms if step is not None else None
    return step.loader_boundary_ms


def cost_beyond_wait(facts: Facts) -> Cost | None:
    """What the loader costs by ablation beyond the loop's wait for it; None if not established."""
    part, seen_ms = _beyond_wait(facts), _seen_ms(facts)
    ablation = facts.ablation
    if part is None or seen_ms is None or ablation is None or ablation.input_ms is None:
        return None
    return part if ablation.input_ms.low > seen_ms else None


def mapping_cost(facts: Facts) -> Cost | None:
    """What mapping batches and freeing them costs the step; None where it is none to speak of.

    Counted and timed by itself, so that of the ablation only an established input cost is needed,
    most of it beyond the loop's wait; it is never more than that.
    """
    part, mapped_ms = _beyond_wait(facts), mapping_ms(facts)
    if part is None or not mapped_ms:
        return None
    part = part.part(mapped_ms)
    return part if part.share >= MODERATE_SHARE else None


def unmapped_cost(facts: Facts) -> Cost | None:
    """The established input cost without mapping its batches; None where nothing of note is left.

    Only what lies beyond the loop's wait can be mapping: what it waits for, it waits for.
    """
    cost, mapped = input_cost(facts), mapping_cost(facts)
    if cost is None or mapped is None:
        return cost
    part = cost.part(cost.ms - mapped.ms)
    return part if part.share >= MODERATE_SHARE else None


def contention_cost(facts: Facts) -> Cost | None:
    """What the loader costs beyond the loop's wait and beyond mapping its batches: a fight.

    None where it is not established, or the smaller part: then the noise of the figures it is
    the difference of is as large.
    """
    extra, mapped_ms = cost_beyond_wait(facts), mapping_ms(facts)
    if extra is None or not mapped_ms:
        return extra
    part = extra.part(extra.ms - mapped_ms)
    return part if part.share >= MODERATE_SHARE and part.ms > mapped_ms else None


def mapping_ms(facts: Facts) -> float | None:
    """What the training thread pays, a step, to map what workers hand over and to free it again.

    0 where it is not the first to read these pages (another thread is, or nobody); None where
    faults were not counted.
    """
    pages = facts.ablation.pages if facts.ablation is not None else None
    if pages is None or not num_workers(facts):
        return None
    return pages.mapping_ms


def _beyond_wait(facts: Facts) -> Cost | None:
    """The established input cost less the wait, by the estimates alone."""
    ablation, seen_ms, cost = facts.ablation, _seen_ms(facts), input_cost(facts)
    if ablation is None or ablation.input_ms is None or not ablation.input_ms.bounded:
        return None
    if seen_ms is None or cost is None or seen_ms > MAX_WAIT_PART * ablation.input_ms.value:
        return None
    part = cost.part(ablation.input_ms.value - seen_ms)
    return part if part.share >= MODERATE_SHARE else None


def _seen_ms(facts: Facts) -> float | None:
    """What the loop was seen to wait, a step: in `__next__`, and for workers to start."""
    step = facts.step
    if step is None or step.raw_wait_ms is None:
        return None
    # Starting workers at an epoch's end is paid outside `__next__`, and is not contention.
    return step.raw_wait_ms + (startup_ms_per_step(facts) or 0.0)
