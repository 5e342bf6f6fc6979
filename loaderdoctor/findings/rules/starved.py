"""The loop waits because too little makes its batches: the loop alone, or too small a pool."""

from __future__ import annotations

import math

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import EdgeFacts
from loaderdoctor.facts.loop import MachineFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.facts.trace import (
    BURST_PART,
    in_bursts,
    moved_gb_per_s,
    pinned_bytes,
    workers_set_the_pace,
)
from loaderdoctor.findings import Finding, Kind, Prediction, Severity
from loaderdoctor.findings.capacity import (
    KEEPS_UP_MARGIN,
    batch_cpu_ms,
    batch_ms,
    cpu_saturated,
    cpus_words,
    fed_workers,
    main_cpu_ms,
    may_explain,
    pool_falls_short_ms,
    reachable_ms,
    rest_ms,
    worker_limit,
    workers_needed,
)
from loaderdoctor.findings.exposure import (
    Cost,
    in_background,
    input_cost,
    loader_id,
    num_workers,
    spawned_by,
    trace_alone,
)
from loaderdoctor.findings.input_parts import pool_ms
from loaderdoctor.findings.line_names import hot_evidence, hot_sentence
from loaderdoctor.findings.rules.streams import more_shards


def loader_in_main_process(facts: Facts) -> Finding | None:
    """The training loop makes its batches itself, and the step waits while it does.

    Decides on: exposed input time of a loop whose loader has no workers (its settings, or the
    single-process fetches of a trace).
    Abstains: no exposed input time, workers or a background thread fetch, neither the settings nor
    the trace say who fetches, or the batches seen made are too cheap to explain it.
    Fooled by: a dataset that waits for another process of the user's own; the wait is real, but
    workers only move it.
    """
    if num_workers(facts) != 0 or in_background(facts):
        return None
    cost = input_cost(facts)
    if cost is None:
        return None
    waited_ms = facts.step.raw_wait_ms if facts.step is not None else None
    seen_ms = max(batch_ms(facts) or 0.0, waited_ms or 0.0)
    if seen_ms and not may_explain(seen_ms, cost):
        return None
    needed, limit = workers_needed(facts), worker_limit(facts)
    return Finding(
        kind=Kind.LOADER_IN_MAIN_PROCESS,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=f"{_by_itself(facts, cost)}.{hot_sentence(facts)}",
        evidence={
            "num_workers": 0,
            **cost.as_input,
            "batch_ms": batch_ms(facts),
            "rest_of_step_ms": rest_ms(facts),
            "num_workers_needed": needed,
            "num_workers_limit": limit,
            "cpu_share": facts.workers.cpu_share if facts.workers is not None else None,
            **hot_evidence(facts),
        },
        advice=None if facts.machine is not None else "Let DataLoader workers make the batches.",
        predictions=(_more_workers(facts, 0),),
    )


def too_few_workers(facts: Facts) -> Finding | None:
    """The pool makes batches more slowly than the step uses them, and the machine has room.

    Decides on: mean batch cost over whole worker cycles / num_workers against the rest of the
    step, and the workers this machine can feed. Of a trace alone, which knows neither the number of
    workers nor their cost: what the step waits for batches that worker processes make.
    Abstains: batch cost or rest of the step not recorded; of a trace, waiting for workers to start.
    Fooled by: workers that slow each other down (a shared disk or lock): the batch cost then grows
    with the pool, which only a trial shows.
    """
    if facts.workers is None and trace_alone(facts):
        return _pool_of_trace(facts)
    n, short = num_workers(facts), pool_falls_short_ms(facts)
    cost, workers = input_cost(facts), facts.workers
    if not n or not short or cost is None or workers is None:
        return None
    needed, limit, fed = workers_needed(facts), worker_limit(facts), fed_workers(facts)
    if fed is not None and n >= fed:
        return None
    explained = cost.part(short)
    if explained.share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.TOO_FEW_WORKERS,
        severity=explained.severity,
        share=explained.share,
        loader=loader_id(facts),
        summary=(
            f"{fmt.count(n, 'worker')} {fmt.verb(n, 'hand')} out a batch every "
            f"{fmt.ms(workers.batch_ms / n)} on average, the rest of the step takes "
            f"{fmt.ms(rest_ms(facts))}: the loop waits {cost.of_step}."
            f"{hot_sentence(facts)}"
        ),
        evidence={
            "num_workers": n,
            "batch_ms": workers.batch_ms,
            "supply_ms_per_batch": workers.batch_ms / n,
            "rest_of_step_ms": rest_ms(facts),
            **cost.as_input,
            "num_workers_needed": needed,
            "num_workers_limit": limit,
            "worker_idle_share": workers.idle_share,
            "cpu_share": workers.cpu_share,
            **hot_evidence(facts),
        },
        # Where memory has no room for more, that is said where they are not advised.
        predictions=(_more_workers(facts, n),) if limit is None or limit > n else (),
    )


