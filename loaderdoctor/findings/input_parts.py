"""What the input cost is made of: each cause's part, as far as it is established.

Making batches, starting workers, mapping batches into memory, and what is left then: a fight over
the CPU or the interpreter. And how long a step takes with another pool, and the least that it may
take with any change: what is predicted of one reads "at best", a bound, which a measurement should
not go below. So each part of it counts by the end of its interval that makes the step shortest, to
nothing at all where one noisy round leaves room for that.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings.capacity import (
    batch_ms,
    by_ablation,
    cpu_bound_ms,
    cpus_words,
    pool_falls_short_ms,
    rest_ms,
    run_wait_share,
    workers_needed,
)
from loaderdoctor.findings.exposure import Cost, Part, input_cost, num_workers

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


def may_contend(facts: Facts) -> bool:
    """Whether the loader seems to cost the loop more than its wait, though noise may be all of it.

    As much as `contention_cost` asks for, by the estimates alone: enough to try something.
    """
    extra, mapped_ms = _beyond_wait(facts), mapping_ms(facts)
    return extra is not None and (not mapped_ms or extra.ms > 2 * mapped_ms)


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


def slowed_cost(facts: Facts) -> Cost | None:
    """Of `contention_cost` what the loop's own thread takes longer beside its workers.

    CPU time that grew next to them, but for mapping batches, and time that it stood ready with no
    CPU free: of one that waits for the interpreter neither grows. None where it is the smaller
    part, within its noise, or not recorded.
    """
    extra, ablation = contention_cost(facts), facts.ablation
    seen = ablation.mechanisms if ablation is not None else None
    if extra is None or seen is None or not num_workers(facts):
        return None
    ran, queued = (
        x.value if x is not None and x.bounded and x.low > 0.0 else 0.0
        for x in (seen.cpu_ms, seen.run_queue_ms)
    )
    slowed_ms = max(0.0, ran - (mapping_ms(facts) or 0.0)) + queued
    part = extra.part(min(slowed_ms, extra.ms))
    return part if part.ms >= MAX_WAIT_PART * extra.ms and part.share >= MODERATE_SHARE else None


def fewer_that_keep_up(facts: Facts) -> int | None:
    """Workers that make a batch in a step's time, and one more; None where those are no fewer."""
    needed, n = workers_needed(facts), num_workers(facts) or 0
    return needed + 1 if needed is not None and needed + 1 < n else None


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


def pool_ms(
    facts: Facts, n_workers: int, *, in_order: bool = True, at_best: bool = False
) -> tuple[float | None, str]:
    """Step time with this pool, by the mean: the slowest of the rest, the pool and the CPUs.

    Handed out `in_order`, batches also wait behind slow ones, which no mean shows: that wait is
    taken to stay as long as it is.

    `at_best` counts of each what it surely takes: the lower end of its interval, no time that
    workers or the loop only queued for a CPU, no wait behind slow batches, which more workers may
    end. Receiving a batch is added where it was seen and every wait is the step's: of steps of 20
    and 100 ms, fifteen pools that kept up took 1.2 to 2.1 ms more than steps with ready batches
    (`benchmarks/first_advice.py`, two CPUs of a virtual machine, 16 KiB a batch). Without workers
    nothing tells it beforehand.
    """
    rest, batch = rest_ms(facts), batch_ms(facts)
    if at_best:
        rest, batch = least_rest_ms(facts), least_batch_ms(facts)
    if rest is None or batch is None:
        return None, "batch cost or rest of the step not recorded"
    shown = (
        f"{fmt.ms(batch)} a batch / {n_workers}" if n_workers > 1 else f"{fmt.ms(batch)} a batch"
    )
    received_ms = _least_receiving_ms(facts) if at_best else 0.0
    bound, longest = cpu_bound_ms(facts), max(rest + received_ms, batch / n_workers)
    if bound is not None and at_best:
        bound *= pace_kept(facts)
    of_rest = f"{fmt.ms(rest)} (rest of the step)"
    if received_ms:
        of_rest += f" with {fmt.ms(received_ms)} for receiving a batch"
    how = f"the longer of {of_rest} and {shown}"
    if bound is not None and facts.machine is not None and bound > longest:
        cpus = cpus_words(facts.machine)
        longest = bound
        how = f"the CPU time of a step and its batch spread over {cpus}, the limit here"
    stall = stall_cost(facts) if in_order and n_workers > 1 and not at_best else None
    if stall is None:
        return longest, how
    return longest + stall.ms, f"{how}, and {fmt.ms(stall.ms)} behind slow batches as now"


