"""More busy threads than CPUs: library threads in every worker, or the loop's own; slowed loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import ThreadTrial
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import EvidenceValue, Finding, Kind, Prediction, Severity
from loaderdoctor.findings.capacity import cpu_cores_used, cpu_saturated, cpus_words
from loaderdoctor.findings.exposure import Cost, input_cost, loader_id, num_workers, severity
from loaderdoctor.findings.input_parts import contention_cost, fewer_that_keep_up, slowed_cost

# CPU time above wall time: the worker runs more than one thread while it makes a batch.
MIN_MULTITHREADED_CPU_SHARE = 1.2
# Ready to run and no CPU free for this part of a worker's life. On two CPUs next to the loop: two
# workers of eight BLAS threads 0.65 (a batch takes 32 times as long), two of one thread 0.18
# (`tests/scripts/starved/many_threads.py`).
MIN_RUN_WAIT_SHARE = 0.25
# Threads of the training process that stand ready with no CPU free, on average. Two threads on two
# CPUs: 0.14-0.25 next to programs that leave 85 % of the CPUs, where the step takes no longer; 0.35
# where it takes 8-16 % longer, 0.7-0.8 where 60-90 %, 1.5 where 2 to 30 times as long
# (`benchmarks/contention.py --alone`).
MIN_WAITING_THREADS = 0.3
# Periods of a quota that ended with everything held back: more threads than the quota feeds are
# held back in nearly all, as many as it feeds only where something else ran too. Not measured.
MIN_THROTTLED_SHARE = 0.2
# With one thread at work the training process uses one CPU, and no other number of them matters.
MIN_BUSY_CORES = 1.1


@dataclass(frozen=True, slots=True)
class Fight:
    """Why the loop's threads are taken to fight, and at least what part of the time is lost."""

    share: float
    why: str
    sure: bool  # more threads than CPUs: fewer are right whatever else runs
    other_load: str = ""  # who else fights, for behind "the step's own threads"


def thread_oversubscription(facts: Facts) -> Finding | None:
    """More busy threads than CPUs: library threads in every worker, or the loop's own.

    Decides on: threads x workers against the usable CPUs, where the CPU is full, a worker uses more
    CPU time than wall time, or stands ready with no CPU free. For the loop's own threads, also at 0
    workers, what the step gains with fewer of them, where that was tried; else threads that stand
    ready with no CPU free, a quota that holds back more threads than it has CPUs for, or a loader
    whose removal gains more than the loop waits for it while the CPU is full.
    Abstains: machine, thread counts or CPU times not recorded; one thread.
    Fooled by: torch threads a worker may use and never does, with a CPU that is full for another
    reason (a library's own pool counts only where it was seen at work); untried, threads of the
    training process that are not torch's.
    """
    return _threads_of_workers(facts) or _threads_of_loop(facts)


def _threads_of_loop(facts: Facts) -> Finding | None:
    """What the loop's own threads cost: measured where fewer were tried, else suspected."""
    own = facts.machine.n_threads if facts.machine is not None else None
    if own is None or own < 2:
        return None
    fight = fight_of_threads(facts)
    decided = [t for t in facts.thread_trials if t.decided]
    if not decided:
        return _suspected(facts, own, fight) if fight is not None else None
    best = min(decided, key=lambda t: t.step_ms.value)
    if best.gain_ms.low > 0.0:
        return _measured(facts, own, best, fight)
    looks_better = best.gain_ms.value >= MODERATE_SHARE * (best.step_ms.value + best.gain_ms.value)
    if fight is None or not looks_better:
        return None
    return _suspected(facts, own, replace(fight, sure=False))  # too noisy to tell


def _threads_of_workers(facts: Facts) -> Finding | None:
    machine, workers, cost = facts.machine, facts.workers, input_cost(facts)
    if machine is None or cost is None or not num_workers(facts):
        return None
    cpus, saturated = machine.cpus_per_rank, cpu_saturated(facts)
    in_worker = workers.n_threads if workers is not None else None
    n = num_workers(facts) or 0
    competes = saturated or (
        workers is not None
        and (
            (workers.cpu_share or 0.0) >= MIN_MULTITHREADED_CPU_SHARE
            or (workers.run_wait_share or 0.0) >= MIN_RUN_WAIT_SHARE
        )
    )
    if in_worker is not None and in_worker > 1 and in_worker * n > cpus and competes:
        return _oversubscribed(
            facts,
            cost,
            f"{fmt.count(n, 'worker')} of {in_worker} library threads each "
            f"{fmt.verb(n, 'compete')} for {cpus_words(machine)}",
            n_threads=in_worker,
        )
    return None