def _pool_of_trace(facts: Facts) -> Finding | None:
    trace, cost = facts.trace, input_cost(facts)
    if trace is None or cost is None or trace.fetching.kind not in ("multi-process", "mixed"):
        return None
    started_ms = trace.fetching.all_boundaries_ms / max(1, trace.n_steps)
    waiting = cost.part(cost.ms - started_ms)
    if waiting.share < MODERATE_SHARE or waiting.ms < cost.ms / 2:
        return None  # `worker-startup-each-epoch` tells of it
    waits = sorted(trace.fetching.waits_ms, reverse=True)
    longest = waits[: max(1, round(len(waits) * BURST_PART))]
    uneven = in_bursts(trace.fetching.waits_ms)
    if not uneven and not workers_set_the_pace(trace):
        return None  # as long each time: as well the cost of receiving a batch
    bursts = ""
    if uneven:
        part = math.fsum(longest) / math.fsum(waits)
        bursts = (
            f" {fmt.share(part)} of the waiting is in {len(longest)} of {len(waits)} fetches: "
            "workers finish together, or some samples take far longer than others."
        )
    gb_per_s = moved_gb_per_s(trace)
    moved = ""
    if gb_per_s is not None:
        moved = (
            f" {fmt.n_bytes(pinned_bytes(trace))} a step, {gb_per_s:.1f} GB/s, pass through shared "
            "memory and through the one thread that pins them: that may be all that they wait for; "
            "then more workers do not make it faster."
        )
    return Finding(
        kind=Kind.TOO_FEW_WORKERS,
        severity=waiting.severity,
        share=waiting.share,
        loader=None,
        summary=(
            "Worker processes make the batches, and are too few or too slow for the step: the loop "
            f"waits {waiting.of_step}.{bursts}{moved}"
        ),
        evidence={
            "input_ms_per_step": waiting.ms,
            "step_ms": cost.step_ms,
            "rest_of_step_ms": cost.step_ms - cost.ms,
            "longest_wait_ms": waits[0] if waits else None,
            "in_bursts": uneven,
            "gb_per_s": gb_per_s,
        },
        advice="More workers as long as CPUs are left for them; else less work for each batch."
        if gb_per_s is None
        else "Send fewer bytes where they are floats made of bytes: uint8, normalised on the "
        "device. Else more workers as long as CPUs are left, or less work for each batch.",
        predictions=(
            Prediction(
                sentence="Workers that keep up would bring the step to "
                f"{fmt.ms(cost.step_ms - waiting.ms)} at best.",
                setting="num_workers",
                which="more",
                step_ms=cost.step_ms - waiting.ms,
                advised=True,
            ),
        ),
    )