def least_rest_ms(facts: Facts) -> float | None:
    """The step without its loader, at the lower end of what windows with ready batches tell.

    They tell it twice, in their own mean and as the plain step less what the loader is claimed to
    cost. The first is of those windows alone, so it counts, unless all of it lies above what is
    claimed: then the lower of the two. 0 where one round leaves room for that.
    """
    rest, ablation = rest_ms(facts), facts.ablation
    if rest is None or not by_ablation(facts) or ablation is None:
        return rest
    claimed, measured = ablation.no_input_ms, (ablation.raw or ablation).no_input_ms
    lows = [x.low for x in (measured, claimed) if x is not None]
    if not lows:
        return rest
    low = lows[0] if lows[0] <= rest else min(lows)
    return min(rest, max(low, 0.0))


def least_without_ms(facts: Facts, saved_ms: float, part: Part = "input") -> float | None:
    """The least that the step may take once `saved_ms`, as estimated, of `part` fall away.

    None where the step was not timed.
    """
    step_ms = facts.step_ms
    if step_ms is None:
        return None
    left_ms = step_ms * pace_kept(facts) - saved_ms * most_of(facts, part)
    return max(left_ms, floor_ms(facts, part), 0.0)


def most_saved_ms(facts: Facts, saved_ms: float, part: Part) -> float:
    """The most that is saved of `part`, estimated as so much: the part's upper end at the most."""
    share, step_ms = facts.share(part), facts.step_ms
    if share is not None and step_ms is not None:
        saved_ms = min(saved_ms, max(share, 0.0) * step_ms)
    return saved_ms * most_of(facts, part)


def most_of(facts: Facts, part: Part) -> float:
    """How much more of the step than estimated `part` may take: the upper end, as a factor.

    At most all of the step.
    """
    ablation = facts.ablation
    share = ablation.share(part) if ablation is not None else None
    if share is None or share.value <= 0.0:
        return 1.0
    return max(1.0, min(share.high, 1.0) / share.value)


def pace_kept(facts: Facts) -> float:
    """The lower end of the step as a part of it: so much faster may all of it be another time."""
    wall = facts.step.wall_ms if facts.step is not None else None
    if wall is None or not wall.bounded or wall.value <= 0:
        return 1.0
    return min(1.0, max(0.0, wall.low / wall.value))


def floor_ms(facts: Facts, part: Part) -> float:
    """The step without all of the part (of copies: and of input); 0 where it was not measured."""
    if part == "input":
        return least_rest_ms(facts) or 0.0
    no_copy = facts.ablation.no_copy_ms if facts.ablation is not None else None
    return max(no_copy.low, 0.0) if no_copy is not None else 0.0


def least_batch_ms(facts: Facts) -> float | None:
    """Making a batch, less what its maker stood ready to run with no CPU free."""
    batch = batch_ms(facts)
    if batch is None:
        return None
    waited = run_wait_share(facts)
    if not num_workers(facts) and facts.step is not None and facts.step.cpu is not None:
        waited = facts.step.cpu.train_wait_share or 0.0
    return batch * (1.0 - min(1.0, waited)) * pace_kept(facts)


def _least_receiving_ms(facts: Facts) -> float:
    """CPU time of receiving a worker's batch, where every wait is the step's; 0 if not known."""
    seen = facts.ablation.mechanisms if facts.ablation is not None else None
    if not num_workers(facts) or seen is None or not seen.exposed or seen.got_ms is None:
        return 0.0
    return max(0.0, seen.got_ms.low)


def stall_cost(facts: Facts) -> Cost | None:
    """What waiting for a slow batch costs while later ones are ready; None where nothing of note.

    Only a pool that hands its batches out in order makes the loop wait so.
    """
    workers, cost, loader = facts.workers, input_cost(facts), facts.main_loader
    if workers is None or cost is None or workers.n_workers < 2 or not workers.head_of_line_ms:
        return None
    if loader is not None and loader.settings.in_order is False:
        return None
    stall = cost.part(workers.head_of_line_ms)
    return stall if stall.share >= MODERATE_SHARE else None