def fight_of_threads(facts: Facts) -> Fight | None:
    """What the plain windows say against so many threads; None where nothing does.

    Threads of a step wait for one another, so a step loses at least what one of them stands
    without a CPU.
    """
    machine, step = facts.machine, facts.step
    own = machine.n_threads if machine is not None else None
    if machine is None or step is None or own is None or own < 2:
        return None
    cpus, cpu = machine.usable_cpus, step.cpu
    sure = own > machine.cpus_per_rank
    if cpu is not None and (cpu.throttled_share or 0.0) >= MIN_THROTTLED_SHARE and sure:
        share = max(cpu.throttled_share or 0.0, cpu.train_wait_share or 0.0)
        held = fmt.share(cpu.throttled_share or 0.0)
        return Fight(
            share, f"the quota of {cpus:g} CPUs held them back in {held} of its periods", sure
        )
    waiting = cpu.waiting_threads if cpu is not None else None
    if cpu is not None and waiting is not None and waiting >= MIN_WAITING_THREADS:
        share = min(1.0, max(waiting / own, cpu.train_wait_share or 0.0))
        others = (
            f", and other programs use {cpu.other_cores:.1f} of them"
            if cpu.other_cores is not None and cpu.other_cores >= MIN_WAITING_THREADS
            else ""
        )
        return Fight(
            share,
            f"on average {waiting:.1f} of them stand ready with no CPU free "
            f"({cpus:g} usable{others})",
            sure,
        )
    extra, n = contention_cost(facts), num_workers(facts) or 0
    no_device = facts.trace is None or not facts.trace.has_accelerator
    if n and own + n > cpus and cpu_saturated(facts) and extra is not None and no_device:
        why = (
            f"{cpus:g} are usable, and without the loader the step is shorter by more than it "
            f"waits: {extra.of_step}"
        )
        return Fight(extra.share, why, True, other_load=f" and {fmt.count(n, 'worker')}")
    return None


def threads_at_work(facts: Facts) -> bool:
    """Whether the training process was seen to run more than one thread at a time."""
    step = facts.step
    return step is not None and (step.main_cpu_cores or 0.0) >= MIN_BUSY_CORES