def idle_workers(facts: Facts) -> Finding | None:
    """Some workers never make a batch while the loop waits for the others.

    Decides on: workers without a single batch in the window, and exposed input time.
    Abstains: no worker records, so few batches that the window just missed some workers, or the
    others keep up with the step.
    Fooled by: an epoch with fewer batches than workers, where idling is right and costs nothing
    but memory.
    """
    workers, cost = facts.workers, input_cost(facts)
    if workers is None or cost is None or workers.n_workers < 2 or workers.n_idle_workers < 1:
        return None
    if pool_falls_short_ms(facts) == 0.0:
        return None
    loader = facts.main_loader
    iterable = loader is not None and loader.kind == "iterable"
    # A map-style loader deals batches in turn: after this many rounds each worker had some.
    if not iterable and workers.n_batches < 4 * workers.n_workers:
        return None
    busy = workers.n_workers - workers.n_idle_workers
    why = "its stream has fewer shards than workers" if iterable else "they were given no batch"
    return Finding(
        kind=Kind.IDLE_WORKERS,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=(
            f"{workers.n_idle_workers} of {workers.n_workers} workers made no batch ({why}): "
            f"{fmt.count(busy, 'worker')} {fmt.verb(busy, 'make')} all of them while the loop "
            f"waits {cost.of_step}. Split the data into at least as many shards as workers."
        ),
        evidence={
            "num_workers": workers.n_workers,
            "n_idle_workers": workers.n_idle_workers,
            "n_batches": workers.n_batches,
            **cost.as_input,
        },
        advice=more_shards(loader.stream if loader is not None else None, busy),
    )


def workers_just_keep_up(facts: Facts) -> Finding | None:
    """The loop does not wait, but its workers have no time to spare: at the edge.

    Decides on: how busy the workers were in plain windows, where the loader's cost is not
    established.
    Abstains: workers idle for a tenth of their time or more, no worker records, no ablation, or
    what the loop waits is established (then they are too few).
    Fooled by: workers that other programs slow down just now, and which have time to spare
    otherwise.
    """
    edge = facts.edge
    if edge is None or input_cost(facts) is not None:
        return None
    return Finding(
        kind=Kind.WORKERS_JUST_KEEP_UP,
        severity=Severity.LOW,
        share=None,
        loader=loader_id(facts),
        summary=(
            f"{fmt.count(edge.n_workers, 'worker')} only just {fmt.verb(edge.n_workers, 'keep')} "
            f"up: busy {fmt.share(edge.busy_share)} of the time, a batch each "
            f"{fmt.ms(edge.supply_ms)}, where the step without its loader takes "
            f"{fmt.ms(edge.rest_ms)}. {_tips_over(edge)}"
        ),
        evidence={
            "num_workers": edge.n_workers,
            "worker_busy_share": edge.busy_share,
            "supply_ms_per_batch": edge.supply_ms,
            "rest_of_step_ms": edge.rest_ms,
            "n_long_waits": edge.n_long_waits,
            "of_waits": edge.n_waits,
            "longest_wait_ms": edge.longest_wait_ms,
        },
        advice="Before the step gets faster (a better GPU, mixed precision, compilation), give the "
        "loader room: less work a sample, or more workers where CPUs are left.",
    )


def _tips_over(edge: EdgeFacts) -> str:
    fewer = "one worker fewer, " if edge.n_workers > 1 else ""
    tips = f"{fewer}a step 10 % faster, or another program on these CPUs"
    tips = f"{tips[:1].upper()}{tips[1:]}, and the loop waits for batches"
    if edge.longest_wait_ms is None:
        return f"{tips}."
    return (
        f"{tips}; it does already in {edge.n_long_waits} of {edge.n_waits} fetches, "
        f"{fmt.ms(edge.longest_wait_ms)} at the longest."
    )


def _by_itself(facts: Facts, cost: Cost) -> str:
    loader = facts.main_loader
    if loader is not None and loader.in_background:  # as with prefetch_generator
        return (
            "One background thread of the training process makes its batches (num_workers=0), and "
            f"is too slow for the step: the loop still waits {cost.of_step}"
        )
    return (
        f"The loop makes its batches itself (num_workers=0): {cost.of_step}, and nothing "
        "overlaps it"
    )


