"""On full CPUs the interval of the loader's cost reaches down to what is surely its own."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.attribution.ablation import Round, ablation_facts
from loaderdoctor.attribution.claims import claimed
from loaderdoctor.attribution.combine import unclaimed_wait_share
from loaderdoctor.attribution.cpu import (
    allow_for_contention,
    core_contention,
    host_low_share,
    machine_notes,
    waits_without_neighbours,
    without_neighbours,
)
from loaderdoctor.attribution.step import step_facts
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import AblationFacts, CpuFacts, Mechanisms, PageFacts, StepFacts
from loaderdoctor.facts.step import Shares
from loaderdoctor.instrument.wire.protocol import WindowRequest
from tests.findings.builders import healthy, machine, shares, step, trace, workers
from tests.instrument.watched import Trainer, watch


def figures(plain_ms: float, no_input_ms: float) -> AblationFacts:
    def near(value: float) -> Estimate:
        return Estimate(value=value, low=value - 0.5, high=value + 0.5, n=5)

    return AblationFacts(
        plain_ms=near(plain_ms),
        no_input_ms=near(no_input_ms),
        no_copy_ms=None,
        input_ms=near(plain_ms - no_input_ms),
        copy_ms=None,
        n_rounds=5,
    )


# `half_overlap` of benchmarks/loops.py: 14 workers on 16 cores, 4.6 % input in truth, 15.2 in ours.
# How much of the cores it used was not kept; below 13.6 for the workers are assumed.
JUST_IN_TIME = figures(51.8, 43.9)


def test_a_loop_fed_just_in_time_on_full_cpus_may_owe_its_wait_to_others() -> None:
    full = step(worker_cpu_cores=13.6, main_cpu_cores=1.0)
    allowed = allow_for_contention(JUST_IN_TIME, full, 16.0)
    assert allowed is not None and allowed.input_ms is not None
    least_ms = (14.6 / 16) * 51.8 - 43.9
    assert allowed.input_ms.low == pytest.approx(least_ms)
    assert allowed.input_ms.low / 51.8 == pytest.approx(0.046, abs=0.05)  # the truth
    assert (allowed.input_ms.value, allowed.input_ms.high) == (
        JUST_IN_TIME.input_ms.value,  # type: ignore[union-attr]
        JUST_IN_TIME.input_ms.high,  # type: ignore[union-attr]
    )
    assert allowed.contended_ms == pytest.approx(7.9 - least_ms)
    assert "up to" in core_contention(allowed)


def test_mapping_batches_is_the_loops_own_on_full_cpus_too() -> None:
    pages = PageFacts(
        batch_bytes=1 << 26,
        faults_per_batch=1024,
        touch_ms=3.0,
        release_ms=2.5,
        faults_per_step=1030.0,
        extra_faults_per_step=1024.0,
    )
    full = step(worker_cpu_cores=13.6, main_cpu_cores=1.0)
    allowed = allow_for_contention(replace(JUST_IN_TIME, pages=pages), full, 16.0)
    assert allowed is not None and allowed.input_ms is not None
    assert allowed.input_ms.low == pytest.approx(5.5)
    assert allowed.contended_ms == pytest.approx(7.9 - 5.5)


def test_a_loader_that_starves_the_loop_on_full_cpus_stays_proven() -> None:
    full = step(worker_cpu_cores=1.8, main_cpu_cores=0.1)
    allowed = allow_for_contention(figures(50.0, 5.0), full, 2.0)
    assert allowed is not None and allowed.input_ms is not None
    assert allowed.input_ms.low == pytest.approx(0.95 * 50.0 - 5.0)


@pytest.mark.parametrize(
    ("worker_cores", "main_cores", "cpus"),
    [(1.0, 1.0, 16.0), (0.0, 2.0, 2.0), (None, 1.0, 2.0), (13.6, 1.0, None)],
    ids=["idle CPUs", "no workers", "not recorded", "CPUs not known"],
)
def test_elsewhere_the_interval_is_that_of_the_rounds(
    worker_cores: float | None, main_cores: float, cpus: float | None
) -> None:
    facts = step(worker_cpu_cores=worker_cores, main_cpu_cores=main_cores)
    assert allow_for_contention(JUST_IN_TIME, facts, cpus) is JUST_IN_TIME


def test_an_interval_that_reaches_so_far_already_is_left_alone() -> None:
    assert JUST_IN_TIME.input_ms is not None
    wide = replace(JUST_IN_TIME, input_ms=replace(JUST_IN_TIME.input_ms, low=-20.0))
    full = step(worker_cpu_cores=13.6, main_cpu_cores=1.0)
    assert allow_for_contention(wide, full, 16.0) is wide


# `quiet_loader` of two cores next to a program that is always busy: 15.4 of 228 ms in fetches, 2.5
# of it CPU time, its one worker idle 98 %. CPU time of fetches and counters are assumed.
WAITED = Mechanisms(
    wait_ms=Estimate(value=15.4, low=10.6, high=20.2, n=5),
    got_ms=Estimate(value=2.5, low=2.2, high=2.8, n=5),
    exposed=True,
    run_queue_ms=Estimate(value=0.0, low=-5.0, high=5.0, n=5),
    cpu_ms=Estimate(value=0.0, low=-5.0, high=5.0, n=5),
    interpreter_ms=Estimate(value=0.0, low=-1.0, high=1.0, n=5),
    work_ms=Estimate(value=4.0, low=3.8, high=4.2, n=5),
)
BESIDE = replace(
    figures(228.0, 210.0), input_ms=Estimate(value=18.0, low=3.0, high=33.0, n=5), mechanisms=WAITED
)


def other(cores: float) -> StepFacts:
    """A step next to programs that use so many CPUs."""
    used = CpuFacts(
        other_cores=cores, waiting_threads=None, train_wait_share=None, throttled_share=None
    )
    return step(wall_ms=228.0, worker_cpu_cores=0.0, cpu=used)


def test_batches_that_lay_ready_are_waited_for_because_of_the_neighbour() -> None:
    idle = workers(idle_share=0.98)
    claim = claimed(without_neighbours(BESIDE, other(1.6), idle, 2.0))
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value == pytest.approx(2.5)
    assert claim.neighbours_ms == pytest.approx(12.9)
    negative = replace(BESIDE, input_ms=Estimate(value=-9.0, low=-24.0, high=6.0, n=5))
    claimed_too = claimed(without_neighbours(negative, other(1.6), idle, 2.0))
    assert claimed_too is not None and claimed_too.input_ms is not None
    assert claimed_too.input_ms.value == pytest.approx(2.5)  # receiving is surely its own
    (_, text) = machine_notes(healthy(step=other(1.6), machine=machine(usable_cpus=2.0),
                                      ablation=claim))[0]  # fmt: skip
    assert "waits for its batches, 12.9 ms a step is waiting for a CPU" in text


def test_bursts_of_a_worker_that_idles_otherwise_stay_the_loaders() -> None:
    # Batches by length: 32 samples read ahead of eight batches. The worker idles 57 % of the time,
    # and the loop waits for the first of the eight while it reads.
    reading = workers(idle_share=0.57, unready_share=0.9, run_wait_share=0.0)
    claim = claimed(without_neighbours(BESIDE, other(1.6), reading, 2.0))
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.low == pytest.approx(3.0)  # of the rounds
    assert claim.input_ms.value == pytest.approx(0.9 * 15.4, rel=0.15)
    assert claim.neighbours_ms == pytest.approx(0.1 * 15.4)
    ready = workers(idle_share=0.98, unready_share=0.05, run_wait_share=0.0)
    claim = claimed(without_neighbours(BESIDE, other(1.6), ready, 2.0))
    assert claim is not None and claim.neighbours_ms == pytest.approx(12.9)
    late = workers(idle_share=0.98, unready_share=0.9, run_wait_share=0.95)  # it has no CPU
    claim = claimed(without_neighbours(BESIDE, other(1.6), late, 2.0))
    assert claim is not None and claim.neighbours_ms == pytest.approx(12.9)


def test_workers_that_start_each_epoch_are_no_neighbours_doing() -> None:
    # `three_loaders_short_epochs`: 342 ms at each boundary of 4 steps, its workers idle between.
    starting = replace(
        WAITED, wait_ms=Estimate(value=87.7, low=87.0, high=88.4, n=5), boundary_ms=85.5
    )
    facts = replace(
        figures(94.2, 0.7),
        input_ms=Estimate(value=93.5, low=70.0, high=117.0, n=5),
        mechanisms=starting,
    )
    claim = claimed(without_neighbours(facts, other(1.6), workers(idle_share=0.98), 2.0))
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value > 85.0


@pytest.mark.parametrize(
    ("cores", "idle_share"), [(0.1, 0.98), (1.6, 0.02), (1.6, None)],
    ids=["nothing else runs", "the worker is busy", "not recorded"],
)  # fmt: skip
def test_elsewhere_what_the_loop_waits_is_its_loaders(
    cores: float, idle_share: float | None
) -> None:
    some = workers(idle_share=idle_share)
    assert without_neighbours(BESIDE, other(cores), some, 2.0) is BESIDE
    claim = claimed(BESIDE)
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value == pytest.approx(15.6, abs=0.5)


# A batch of sixteen samples that each sleep 0.03 ms, made in the training process; two CPUs with
# two programs that are always busy: at each wake-up the thread waits for its turn.
LATE = replace(
    WAITED,
    got_ms=Estimate(value=0.9, low=0.8, high=1.0, n=5),
    queued_ms=Estimate(value=13.5, low=9.0, high=18.0, n=5),
    unqueued_ms=Estimate(value=1.9, low=1.6, high=2.2, n=5),
)


def test_late_wake_ups_are_no_cost_of_the_loader() -> None:
    facts = replace(BESIDE, mechanisms=LATE)
    claim = claimed(without_neighbours(facts, other(1.6), None, 2.0))
    assert claim is not None and claim.input_ms is not None
    assert 1.6 <= claim.input_ms.low <= claim.input_ms.value < 2.2
    assert claim.neighbours_ms == pytest.approx(13.5)


def test_what_a_batch_takes_beside_late_wake_ups_stays_the_loaders() -> None:
    # Four samples of 1.2 ms: 5 of 9 ms in fetches are theirs, whatever noisy rounds differ by.
    four = replace(
        LATE,
        wait_ms=Estimate(value=9.0, low=8.4, high=9.6, n=5),
        queued_ms=Estimate(value=3.8, low=3.4, high=4.2, n=5),
        unqueued_ms=Estimate(value=5.2, low=5.1, high=5.3, n=5),
    )
    for difference in (-9.0, 2.0, 18.0):
        found = Estimate(value=difference, low=difference - 15.0, high=difference + 15.0, n=5)
        facts = replace(BESIDE, input_ms=found, mechanisms=four)
        claim = claimed(without_neighbours(facts, other(1.6), None, 2.0))
        assert claim is not None and claim.input_ms is not None
        assert 4.0 < claim.input_ms.low <= claim.input_ms.value < 6.0


def test_one_noisy_round_beside_others_is_no_cost_of_batches_that_lay_ready() -> None:
    # One worker that is idle 86 % of the time, beside load 12: 25 ± 72 ms by one round, and its
    # fetches take 1.6 ms of CPU time and 9.4 ms of waiting for a CPU.
    once = replace(
        WAITED,
        wait_ms=Estimate(value=15.9, low=0.0, high=46.0, n=2),
        got_ms=Estimate(value=1.6, low=0.0, high=3.3, n=2),
        run_queue_ms=None,
    )
    found = Estimate(value=25.2, low=-47.0, high=97.4, n=1)
    facts = replace(figures(128.4, 103.2), input_ms=found, mechanisms=once)
    claim = claimed(without_neighbours(facts, other(1.6), workers(idle_share=0.86), 2.0))
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value < 0.05 * 128.4
    assert claim.input_ms.low < 1.6 and claim.input_ms.high == pytest.approx(97.4)


def test_of_a_shared_queue_workers_keep_their_part() -> None:
    # As much of the CPUs as the other programs: half of the queue is the loader's own doing, and
    # how much of it exactly is not known.
    beside = replace(other(1.0), worker_cpu_cores=1.0)
    kept = without_neighbours(replace(BESIDE, mechanisms=LATE), beside, None, 2.0)
    assert kept is not None and kept.mechanisms is not None and kept.mechanisms.wait_ms is not None
    assert kept.mechanisms.wait_ms.value == pytest.approx(15.4 - 13.5 / 2)
    assert kept.mechanisms.wait_ms.low == pytest.approx(1.6)
    assert kept.mechanisms.wait_ms.high == pytest.approx(20.2)


def beside_own_threads(wait_share: float | None) -> StepFacts:
    """Two CPUs, of which the training process uses 1.6 and other programs 0.4."""
    used = CpuFacts(
        other_cores=0.4, waiting_threads=None, train_wait_share=wait_share, throttled_share=None
    )
    return step(
        wall_ms=10.0,
        cpu=used,
        input_ms=6.0,
        queued_ms=5.0,
        main_cpu_cores=1.6,
        worker_cpu_cores=0.0,
    )


def test_of_a_shared_queue_the_loops_own_threads_keep_their_part() -> None:
    # A collate that fights its own OpenMP threads, beside a light program.
    surely = waits_without_neighbours(beside_own_threads(None), 2.0)
    assert surely is not None
    assert surely.input_ms == pytest.approx(6.0 - 5.0 * 0.4 / (0.4 + 0.6))
    # The thread stands ready half of the time: it used no more than 0.5 of the 1.6.
    known = waits_without_neighbours(beside_own_threads(0.5), 2.0)
    assert known is not None
    assert known.input_ms == pytest.approx(6.0 - 5.0 * 0.4 / (0.4 + 1.1))
    assert known.neighbours_ms == pytest.approx(5.0 * 0.4 / 1.5)


@pytest.mark.parametrize("unknown", ["worker_cpu_cores", "main_cpu_cores"])
def test_a_queue_is_put_down_to_others_only_where_the_loops_own_use_is_known(unknown: str) -> None:
    told = beside_own_threads(0.5)
    not_told = replace(told, **{unknown: None})  # type: ignore[arg-type]
    assert waits_without_neighbours(told, 2.0) is not told
    assert waits_without_neighbours(not_told, 2.0) is not_told


def test_what_a_quota_holds_back_is_no_neighbours_doing() -> None:
    beside = beside_own_threads(0.5)
    assert beside.cpu is not None
    held = replace(beside, cpu=replace(beside.cpu, throttled_share=0.9))
    assert waits_without_neighbours(held, 2.0) is held
    # Whose ever it is: what a trace calls the host's may be standing ready all the same.
    assert host_low_share(0.6, held, 0.0, 2.0) == pytest.approx(0.6)
    once = replace(beside, cpu=replace(beside.cpu, throttled_share=0.01))
    assert waits_without_neighbours(once, 2.0) is not once


def test_workers_that_compete_with_one_another_are_the_loaders() -> None:
    # Nothing else runs: eight workers on two CPUs, and the loop has no CPU when its batch comes.
    alone = replace(other(0.1), worker_cpu_cores=1.7)
    facts = replace(BESIDE, mechanisms=LATE)
    assert without_neighbours(facts, alone, workers(idle_share=0.02), 2.0) is facts


def test_a_hosts_share_beside_others_may_be_standing_ready() -> None:
    # `gan` beside three busy programs on two CPUs: 44 % host (14 % alone), half of the time ready.
    cpu = CpuFacts(
        other_cores=1.6, waiting_threads=None, train_wait_share=0.5, throttled_share=None
    )
    beside = step(wall_ms=56.2, cpu=cpu, queued_ms=2.7)
    assert host_low_share(0.44, beside, 0.0, 2.0) == 0.0
    assert host_low_share(0.70, beside, 0.0, 2.0) == pytest.approx(0.70 - (0.5 - 2.7 / 56.2))
    assert host_low_share(0.44, beside, 0.3, 2.0) == 0.3  # stack samples show as much
    # A loop that reads its own small files, 196 ms a step beside 1.9 CPUs of others: 162 of them it
    # stands ready in its fetches, and what is put down to the others is 70 % host.
    reads = replace(beside, wall_ms=Estimate.around(217.0, 1.0, n=9), queued_ms=171.0)
    reads = replace(reads, cpu=replace(cpu, train_wait_share=0.8))
    assert host_low_share(0.7, reads, 0.0, 2.0) == pytest.approx(0.7 - (0.8 - 171.0 / 217.0))
    put_down = replace(reads, neighbours_ms=137.0)
    assert host_low_share(0.7, put_down, 0.0, 2.0) == pytest.approx(0.7 - (0.8 - 34.0 / 217.0))
    by_rounds = replace(figures(217.0, 9.0), neighbours_ms=137.0)
    assert host_low_share(0.7, reads, 0.0, 2.0, by_rounds) == pytest.approx(
        0.7 - (0.8 - 171.0 / 217.0)
    )  # of waits for workers, whatever the thread queued
    parted = replace(by_rounds, mechanisms=replace(WAITED, parted=True))
    assert host_low_share(0.7, reads, 0.0, 2.0, parted) < 0.1  # type: ignore[operator]
    assert (
        host_low_share(0.44, replace(beside, cpu=replace(cpu, other_cores=0.1)), 0.0, 2.0) is None
    )
    assert host_low_share(0.44, replace(beside, cpu=None), 0.0, 2.0) is None
    unknown = replace(beside, cpu=replace(cpu, train_wait_share=None))
    assert host_low_share(0.44, unknown, 0.0, 2.0) is None


def test_a_host_verdict_is_uncertain_where_the_loop_waits_more_than_is_claimed() -> None:
    # Full CPUs: the wait is no floor of a claim from noisy rounds, and would be the host's.
    noisy = replace(
        figures(40.0, 41.0),
        input_ms=Estimate(value=-1.0, low=-20.0, high=18.0, n=2),
        contended_ms=5.0,
        mechanisms=replace(WAITED, wait_ms=Estimate(value=18.0, low=17.0, high=19.0, n=2)),
    )
    claim = claimed(noisy)
    assert claim is not None and claim.input_ms is not None
    assert claim.input_ms.value == 0.0
    unclaimed = unclaimed_wait_share(claim)
    assert unclaimed == pytest.approx(17.0 / 40.0)
    shares = Shares(compute=0.55, communication=0.0, copy=None, input=0.0, host=0.45, other=0.0)
    told = replace(healthy(ablation=claim), shares=shares, shares_low={"host": 0.45})
    assert judge_run(told) == ("host", "high")
    assert judge_run(replace(told, shares_low={"host": 0.45 - unclaimed})) == ("host", "uncertain")
    # Rounds that deny the wait, and claims that hold it.
    tight = replace(noisy, input_ms=Estimate(value=0.2, low=-0.5, high=0.9, n=5))
    assert unclaimed_wait_share(claimed(tight)) == 0.0
    assert unclaimed_wait_share(claimed(replace(noisy, contended_ms=None))) == 0.0
    assert unclaimed_wait_share(None) == 0.0


def test_a_run_without_an_ablation_leaves_late_wake_ups_out_too() -> None:
    beside = replace(other(1.6), input_ms=15.4, queued_ms=13.5)
    without = waits_without_neighbours(beside, 2.0)
    assert without is not None
    assert (without.input_ms, without.input_low_ms) == pytest.approx((1.9, 1.9))
    shared = waits_without_neighbours(replace(beside, worker_cpu_cores=1.6), 2.0)
    assert shared is not None
    assert (shared.input_ms, shared.input_low_ms) == pytest.approx((15.4 - 13.5 / 2, 1.9))
    assert without.neighbours_ms == pytest.approx(13.5)
    (_, text) = machine_notes(healthy(step=without, machine=machine(usable_cpus=2.0)))[0]
    assert "13.5 ms a step is waiting for a CPU that they have" in text
    alone = replace(other(0.1), input_ms=15.4, queued_ms=13.5)
    assert waits_without_neighbours(alone, 2.0) is alone
    not_told = replace(other(1.6), input_ms=15.4)
    assert waits_without_neighbours(not_told, 2.0) is not_told
    assert waits_without_neighbours(None, 2.0) is None


class Spinning(Dataset[torch.Tensor]):
    """Samples of 4 ms of CPU time."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass
        return torch.full((4,), float(index))