def fewer(facts: Facts) -> tuple[int, ...]:
    """Numbers of threads to try, the likeliest first: what the CPUs have room for, half, one."""
    machine, step = facts.machine, facts.step
    own = machine.n_threads if machine is not None else None
    if machine is None or own is None or own < 2:
        return ()
    taken = step.cpu.other_cores if step is not None and step.cpu is not None else None
    free_cpus = (machine.usable_cpus - (taken or 0.0)) / machine.ranks_here
    free = round(free_cpus - (num_workers(facts) or 0))
    wanted = dict.fromkeys([max(1, free), own // 2, 1])
    return tuple(n for n in wanted if 1 <= n < own)


def _measured(facts: Facts, own: int, best: ThreadTrial, fight: Fight | None) -> Finding | None:
    plain_ms = best.step_ms.value + best.gain_ms.value
    share, low = best.gain_ms.value / plain_ms, best.gain_ms.low / plain_ms
    if share < MODERATE_SHARE:
        return None
    why = (
        f": {fight.why}"
        if fight is not None
        else ", as they spend more on one another than they save"
    )
    return _finding(
        facts,
        share=share,
        severity=severity(share, low),
        summary=(
            f"The step's own {own} threads slow it down{why}. With "
            f"{fmt.count(best.n_threads, 'thread')} it takes {fmt.ms(best.step_ms.value)} instead "
            f"of {fmt.ms(plain_ms)}, measured in this run."
        ),
        more={
            "best_n_threads": best.n_threads,
            "step_ms": plain_ms,
            "step_ms_with_best": best.step_ms.value,
        },
    )


def _suspected(facts: Facts, own: int, fight: Fight) -> Finding | None:
    if fight.share < MODERATE_SHARE:
        return None
    n = (*fewer(facts), 1)[0]
    return replace(
        _finding(
            facts,
            share=fight.share,
            severity=severity(fight.share) if fight.sure else Severity.UNCERTAIN,
            summary=(
                f"The step's own {own} threads{fight.other_load} compete for CPUs: {fight.why}."
            ),
            more={"step_ms": facts.step_ms},
        ),
        predictions=(
            Prediction(
                sentence=f"With torch.set_num_threads({n}) it should be faster.",
                setting="num_threads",
            ),
        ),
    )


def _finding(
    facts: Facts, *, share: float, severity: Severity, summary: str, more: dict[str, EvidenceValue]
) -> Finding:
    machine, step = facts.machine, facts.step
    cpu = step.cpu if step is not None else None
    return Finding(
        kind=Kind.THREAD_OVERSUBSCRIPTION,
        severity=severity,
        share=share,
        loader=loader_id(facts),
        summary=summary,
        evidence={
            "threads_of": "loop",
            "n_threads": machine.n_threads if machine is not None else None,
            "num_workers": num_workers(facts),
            "usable_cpus": machine.usable_cpus if machine is not None else None,
            "cpu_cores_used": cpu_cores_used(facts),
            "other_cpu_cores": cpu.other_cores if cpu is not None else None,
            "waiting_threads": cpu.waiting_threads if cpu is not None else None,
            "throttled_share": cpu.throttled_share if cpu is not None else None,
            **more,
        },
        advice="torch.set_num_threads(n) before the loop, or OMP_NUM_THREADS=n when starting it; "
        "sums are then made in another order, so results may differ in their last bits.",
    )


def _oversubscribed(facts: Facts, cost: Cost, what: str, *, n_threads: int) -> Finding:
    machine = facts.machine
    return Finding(
        kind=Kind.THREAD_OVERSUBSCRIPTION,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=f"{what}; {cost.of_step}. Give each worker one thread (worker_init_fn).",
        evidence={
            "threads_of": "workers",
            "n_threads": n_threads,
            "num_workers": num_workers(facts),
            "usable_cpus": machine.usable_cpus if machine is not None else None,
            "cpu_cores_used": cpu_cores_used(facts),
            "worker_cpu_share": facts.workers.cpu_share if facts.workers is not None else None,
            **cost.as_input,
        },
        advice="Limit library threads: torch.set_num_threads, cv2.setNumThreads(0), "
        "OMP_NUM_THREADS and OPENBLAS_NUM_THREADS.",
    )


def loop_slowed_by_workers(facts: Facts) -> Finding | None:
    """The loader costs the step though the loop hardly waits: workers slow its thread.

    Decides on: input cost by ablation (its lower bound) against the wait in plain windows, where
    CPU time of the training thread outside fetching and mapping batches, and its time ready with no
    CPU free, are longer beside the workers than with ready batches by at least half of the rest.
    Abstains: no workers, no ablation of two rounds, CPU times not recorded, or the CPU is full.
    Fooled by: a thread that spins while the device works, and the device that is slowed.
    """
    cost, extra = slowed_cost(facts), contention_cost(facts)
    if cost is None or extra is None or cpu_saturated(facts):
        return None
    step, n, spared = facts.step, num_workers(facts) or 0, fewer_that_keep_up(facts)
    at_once = Prediction(
        sentence=f"num_workers={spared} would keep up, and fewer run beside the loop at once.",
        setting="num_workers",
        which="fewer",
        value=spared,
    )
    wait_ms = step.raw_wait_ms if step is not None else None
    cores = step.worker_cpu_cores if step is not None else None
    return Finding(
        kind=Kind.LOOP_SLOWED_BY_WORKERS,
        severity=cost.severity,
        share=cost.share,
        loader=loader_id(facts),
        summary=(
            f"The loop waits only {fmt.ms(wait_ms)} for its loader, yet without it the step is "
            f"{extra.ms_of_step} shorter: beside its {fmt.count(n, 'worker')} the loop's own "
            f"thread runs, or stands ready, for {fmt.ms(cost.ms)} longer. They share caches and "
            "memory bandwidth, and a core where two CPUs are its threads."
        ),
        predictions=(at_once,) if spared is not None else (),
        evidence={
            "slowed_ms_per_step": cost.ms,
            "input_ms_per_step": extra.ms,
            "raw_wait_ms_per_step": wait_ms,
            "step_ms": cost.step_ms,
            "num_workers": n,
            "worker_cpu_cores": cores,
        },
        advice="Give the workers less to do: decode once and keep the pixels, hand over bytes in "
        "place of floats, transform whole batches on the device.",
    )
