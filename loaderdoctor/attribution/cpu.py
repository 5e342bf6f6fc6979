"""CPU records of plain windows -> who used the CPUs, and who stood waiting for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.facts.loop import AblationFacts, CpuFacts, StepFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.instrument.wire.measured import CpuRecord, FetchRecord
from loaderdoctor.instrument.wire.protocol import WindowDone

# A system that counts for less than this part of our own CPU time tells of something else than
# what we run on (sandboxes that fake /proc/stat). It counts in ticks of 10 ms, by sampling, which
# over windows of a second is far nearer than this.
MIN_PLAUSIBLE = 0.8


def cpu_facts(windows: Sequence[WindowDone], usable_cpus: float | None) -> CpuFacts | None:
    """Over all these windows together; None where none recorded anything.

    Other programs count as far as they take from the CPUs this run may use. Where a quota leaves
    it fewer than there are, others have the rest for free; but processes of its own group eat
    from the same quota.
    """
    records = [w.cpu for w in windows if w.cpu is not None and w.cpu.wall_ns > 0]
    if not records:
        return None
    wall_ns = sum(r.wall_ns for r in records)
    return CpuFacts(
        other_cores=_others(records, wall_ns, usable_cpus),
        waiting_threads=_per_wall(records, lambda r: r.waited_ns),
        train_wait_share=_per_wall(records, lambda r: r.thread_waited_ns),
        throttled_share=_throttled(records),
    )


def _others(records: Sequence[CpuRecord], wall_ns: int, usable_cpus: float | None) -> float | None:
    run = _sum(records, lambda r: r.tree_ns)
    n_cpus = max((r.n_cpus or 0 for r in records), default=0)
    if run is None or usable_cpus is None or not n_cpus:
        return None
    found = []
    busy, group = _sum(records, lambda r: r.busy_ns), _sum(records, lambda r: r.group_ns)
    if busy is not None and busy >= MIN_PLAUSIBLE * run:
        found.append((busy - run) / wall_ns - max(0.0, n_cpus - usable_cpus))
    if group is not None:
        found.append((group - run) / wall_ns)
    return max(0.0, *found) if found else None


def _throttled(records: Sequence[CpuRecord]) -> float | None:
    periods, throttled = (
        _sum(records, lambda r: r.n_periods),
        _sum(records, lambda r: r.n_throttled),
    )
    return throttled / periods if periods and throttled is not None else None


def _per_wall(
    records: Sequence[CpuRecord], field: Callable[[CpuRecord], int | None]
) -> float | None:
    known = [r for r in records if field(r) is not None]
    total = _sum(known, field)
    return total / sum(r.wall_ns for r in known) if total is not None else None


def _sum(records: Sequence[CpuRecord], field: Callable[[CpuRecord], int | None]) -> int | None:
    """Over all of them; None where one did not record it, or there is none."""
    values = [field(r) for r in records]
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


# What stands in the way of judging a run: full CPUs, other programs, a machine not steady.

# The loop and its workers use this much of the CPUs: what else runs then takes from them. Not
# lower, since nothing keeps all CPUs busy all the time but a loop that is short of them.
FULL_SHARE = 0.85
# Other programs that use this much of the usable CPUs make steps longer that use all of them: on
# two CPUs 15 % cost nothing measurable, 25 % cost 8-16 %, 50 % cost 60-90 % (and a loop of one
# thread nothing): `benchmarks/contention.py --alone`.
BUSY_SHARE = 0.20
# A quota that ends this part of its periods early makes threads stand ready by itself (the limit of
# `findings.rules.threads`).
THROTTLED_SHARE = 0.2
# Workers idle for this part of the time have batches ready whenever the loop asks.
READY_IDLE_SHARE = 0.5


def allow_for_contention(
    ablation: AblationFacts | None, step: StepFacts | None, usable_cpus: float | None
) -> AblationFacts | None:
    """Widens the interval of `input` down to what is the loop's own, where its CPUs are full.

    Workers that just keep up are late as soon as anything else runs: this program's command, its
    recording, another user. A loop fed just in time by 14 workers on 16 cores read 15 % input in
    our run and 5 % without us (docs/accuracy.md). With the CPUs to itself the step takes at least
    the CPU time that loop and workers spend on it over the CPUs there are, and at least what it
    takes without input; so the loader costs at least the difference, and at least what mapping its
    batches takes. What is above may be the other load's doing. No correction: how much of it is,
    nothing here measures.
    """
    if ablation is None or ablation.input_ms is None or ablation.no_input_ms is None:
        return ablation
    if step is None or step.worker_cpu_cores is None or not usable_cpus:
        return ablation
    used_share = (step.worker_cpu_cores + (step.main_cpu_cores or 0.0)) / usable_cpus
    # Without workers nothing runs next to the loop that could be late.
    if used_share < FULL_SHARE or step.worker_cpu_cores <= 0.0:
        return ablation
    found: Estimate = ablation.input_ms
    floor_ms = min(1.0, used_share) * ablation.plain_ms.value
    mapping_ms = ablation.pages.mapping_ms if ablation.pages is not None else 0.0
    least_ms = max(mapping_ms, floor_ms - ablation.no_input_ms.value)
    if least_ms >= found.low:
        return ablation
    return replace(
        ablation,
        input_ms=replace(found, low=least_ms),
        contended_ms=max(0.0, found.value - least_ms),
    )


def without_neighbours(
    ablation: AblationFacts | None,
    step: StepFacts | None,
    workers: WorkerFacts | None,
    usable_cpus: float | None,
) -> AblationFacts | None:
    """Where other programs keep the CPUs busy: what the loop waits for a batch, without them.

    Workers that are all idle most of the time have their batches ready. Receiving one then takes
    its CPU time; what the loop waits beyond it, it or its worker waits for a CPU, as all of the
    step does, and no setting of a loader changes that. One that is busy makes the loop wait itself,
    however idle others are whose shards have come to their end; so does one that makes a batch
    while the loop waits for it, as where batches come in bursts. Of any wait, with workers or
    without, other programs have their part of what the thread stood ready without a CPU.
    Where an epoch begins no batch lies ready: what its workers' start takes is the loader's.
    """
    seen = ablation.mechanisms if ablation is not None else None
    if ablation is None or seen is None or seen.wait_ms is None:
        return ablation
    theirs = _part_of_others(step, usable_cpus)
    if theirs is None:
        return ablation
    idle = workers.all_idle_share if workers is not None else None
    most = seen.wait_ms
    if seen.got_ms is not None and idle is not None and idle >= READY_IDLE_SHARE:
        own, parted = seen.got_ms.plus(seen.boundary_ms), False
        own = replace(own, low=max(0.0, own.low), high=max(own.high, most.high))
        own = max(own, _while_made(most, workers), key=lambda one: one.value)
    elif seen.unqueued_ms is not None and seen.queued_ms is not None:
        own, parted = _with_part(seen.unqueued_ms, seen.queued_ms, 1.0 - theirs), True
    else:
        return ablation
    if own.value >= most.value:
        return ablation
    return replace(
        ablation,
        mechanisms=replace(seen, wait_ms=replace(own, n=most.n), parted=parted),
        neighbours_ms=most.value - own.value,
    )


def _while_made(wait: Estimate, workers: WorkerFacts | None) -> Estimate:
    """Of the wait what a worker made that very batch in; it may have stood ready meanwhile too."""
    if workers is None or workers.unready_share is None:
        return replace(wait, value=0.0, low=0.0)
    part = workers.unready_share * (1.0 - min(1.0, workers.run_wait_share or 0.0))
    return replace(wait, value=part * wait.value, low=max(0.0, part * wait.low))


def _with_part(least: Estimate, rest: Estimate, part: float) -> Estimate:
    """`least` and a part of the rest, which is known roughly: none of it may be, or all."""
    high = rest.high if part > 0.0 else 0.0
    return replace(
        least,
        value=least.value + part * rest.value,
        low=max(0.0, least.low),
        high=least.high + max(part * rest.value, high),
    )


def waits_without_neighbours(step: StepFacts | None, usable_cpus: float | None) -> StepFacts | None:
    """The same of what plain windows spent on getting batches, for a run without an ablation."""
    theirs = _part_of_others(step, usable_cpus)
    if step is None or theirs is None or not step.queued_ms or step.input_ms is None:
        return step
    return replace(
        step,
        input_ms=max(0.0, step.input_ms - theirs * step.queued_ms),
        input_low_ms=max(0.0, step.input_ms - step.queued_ms),
        neighbours_ms=min(step.input_ms, theirs * step.queued_ms),
    )


def host_low_share(
    host: float,
    step: StepFacts | None,
    own_low_share: float,
    usable_cpus: float | None,
    ablation: AblationFacts | None = None,
) -> float | None:
    """What the host's share is at least beside other programs; None where they don't matter.

    A thread that gives up its CPU between two operators, as at a system call, stands still there:
    in a trace that is the host's time. All that it stood ready outside its fetches may be that, and
    what of its fetches was put down to others: that is no input, and so in the host's share. What
    stack samples show of the loop's own work stays. An ablation counts where it parted that very
    time; elsewhere what it put down to others is of waits for workers, in no queue for a CPU.
    """
    cpu = step.cpu if step is not None else None
    if step is None or cpu is None or others_cores(step, usable_cpus) is None:
        return None
    if cpu.train_wait_share is None or step.wall_ms.value <= 0:
        return None
    seen = ablation.mechanisms if ablation is not None else None
    by_rounds = ablation.neighbours_ms if ablation is not None and seen and seen.parted else None
    theirs_ms = max(step.neighbours_ms or 0.0, by_rounds or 0.0)
    fetching_ms = max(0.0, (step.queued_ms or 0.0) - theirs_ms)
    elsewhere = max(0.0, cpu.train_wait_share - fetching_ms / step.wall_ms.value)
    return max(0.0, own_low_share, host - elsewhere)


def others_cores(step: StepFacts | None, usable_cpus: float | None) -> float | None:
    """The CPUs that other programs keep busy; None where they are too few to matter."""
    others = step.cpu.other_cores if step is not None and step.cpu is not None else None
    if not usable_cpus or others is None or others < BUSY_SHARE * usable_cpus:
        return None
    return others


def _part_of_others(step: StepFacts | None, usable_cpus: float | None) -> float | None:
    """Of the time that the training thread stands ready without a CPU, how much others make it.

    The fair share of whoever else is on the CPUs: other programs, and the loop's own workers and
    threads, whose doing is the loader's. A thread has a CPU for no more than the time that it does
    not stand ready; what else its process used, other threads did (a pool of OpenMP's, one that
    pins). None where others use too little to matter, where it is not known what the loop's own
    processes used, and where a quota holds them back: then that is what they stand ready for.
    """
    others = others_cores(step, usable_cpus)
    if others is None or step is None or step.cpu is None:
        return None
    if step.worker_cpu_cores is None or step.main_cpu_cores is None:
        return None
    if (step.cpu.throttled_share or 0.0) >= THROTTLED_SHARE:
        return None
    thread = 1.0 - (step.cpu.train_wait_share or 0.0)
    threads = max(0.0, step.main_cpu_cores - thread)
    return others / (others + step.worker_cpu_cores + threads)


def core_contention(ablation: AblationFacts) -> str:
    """The warning that belongs to a widened interval."""
    assert ablation.input_ms is not None
    return (
        "The loop and its workers keep the CPUs full, so whatever else runs, this program "
        f"included, makes batches late: of the {ablation.input_ms.value:.1f} ms a step that "
        f"waiting for the loader costs here, up to {ablation.contended_ms or 0.0:.1f} ms may be "
        "its doing (core contention). The interval allows for that."
    )


def machine_notes(facts: Facts) -> tuple[tuple[str, str], ...]:
    """(kind, text) of each warning about what a run shared its CPUs with."""
    found: list[tuple[str, str]] = []
    if facts.ablation is not None and facts.ablation.contended_ms:
        found.append(("core-contention", core_contention(facts.ablation)))
    if (busy := _busy_machine(facts)) is not None:
        found.append(("busy-machine", busy))
    if facts.trace is not None and facts.trace.shared_gpu:
        found.append(("shared-gpu", shared_gpu_note(facts.trace)))
    if (unsteady := _unsteady(facts)) is not None:
        found.append(("not-steady", unsteady))
    return tuple(found)


def shared_gpu_note(trace: TraceFacts) -> str:
    """The warning of a trace whose GPU served another process as well."""
    held_up_ms = trace.kernels.held_up_ms
    return (
        f"It looks as if another process computes on this GPU: for {held_up_ms:.1f} of "
        f"{trace.wall_ms:.1f} ms a step ({100 * held_up_ms / trace.wall_ms:.0f} %) it stood still "
        "though work was waiting. That time counts as other; what copies cost can't be told from "
        "their waiting for a turn, so no verdict rests on it. Measure on a GPU of its own "
        "(nvidia-smi lists who uses it)."
    )


def _busy_machine(facts: Facts) -> str | None:
    cpu = facts.step.cpu if facts.step is not None else None
    machine = facts.machine
    if cpu is None or cpu.other_cores is None or machine is None or machine.usable_cpus <= 0:
        return None
    share = cpu.other_cores / machine.usable_cpus
    if share < BUSY_SHARE:
        return None
    return (
        f"Other programs used {cpu.other_cores:.1f} of the {machine.usable_cpus:g} usable CPUs "
        f"({100 * share:.0f} %) while the loop was timed without the profiler. Times are those of "
        "the loop with that load next to it: alone it may be faster, and another setting best. "
        "Close the other programs and measure again; if they are there in training too, the "
        f"figures hold.{_of_neighbours(facts)}"
    )


def _of_neighbours(facts: Facts) -> str:
    """What of the waits is theirs, where that could be told apart, and may be of the host's."""
    host = ""
    if facts.host_of_others >= MODERATE_SHARE:
        host = (
            " Of what Python and launching take, up to "
            f"{facts.host_of_others * (facts.step_ms or 0.0):.1f} ms a step may be waiting for a "
            "CPU that they have."
        )
    told = (facts.ablation.neighbours_ms if facts.ablation is not None else None) or (
        facts.step.neighbours_ms if facts.step is not None else None
    )
    if told is None or told < MODERATE_SHARE * (facts.step_ms or 0.0):
        return host
    return (
        f" Of what the loop waits for its batches, {told:.1f} ms a step is waiting for a CPU "
        f"that they have. That is not counted as input.{host}"
    )


