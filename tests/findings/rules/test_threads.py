"""Threads that compete: of workers, and the loop's own, established by a trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.advice.code import edits_for
from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CpuFacts, Mechanisms, ThreadTrial
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.contention import (
    gil_contention,
)
from loaderdoctor.findings.rules.threads import loop_slowed_by_workers, thread_oversubscription
from loaderdoctor.settings import Settings
from tests.findings.builders import (
    healthy,
    loader,
    machine,
    shares,
    step,
    trace,
    with_exposed,
    workers,
)
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import FULL_CPU, LOW, UNSEEN, with_pages


def cpu(**changes: Any) -> CpuFacts:
    """Of two threads on two CPUs that nobody else uses (`benchmarks/contention.py --alone`)."""
    quiet = {"other_cores": 0.16, "waiting_threads": 0.14, "train_wait_share": 0.02}
    return CpuFacts(**{**quiet, "throttled_share": None, **changes})


def on_cpu(cpu_: CpuFacts | None, **changes: Any) -> Facts:
    """A loop without workers that computes on two CPUs with two threads."""
    parts = {"usable_cpus": 2.0, "n_threads": 2, **changes.pop("machine_", {})}
    steps = {"main_cpu_cores": 1.9, "worker_cpu_cores": 0.0, **changes.pop("step_", {})}
    facts = healthy(
        shares=shares(copy=None),
        trace=trace(has_accelerator=False, copies=()),
        machine=machine(device_name=None, device_memory_bytes=None, **parts),
        loaders=(
            loader(settings={"num_workers": 0, "prefetch_factor": None, "pin_memory": False}),
        ),
        transfers=(),
        workers=workers(n_workers=0, batch_ms=0.2, cores=()),
        step=step(cpu=cpu_, raw_wait_ms=0.2, clock="host", **steps),
    )
    return replace(facts, **changes)


# One program that is always busy next to the loop: 8.2 ms a step become 36.8.
NEXT_TO_ONE = cpu(other_cores=0.9, waiting_threads=0.86, train_wait_share=0.51)
HEALTHY = on_cpu(cpu())


def tried(
    n: int, step_ms: float, plain_ms: float, margin: float, *, decided: bool = True
) -> ThreadTrial:
    gain = plain_ms - step_ms
    return ThreadTrial(
        n_threads=n,
        step_ms=Estimate(value=step_ms, low=step_ms - margin, high=step_ms + margin, n=3),
        gain_ms=Estimate(value=gain, low=gain - margin, high=gain + margin, n=3),
        decided=decided,
    )


def slowed(
    *, ran_ms: float, queued_ms: float = 0.0, margin: float = 0.1, facts: Facts = UNSEEN
) -> Facts:
    """The run, whose training thread takes so much more CPU time beside its workers."""

    def around(ms: float) -> Estimate:
        return Estimate(value=ms, low=ms - margin, high=ms + margin, n=3)

    assert facts.ablation is not None
    seen = Mechanisms(
        wait_ms=around(0.2),
        exposed=False,
        run_queue_ms=around(queued_ms),
        cpu_ms=around(ran_ms),
        interpreter_ms=around(2.0),  # it copies without the lock, but that is not known
    )
    return replace(facts, ablation=replace(facts.ablation, mechanisms=seen))


SLOWED = slowed(ran_ms=1.5)

CASES = (
    Case(
        rule=thread_oversubscription,
        ill=with_exposed(input_=0.6, workers=workers(n_threads=8, cpu_share=2.5)),
        share=0.6,
        severity=Severity.HIGH,
        evidence={"n_threads": 8, "num_workers": 4, "usable_cpus": 8.0},
        says=("4 workers of 8 library threads each compete for 8 usable CPUs",),
        silent={
            "CPUs are free": with_exposed(input_=0.6, workers=workers(n_threads=8)),
            "one thread each": with_exposed(input_=0.6, step=FULL_CPU),
            LOW: healthy(workers=workers(n_threads=8, cpu_share=2.5)),
        },
        missing={
            "machine": with_exposed(
                input_=0.6, workers=workers(n_threads=8, cpu_share=2.5), machine=None
            ),
            "threads": with_exposed(input_=0.6, workers=workers(n_threads=None, cpu_share=2.5)),
        },
    ),
    Case(
        rule=loop_slowed_by_workers,
        ill=SLOWED,
        share=0.15,  # 1.5 ms of the 1.84 that no wait shows
        severity=Severity.MODERATE,
        evidence={"slowed_ms_per_step": 1.5, "input_ms_per_step": 1.84, "num_workers": 4},
        says=("waits only 0.20 ms", "beside its 4 workers", "1.50 ms longer"),
        silent={
            "it hardly runs for longer": slowed(ran_ms=0.4),
            "that is mapping its batches": slowed(ran_ms=1.5, facts=with_pages()),
            "within the noise": slowed(ran_ms=1.5, margin=1.6),
            "the CPU is full": replace(
                SLOWED, step=step(raw_wait_ms=0.2, worker_cpu_cores=6.5, main_cpu_cores=1.0)
            ),
            "a thread in place of workers": replace(
                SLOWED, loaders=(loader(settings={"num_workers": 0, "background": "host"}),)
            ),
        },
        missing={"mechanisms": UNSEEN},
    ),
)
test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_a_thread_that_runs_for_longer_is_not_said_to_wait_for_the_interpreter() -> None:
    assert gil_contention(UNSEEN) is not None
    assert gil_contention(SLOWED) is None
    assert gil_contention(slowed(ran_ms=0.0)) is not None
    queued = slowed(ran_ms=0.2, queued_ms=1.2)
    assert gil_contention(queued) is None and loop_slowed_by_workers(queued) is not None
    for said in (gil_contention(UNSEEN), loop_slowed_by_workers(queued)):
        assert said is not None and "without it the step is 1.84 of 10.0 ms shorter" in said.summary


def test_cheaper_samples_and_fewer_workers_are_proposed_for_a_slowed_loop() -> None:
    many = loader(settings={"num_workers": 16, "pin_memory": True})
    facts = replace(SLOWED, loaders=(many,), workers=workers(n_workers=16, batch_ms=30.0))
    found = find(facts)
    assert Kind.LOOP_SLOWED_BY_WORKERS in {f.kind for f in found}
    changes = [c.settings.num_workers for c in prescribe(facts, found).candidates]
    assert any(n is not None and n < 16 for n in changes)


def test_a_loop_without_its_pinning_thread_is_tried_where_that_is_accused() -> None:
    made = prescribe(UNSEEN, find(UNSEEN)).candidates
    assert any(c.settings.pin_memory is False and Kind.GIL_CONTENTION in c.kinds for c in made)


def test_starved_thread_pools_on_a_full_cpu_are_oversubscription() -> None:
    busy = workers(n_threads=8, cpu_share=0.3)
    assert thread_oversubscription(with_exposed(input_=0.6, workers=busy, step=FULL_CPU))


def test_the_steps_own_threads_fight_the_workers_on_a_cpu_machine() -> None:
    facts = with_exposed(
        input_=0.4,
        step=step(raw_wait_ms=0.2, worker_cpu_cores=1.0, main_cpu_cores=0.9),
        trace=trace(has_accelerator=False),
        machine=machine(usable_cpus=2.0, n_threads=2, device_name=None),
    )
    finding = thread_oversubscription(facts)
    assert finding is not None
    assert "torch.set_num_threads(1)" in finding.predictions[0].sentence
    assert "own 2 threads and 4 workers compete for CPUs: 2 are usable" in finding.summary
    assert gil_contention(facts) is None


def test_thread_pools_that_queue_for_cpus_are_oversubscription_though_the_cpu_has_room() -> None:
    # 4 workers at half a CPU each fill 2 of 6: the CPU as a whole has room.
    room = machine(usable_cpus=6.0)
    queued = workers(n_threads=2, cpu_share=0.5, run_wait_share=0.65)
    assert thread_oversubscription(with_exposed(input_=0.6, workers=queued, machine=room))
    alone = workers(n_threads=2, cpu_share=0.5, run_wait_share=0.02)
    assert not thread_oversubscription(with_exposed(input_=0.6, workers=alone, machine=room))


def test_a_loop_that_rightly_uses_all_its_cores_is_left_in_peace() -> None:
    assert thread_oversubscription(HEALTHY) is None


def test_threads_that_find_no_cpu_are_suspected_until_fewer_were_tried() -> None:
    finding = thread_oversubscription(on_cpu(NEXT_TO_ONE))
    assert finding is not None
    assert finding.severity is Severity.UNCERTAIN
    assert finding.share == pytest.approx(0.51)
    assert finding.evidence["threads_of"] == "loop"
    assert finding.evidence["other_cpu_cores"] == 0.9
    assert "0.9 of them stand ready with no CPU free" in finding.summary
    (prediction,) = finding.predictions
    assert prediction.setting == "num_threads"
    assert "torch.set_num_threads(1)" in prediction.sentence


def test_a_trial_that_is_faster_establishes_it_with_the_measured_share() -> None:
    facts = on_cpu(NEXT_TO_ONE, thread_trials=(tried(1, 6.7, 32.0, 3.0),))
    finding = thread_oversubscription(facts)
    assert finding is not None
    assert finding.severity is Severity.HIGH
    assert finding.share == pytest.approx(1 - 6.7 / 32.0)
    assert (
        "With 1 thread it takes 6.70 ms instead of 32.0 ms, measured in this run" in finding.summary
    )
    assert finding.evidence["best_n_threads"] == 1


def test_a_trial_that_is_slower_clears_it_whatever_it_looked_like() -> None:
    assert (
        thread_oversubscription(on_cpu(NEXT_TO_ONE, thread_trials=(tried(1, 14.0, 10.0, 0.5),)))
        is None
    )


def test_threads_that_only_spin_against_each_other_are_found_by_the_trial_alone() -> None:
    facts = replace(HEALTHY, thread_trials=(tried(1, 7.0, 10.0, 0.4),))
    finding = thread_oversubscription(facts)
    assert finding is not None
    assert finding.severity is Severity.HIGH
    assert "they spend more on one another than they save" in finding.summary


def test_a_gain_within_the_noise_proves_nothing() -> None:
    noisy = (tried(1, 20.0, 30.0, 15.0),)
    assert thread_oversubscription(replace(HEALTHY, thread_trials=noisy)) is None
    still = thread_oversubscription(on_cpu(NEXT_TO_ONE, thread_trials=noisy))
    assert still is not None
    assert still.severity is Severity.UNCERTAIN
    inconclusive = (tried(1, 20.0, 30.0, 15.0, decided=False),)
    assert thread_oversubscription(replace(HEALTHY, thread_trials=inconclusive)) is None


def test_more_threads_than_a_quota_allows_need_no_trial() -> None:
    held = cpu(waiting_threads=5.0, train_wait_share=0.6, throttled_share=0.9, other_cores=0.0)
    finding = thread_oversubscription(on_cpu(held, machine_={"n_threads": 16}))
    assert finding is not None
    assert finding.severity is Severity.HIGH
    assert "the quota of 2 CPUs held them back in 90 % of its periods" in finding.summary
    assert "torch.set_num_threads(2)" in finding.predictions[0].sentence


@pytest.mark.parametrize(
    "facts",
    [
        on_cpu(NEXT_TO_ONE, machine_={"n_threads": 1}),
        on_cpu(NEXT_TO_ONE, machine_={"n_threads": None}),
        on_cpu(NEXT_TO_ONE, machine=None),
        on_cpu(None),
        on_cpu(cpu(waiting_threads=None, train_wait_share=None)),
        on_cpu(cpu(throttled_share=0.1)),
        on_cpu(cpu(throttled_share=0.9)),  # two threads, two CPUs: others of the group use it up
    ],
    ids=["one thread", "threads unknown", "no machine", "not recorded", "no waits recorded",
         "seldom held back", "no more threads than CPUs"],
)  # fmt: skip
def test_elsewhere_it_is_silent(facts: Facts) -> None:
    assert thread_oversubscription(facts) is None


def thread_settings(facts: Facts) -> list[int | None]:
    found = prescribe(facts, find(facts)).candidates
    return [c.settings.num_threads for c in found if c.settings.num_threads]


def test_fewer_threads_are_tried_where_they_fight_with_code_and_caution() -> None:
    facts = on_cpu(NEXT_TO_ONE)
    (candidate,) = [c for c in prescribe(facts, find(facts)).candidates if c.settings.num_threads]
    assert candidate.settings == Settings(num_threads=1)
    assert candidate.live
    assert candidate.kinds == (Kind.THREAD_OVERSUBSCRIPTION,)
    assert candidate.predicted_step_ms == pytest.approx(10.0 * 0.49)
    (edit,) = edits_for(facts, candidate.settings)
    assert "torch.set_num_threads(1)" in edit.after
    assert "OMP_NUM_THREADS=1" in edit.after
    assert candidate.caution is not None
    assert "last bits" in candidate.caution
    # The example for workers' threads is no answer to the loop's own.
    assert not [a for a in prescribe(facts, find(facts)).advice if a.kind in candidate.kinds]


def test_on_a_cpu_several_threads_at_work_are_tried_too_since_spinning_looks_like_work() -> None:
    assert find(HEALTHY) == ()
    assert thread_settings(HEALTHY) == [1]
    assert thread_settings(on_cpu(cpu(), step_={"main_cpu_cores": 0.9})) == []
    assert thread_settings(on_cpu(cpu(), machine_={"n_threads": 1})) == []


def test_an_accelerator_alone_is_no_reason_to_try_fewer_threads() -> None:
    facts = healthy(step=step(cpu=cpu(), main_cpu_cores=1.9))
    assert facts.machine is not None and facts.machine.device_name is not None
    assert thread_settings(facts) == []


def test_many_threads_are_tried_at_what_is_free_at_half_and_at_one() -> None:
    crowd = cpu(other_cores=9.8, waiting_threads=4.0, train_wait_share=0.3)
    facts = on_cpu(crowd, machine_={"usable_cpus": 16.0, "n_threads": 16})
    assert sorted(n or 0 for n in thread_settings(facts)) == [1, 6, 8]


def test_a_source_that_is_no_loader_can_still_have_fewer_threads() -> None:
    facts = on_cpu(NEXT_TO_ONE)
    foreign = replace(facts, loaders=(loader(kind="foreign"),))
    assert thread_settings(foreign) == [1]


def test_a_loader_of_tiny_samples_hides_no_larger_fight_of_threads() -> None:
    facts = with_exposed(input_=0.1, machine=machine(usable_cpus=2.0, n_threads=2))
    both = replace(facts, step=step(cpu=NEXT_TO_ONE), thread_trials=(tried(1, 3.0, 10.0, 1.0),))
    assert Kind.THREAD_OVERSUBSCRIPTION in {f.kind for f in find(both)}
