"""Costs that no wait shows: the loader takes the CPU, a core or the GIL away; pages are mapped.

The training thread maps page by page what is new to it: its batches' memory, and its own in each
step.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.facts.trace import moved_gb_per_s, pinned_bytes, silent_behind_copies_ms
from loaderdoctor.findings import Finding, Kind, Prediction, Severity
from loaderdoctor.findings.capacity import (
    batch_ms,
    cpu_cores_used,
    cpu_saturated,
    pool_falls_short_ms,
    rest_ms,
)
from loaderdoctor.findings.exposure import (
    Cost,
    has_accelerator,
    in_background,
    input_cost,
    loader_id,
    num_workers,
    trace_alone,
)
from loaderdoctor.findings.input_parts import contention_cost, mapping_cost, slowed_cost
from loaderdoctor.findings.rules.saturated import no_more_workers

# In one measured case the loop waited 0.2 ms a step and removing the loader gained 2.1 of 5.4 ms:
# its thread fought the loop for the GIL. A fetch that burns CPU holds the GIL; one that waits
# releases it.
MIN_GIL_CPU_SHARE = 0.5
# A stage busy this much of the time is the bottleneck; the queue before it is never empty. What is
# missing to all of it: taking a batch off that queue (unpickling, mapping) counts as waiting, and
# at a window's edges a batch is not seen whole. Six runs of two such loops on an H200 read 0.88 to
# 0.94, and 0.91 to 0.98 for pinning one batch over the step.
MIN_PIN_BUSY_SHARE = 0.85

_PINNING = "the pin-memory thread"
_OWN_INTERPRETERS = Prediction(
    sentence="Worker processes would do that work in their own interpreters.",
    setting="num_workers",
    which="more",
)
_NOTHING_PINNED = Prediction(
    sentence="With pin_memory=False no such thread would run.",
    setting="pin_memory",
    value=False,
)
# Fewer a step are not memory of each step: 0 to 5 were left where glibc kept it
# (`benchmarks/allocator.py`).
MIN_FAULTS = 100
MAX_WAITING_SHARE = 0.9  # beyond this a step is mostly waiting, and what is left no measure
KEEP_FREED_MEMORY = (
    "Start the script with MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_MAX_=0 in its "
    "environment: glibc then keeps what is freed and hands it out again. The process stays as "
    "large as it once was, so mind it where memory is short."
)


def workers_share_a_core(facts: Facts) -> Finding | None:
    """All workers may only run on fewer cores than there are workers, while the job has more.

    Decides on: the workers' CPU affinities together, the number of workers, usable CPUs, and
    exposed input time.
    Abstains: affinities not recorded, or the pool keeps up with the step all the same.
    Fooled by: a job that was rightly given one core; the summary then says so.
    """
    workers, cost = facts.workers, input_cost(facts)
    if workers is None or cost is None or workers.n_workers < 2 or not workers.cores:
        return None
    cores = sorted({core for one in workers.cores for core in one})
    usable = facts.machine.usable_cpus if facts.machine is not None else None
    narrowed = usable is not None and usable >= len(cores) + 1
    if not cores or len(cores) >= workers.n_workers or not (narrowed or len(cores) == 1):
        return None
    if pool_falls_short_ms(facts) == 0.0:
        return None
    which = ", ".join(map(str, cores[:4])) + (", …" if len(cores) > 4 else "")
    cause = (
        f"though the job may use {usable:g}: something changed the CPU affinity (often an import)"
        if narrowed
        else "the only one this process may use when they start"
    )
    return Finding(
        kind=Kind.WORKERS_SHARE_A_CORE,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=(
            f"{workers.n_workers} workers share {fmt.count(len(cores), 'CPU')} ({which}), {cause}. "
            f"The loop waits {cost.of_step}. Restore the affinity before the loader starts."
        ),
        evidence={
            "num_workers": workers.n_workers,
            "n_cores_shared": len(cores),
            "usable_cpus": usable,
            **cost.as_input,
        },
        advice="os.sched_setaffinity(0, range(os.cpu_count())) in worker_init_fn, or before the "
        "loader is iterated; unset GOMP_CPU_AFFINITY and KMP_AFFINITY.",
    )


def gil_contention(facts: Facts) -> Finding | None:
    """The loader costs the step though the loop hardly waits: a thread of it holds the GIL.

    Decides on: input cost by ablation (its lower bound) against the wait in plain windows, less
    what mapping the batches takes (`batch-page-faults`); or a background thread whose fetching
    burns CPU, with exposed input time.
    Abstains: no loader thread in this process (background, pin-memory), no ablation, the CPU is
    full (then threads compete for cores, not for the GIL), or the loop's thread was seen to run for
    longer (`loop-slowed-by-workers`), which one that waits for the GIL does not.
    Fooled by: memory bandwidth or clock speed lost to workers where CPU times were not recorded.
    """
    extra, cost = contention_cost(facts), input_cost(facts)
    thread = _loader_thread(facts) if slowed_cost(facts) is None else None
    if extra is not None and thread is not None and not cpu_saturated(facts):
        wait_ms = facts.step.raw_wait_ms if facts.step is not None else None
        return Finding(
            kind=Kind.GIL_CONTENTION,
            severity=extra.severity,
            share=extra.share,
            loader=loader_id(facts),
            summary=(
                f"The loop waits only {fmt.ms(wait_ms)} for its loader, yet without it the step is "
                f"{extra.ms_of_step} shorter: {thread} takes the interpreter, or memory "
                "bandwidth, from the loop."
            ),
            predictions=(_NOTHING_PINNED if thread == _PINNING else _OWN_INTERPRETERS,),
            evidence={
                "input_ms_per_step": extra.ms,
                "raw_wait_ms_per_step": wait_ms,
                "step_ms": extra.step_ms,
                "cpu_cores_used": cpu_cores_used(facts),
            },
            advice="Hand fewer bytes and fewer, larger objects to the training process."
            if thread == _PINNING
            else "Let worker processes do the loading, and hand fewer, larger objects to the "
            "training process.",
        )
    share = facts.workers.cpu_share if facts.workers is not None else None
    if cost is None or not _threaded(facts) or num_workers(facts) != 0 or share is None:
        return None
    if share < MIN_GIL_CPU_SHARE:
        return None
    return Finding(
        kind=Kind.GIL_CONTENTION,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=(
            f"The background thread burns CPU for {fmt.share(share)} of each batch's "
            f"{fmt.ms(batch_ms(facts))} and so shares the interpreter with the loop: "
            f"{cost.of_step}."
        ),
        predictions=(_OWN_INTERPRETERS,),
        evidence={
            "cpu_share": share,
            "batch_ms": batch_ms(facts),
            **cost.as_input,
        },
    )


def pin_thread_bound(facts: Facts) -> Finding | None:
    """The one thread that pins batches is slower than the step, so ready batches queue before it.

    Decides on: busy share of the pin-memory thread, its time per batch against the rest of the
    step, and exposed input time.
    Of a trace alone, which has nothing of that thread: how much it pins, and that the training
    thread stands still behind its copies; a suspicion.
    Abstains: no pin thread recorded.
    Fooled by: a thread that waits for the GIL while it pins; its time then falls with the loop's.
    Of a trace, by the loop's own Python between the copies of one batch.
    """
    if facts.workers is None and trace_alone(facts):
        return _pinning_of_trace(facts)
    workers, cost, rest = facts.workers, input_cost(facts), rest_ms(facts)
    if workers is None or cost is None or rest is None or workers.pin_ms is None:
        return None
    if workers.pin_busy_share is None or workers.pin_ms <= rest:
        return None
    if max(workers.pin_busy_share, workers.pin_ms / cost.step_ms) < MIN_PIN_BUSY_SHARE:
        return None
    part = cost.part(workers.pin_ms - rest)
    if part.share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.PIN_THREAD_BOUND,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"Pinning a batch takes the pin thread {fmt.ms(workers.pin_ms)}, the rest of the step "
            f"{fmt.ms(rest)}: the loop waits {part.of_step} for it. Send fewer bytes, or fewer and "
            "larger tensors."
        ),
        predictions=(no_more_workers("More workers would wait for the same thread."),),
        evidence={
            "pin_ms_per_batch": workers.pin_ms,
            "pin_busy_share": workers.pin_busy_share,
            "rest_of_step_ms": rest,
            **cost.as_input,
        },
        advice="Send uint8 instead of float32, merge small tensors of a batch into one, or return "
        "batches that need no pinning.",
    )


def _pinning_of_trace(facts: Facts) -> Finding | None:
    trace = facts.trace
    silent_ms = silent_behind_copies_ms(trace) if trace is not None else 0.0
    if trace is None or not silent_ms:
        return None
    gb_per_s, n_bytes = moved_gb_per_s(trace), pinned_bytes(trace)
    return Finding(
        kind=Kind.PIN_THREAD_BOUND,
        severity=Severity.UNCERTAIN,
        share=silent_ms / trace.wall_ms,
        loader=None,
        summary=(
            f"The training thread stands still for {fmt.ms(silent_ms)} of {fmt.ms(trace.wall_ms)} "
            "a step behind the copies of its batch, and nothing is recorded there: Python of its "
            "own, or a wait for the interpreter, which the thread that pins batches holds at times "
            f"({fmt.n_bytes(n_bytes)} a step, {gb_per_s:.1f} GB/s)."
        ),
        evidence={
            "silent_ms_per_step": silent_ms,
            "step_ms": trace.wall_ms,
            "bytes_per_step": n_bytes,
            "gb_per_s": gb_per_s,
        },
        advice="Send fewer bytes: uint8, normalised on the device.",
    )


def _loader_thread(facts: Facts) -> str | None:
    """The thread of the training process that does loader work; None where there is none."""
    loader = facts.main_loader
    if _threaded(facts):
        return "the background thread"
    if loader is None:
        return None
    if loader.settings.pin_memory and loader.settings.num_workers:
        return _PINNING
    return "its own thread" if loader.kind == "foreign" else None


def _threaded(facts: Facts) -> bool:
    """Whether a thread of the training process fetches: of a setting tried, or of the user's."""
    loader = facts.main_loader
    return in_background(facts) or (loader is not None and loader.in_background)