def _more_workers(facts: Facts, n: int) -> Prediction:
    """What more workers than `n` are expected to bring, by arithmetic on what was measured."""
    needed, limit, reach = workers_needed(facts), worker_limit(facts), reachable_ms(facts)
    if needed is None or reach is None:
        sentence = "Workers that make the batches while the step runs would hide that time."
        return Prediction(
            sentence=sentence, setting="num_workers", which="more", advised=facts.machine is None
        )
    count = max(n + 1, min(needed, limit) if limit is not None else needed)
    predicted_ms, _ = pool_ms(facts, count)
    step_ms = facts.step_ms
    gains = step_ms is None or predicted_ms is None or predicted_ms < (1 - MODERATE_SHARE) * step_ms
    return Prediction(
        sentence=_need_sentence(facts, count, needed, predicted_ms, gains=gains),
        setting="num_workers",
        which="more",
        value=count,
        gains=gains,
        step_ms=predicted_ms,
        advised=facts.machine is None,
    )


def _need_sentence(
    facts: Facts, count: int, needed: int, predicted_ms: float | None, *, gains: bool
) -> str:
    """How many workers, and what they are expected to bring the step to."""
    many, rest, reach = workers_words(facts.machine, count), rest_ms(facts), reachable_ms(facts)
    if rest is not None and reach is not None and reach > rest * KEEPS_UP_MARGIN:
        assert facts.machine is not None
        cpus = cpus_words(facts.machine)
        limit = "The CPU is" if cpu_saturated(facts) else "With enough workers the CPU is"
        text = (
            f"{limit} the limit: a step takes {fmt.ms(main_cpu_ms(facts))} of CPU time, its "
            f"batch {fmt.ms(batch_cpu_ms(facts))}, and {cpus} can't do that in less "
            f"than {fmt.ms(reach)}"
        )
        if not gains:
            return f"{text}, with any number of workers."
        return f"{text}; {many} would come to {fmt.ms(predicted_ms)}."
    if count < needed:
        wanted = workers_words(facts.machine, needed)
        return (
            f"{wanted} would keep up; next to the loop this machine feeds about {many}, which "
            f"would bring the step to {fmt.ms(predicted_ms)}."
        )
    return f"{many} would keep up: {fmt.ms(predicted_ms)} a step."


def main_guard_missing(facts: Facts) -> Finding | None:
    """The loop makes its batches itself, and the script has no main guard for workers to start.

    Decides on: how this process starts its workers, the statement of the script that trains, and
    what `loader-in-main-process` decides on.
    Abstains: workers are forked, the script was not read, or workers would gain nothing.
    Fooled by: a script that trains in a module it imports, with a guard of its own making.
    """
    loader, method = facts.main_loader, spawned_by(facts)
    if loader is None or method is None or loader.safety.guard_missing is None:
        return None
    waits = loader_in_main_process(facts)
    if waits is None:
        return None
    return Finding(
        kind=Kind.MAIN_GUARD_MISSING,
        severity=waits.severity,
        share=waits.share,
        loader=waits.loader,
        summary=(
            f"Workers are started by {method} here, which imports the script again in each of "
            'them, and what it runs is under no `if __name__ == "__main__":`. With num_workers '
            "above 0 it would end in a RuntimeError (bootstrapping phase); without, the loop makes "
            "its batches itself."
        ),
        evidence={"start_method": method, "num_workers": 0},
    )


def workers_words(machine: MachineFacts | None, count: int) -> str:
    """`4 workers`; `4 workers per rank (8 in all)` where several ranks are on the machine."""
    many = fmt.count(count, "worker")
    if machine is None or machine.ranks_here == 1 or not count:
        return many
    return f"{many} per rank ({count * machine.ranks_here} in all)"