@pytest.mark.slow
def test_real_workers_that_fill_the_cpus_widen_the_interval() -> None:
    n_workers = 2 * len(os.sched_getaffinity(0))

    def loop() -> None:
        trainer = Trainer()
        for x in DataLoader(Spinning(), batch_size=4, num_workers=n_workers):
            trainer.step(x)

    kinds = ("plain", "no_input", "plain", "no_input", "plain", "no_input")
    asked = [WindowRequest(id=i, mode=m, n_steps=24) for i, m in enumerate(kinds, 1)]  # type: ignore[arg-type]
    run = watch(loop, *asked)
    rounds = [
        Round(plain=a, no_input=b) for a, b in zip(run.windows[::2], run.windows[1::2], strict=True)
    ]
    facts = step_facts(run.observed, [r.plain for r in rounds])
    ablation = ablation_facts(rounds, steps_per_epoch=None, boundary_ms=None)
    assert facts is not None and facts.worker_cpu_cores is not None
    assert ablation is not None and ablation.input_ms is not None and ablation.no_input_ms
    # What they got of the CPUs, whatever else runs, stands for all of them here.
    used = facts.worker_cpu_cores + (facts.main_cpu_cores or 0.0)
    allowed = allow_for_contention(ablation, facts, used)
    assert allowed is not None and allowed.input_ms is not None
    least_ms = ablation.plain_ms.value - ablation.no_input_ms.value
    assert allowed.input_ms.low == pytest.approx(min(ablation.input_ms.low, least_ms), rel=0.01)
    assert allow_for_contention(ablation, facts, 4 * used) is ablation
    assert facts.worker_cpu_cores > 3 * (facts.main_cpu_cores or 0.0)  # they do the work