def batch_page_faults(facts: Facts) -> Finding | None:
    """The loop maps each batch's shared memory page by page and frees it: work that no wait shows.

    Decides on: minor page faults of the training thread, a step, with real batches against ready
    ones, times the CPU time that mapping and dropping a batch was measured to take; at most what
    the loader costs by ablation beyond the loop's wait.
    Abstains: no workers, no ablation, faults not counted (outside Linux), no batch was thrown away
    to be measured, or another thread is the first to read them.
    Fooled by: batches that something else keeps alive, which are freed elsewhere; a loop that
    writes into its batches, whose faults are more and smaller than those of reading.
    """
    part = mapping_cost(facts)
    ablation = facts.ablation
    pages = ablation.pages if ablation is not None else None
    if part is None or pages is None or ablation is None or ablation.input_ms is None:
        return None
    wait_ms = facts.step.raw_wait_ms if facts.step is not None else None
    return Finding(
        kind=Kind.BATCH_PAGE_FAULTS,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"The loop waits only {fmt.ms(wait_ms)} for its loader, yet each batch of "
            f"{fmt.n_bytes(pages.batch_bytes)} comes in shared memory new to this process: reading "
            f"it first takes {pages.faults_per_batch:,} page faults ({fmt.ms(pages.touch_ms)}), "
            f"dropping it {fmt.ms(pages.release_ms)}, together {part.of_step}, on the training "
            "thread."
        ),
        predictions=_predictions(facts, part.ms),
        evidence={
            "batch_bytes": pages.batch_bytes,
            "page_faults_per_step": pages.faults_per_step,
            "extra_page_faults_per_step": pages.extra_faults_per_step,
            "page_faults_per_batch": pages.faults_per_batch,
            "touch_ms_per_batch": pages.touch_ms,
            "release_ms_per_batch": pages.release_ms,
            "input_ms_per_step": ablation.input_ms.value,
            "raw_wait_ms_per_step": wait_ms,
            "num_workers": num_workers(facts),
            "step_ms": part.step_ms,
        },
        advice="Hand over fewer bytes (half as wide a type halves the faults and the freeing), or "
        "let the workers write into shared tensors that are used again.",
    )