def _unsteady(facts: Facts) -> str | None:
    if not facts.unsteady or facts.profiler_overhead is None:
        return None
    windows = facts.step.windows_ms if facts.step is not None else ()
    spread = (
        f" Windows without it took from {min(windows):.1f} to {max(windows):.1f} ms a step."
        if len(windows) > 1
        else ""
    )
    return (
        f"With the profiler on, steps took {facts.profiler_overhead:.2f}x as long as without, "
        f"though recording only slows: the machine or the loop was not steady between windows."
        f"{spread} What rests on the trace is of another speed than the times, so the verdict "
        "counts as uncertain unless the interval alone bears it. Measure again with nothing else "
        "running, and longer (--budget)."
    )


def queued_ns(fetches: Sequence[FetchRecord]) -> float | None:
    """Of these fetches, the thread stood ready and no CPU was free. None: not told of each loader.

    Of short steps some fetches were asked, at random: the others of their loader are taken to have
    queued for the same part of their time.
    """
    found = [
        _queued_ns([f for f in fetches if f.loader == loader])
        for loader in {f.loader for f in fetches}
    ]
    known = [ns for ns in found if ns is not None]
    return sum(known) if known and len(known) == len(found) else None


def _queued_ns(fetches: Sequence[FetchRecord]) -> float | None:
    asked = [f for f in fetches if f.queued_ns is not None]
    took_ns = sum(f.end_ns - f.start_ns for f in asked)
    if not took_ns:
        return None
    part = sum(f.queued_ns or 0 for f in asked) / took_ns
    return part * sum(f.end_ns - f.start_ns for f in fetches)