def test_workers_whose_shards_have_ended_do_not_hide_the_busy_one() -> None:
    # Of three workers two have come to their end: idle on average, and the loop waits for one.
    uneven = workers(idle_share=0.65, least_idle_share=0.03)
    assert without_neighbours(BESIDE, other(1.6), uneven, 2.0) is BESIDE
    rested = workers(idle_share=0.65, least_idle_share=0.6)
    assert without_neighbours(BESIDE, other(1.6), rested, 2.0) is not BESIDE


def test_a_little_input_beside_others_is_no_certain_verdict() -> None:
    """Beside a busy program rounds said 8 % (5 to 14) of a worker that idles 94 %, runs apart 3."""

    def judged(share: float, others: float, idle: float = 0.2) -> tuple[str, str]:
        cpu = CpuFacts(
            other_cores=others, waiting_threads=None, train_wait_share=0.3, throttled_share=None
        )
        split = shares(input_=share, copy=None)
        return judge_run(
            healthy(
                shares=split,
                shares_low={"input": 0.7 * share},
                trace=trace(shares=split, has_accelerator=False),
                step=step(clock="host", cpu=cpu),
                machine=machine(usable_cpus=2.0),
                workers=workers(idle_share=idle),
            )
        )

    assert judged(0.08, 1.0) == ("input", "uncertain")
    assert judged(0.08, 0.1) == ("input", "moderate")
    assert judged(0.12, 1.0) == ("input", "moderate")
    assert judged(0.12, 1.0, idle=0.85) == ("input", "uncertain")
    assert judged(0.12, 0.1, idle=0.85) == ("input", "moderate")
    assert judged(0.3, 1.0, idle=0.85) == ("input", "high")