# Of what faults were computed to cost two loops saved 0.94 and 0.4 where their memory was kept: of
# 170 ms (docs/accuracy.md), and 14 % of a step of 17 ms for 34 to 39 (two x86-64 CPUs, torch 2.14).
LEAST_SAVED = 0.4


def allocator_page_faults(facts: Facts) -> Finding | None:
    """Each step frees memory and fetches it again: page faults on the training thread.

    Decides on: minor page faults of the training thread, a step, that are left with ready batches
    in every round (so they are not the batches', nor those of a slow start), times what a fault was
    measured to cost here, longer by what the thread waits for a CPU; with an accelerator at most
    the host's share of the step.
    Abstains: no ablation, faults not counted or not timed (outside Linux), or malloc is not glibc's
    as it comes (musl, jemalloc, tcmalloc, MALLOC_ variables).
    Fooled by: files that the loop itself maps and reads, which fault too; huge pages, whose faults
    are few and large, so that it says nothing or too little.
    """
    machine, ablation, step_ms = facts.machine, facts.ablation, facts.step_ms
    faults = ablation.synthetic_faults_per_step if ablation is not None else None
    if machine is None or machine.allocator != "glibc" or machine.fault_us is None:
        return None
    if ablation is None or faults is None or not step_ms or faults < MIN_FAULTS:
        return None
    # CPU time takes longer where the thread waits for a CPU, as all of the step does.
    cost_ms = faults * machine.fault_us / 1e3 / (1.0 - _waiting_share(facts))
    if has_accelerator(facts):
        host = facts.share("host")
        if host is None:
            return None
        cost_ms = min(cost_ms, host * step_ms)
    share = min(1.0, cost_ms / step_ms)
    cost = Cost(ms=cost_ms, share=share, low_share=LEAST_SAVED * share, step_ms=step_ms)
    if cost.share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.ALLOCATOR_PAGE_FAULTS,
        severity=cost.severity,
        share=cost.share,
        summary=(
            f"The loop's memory goes back to the system and is fetched again in each step: "
            f"{faults:,.0f} page faults a step on the training thread, without the loader too, at "
            f"{machine.fault_us:.1f} µs of CPU time each on this machine. Keeping it saves "
            f"{cost.of_step} at most; it was not tried."
        ),
        evidence={
            "page_faults_per_step": faults,
            "fault_us": machine.fault_us,
            "cost_ms_per_step": cost_ms,
            "step_ms": step_ms,
        },
        advice=KEEP_FREED_MEMORY,
    )


def _predictions(facts: Facts, mapped_ms: float) -> tuple[Prediction, ...]:
    made = []
    loader = facts.main_loader
    if has_accelerator(facts) and loader is not None and not loader.settings.pin_memory:
        made.append(
            Prediction(
                sentence="pin_memory=True would leave that to the pin-memory thread.",
                setting="pin_memory",
                value=True,
            )
        )
    # Its samples at least the loop would then have to make; collating into memory that is mapped
    # already takes far less than the workers take for it.
    if facts.workers is not None and facts.workers.fetch_ms < mapped_ms:
        made.append(
            Prediction(
                sentence="With num_workers=0 the loop would make its batches in memory that it "
                "has mapped already.",
                setting="num_workers",
                value=0,
            )
        )
    return tuple(made)


def _waiting_share(facts: Facts) -> float:
    """How much of its time the training thread stood ready without a CPU; 0 where not told."""
    cpu = facts.step.cpu if facts.step is not None else None
    share = cpu.train_wait_share if cpu is not None else None
    return min(MAX_WAITING_SHARE, max(0.0, share or 0.0))
