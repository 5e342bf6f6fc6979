"""What a pool of workers brings a step to: by the mean, and at best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CpuFacts, Mechanisms
from loaderdoctor.findings.input_parts import (
    least_rest_ms,
    least_without_ms,
    most_of,
    pace_kept,
    pool_ms,
)
from tests.findings.builders import estimate, loader, step, with_exposed, workers


def two_short(**more: object) -> Facts:
    """Two workers that take 40 ms for a batch each; the rest of the 10 ms step is 2."""
    facts = with_exposed(
        input_=0.8,
        loaders=(loader(settings={"num_workers": 2}),),
        workers=workers(n_workers=2, batch_ms=40.0, cpu_share=0.1, idle_share=0.0),
        step=step(worker_cpu_cores=0.2, main_cpu_cores=0.1),
    )
    return replace(facts, **more)  # type: ignore[arg-type]


def test_at_best_is_never_above_the_mean() -> None:
    facts = two_short()
    for n in (1, 2, 4, 8, 32):
        (mean, _), (least, _) = pool_ms(facts, n), pool_ms(facts, n, at_best=True)
        assert mean is not None and least is not None
        assert 0 < least <= mean


def test_what_workers_queue_for_a_cpu_is_not_in_what_a_batch_takes_at_best() -> None:
    """On a machine that others use too, a batch takes longer than it has to."""
    crowded = workers(n_workers=2, batch_ms=40.0, cpu_share=0.1, idle_share=0.0, run_wait_share=0.5)
    facts = two_short(workers=crowded)
    assert pool_ms(facts, 4)[0] == pytest.approx(10.0)
    assert pool_ms(facts, 4, at_best=True)[0] == pytest.approx(0.99 * 5.0)


def test_nor_is_what_a_loop_that_makes_its_own_batches_stood_without_a_cpu() -> None:
    cpu = CpuFacts(
        other_cores=1.0, waiting_threads=0.3, train_wait_share=0.25, throttled_share=None
    )
    facts = with_exposed(
        input_=0.8,
        loaders=(loader(settings={"num_workers": 0, "prefetch_factor": None}),),
        workers=None,
        step=step(raw_wait_ms=8.0, worker_cpu_cores=None, cpu=cpu),
    )
    assert pool_ms(facts, 1)[0] == pytest.approx(8.0)
    assert pool_ms(facts, 1, at_best=True)[0] == pytest.approx(0.99 * 0.75 * 8.0)


def test_the_rest_of_the_step_counts_by_the_lower_end_of_its_interval() -> None:
    facts = two_short()
    assert facts.ablation is not None
    noisy = replace(facts.ablation, no_input_ms=estimate(2.0, 0.6))
    assert pool_ms(two_short(ablation=noisy), 32, at_best=True)[0] == pytest.approx(1.4)
    # One short window tells next to nothing: the pool is what bounds the step.
    blind = replace(facts.ablation, no_input_ms=estimate(2.0, 5.0))
    assert pool_ms(two_short(ablation=blind), 32, at_best=True)[0] == pytest.approx(
        0.99 * 40.0 / 32
    )


def test_a_window_that_a_hiccup_took_part_in_bounds_nothing() -> None:
    """Ready batches seen once at 12 ms, which the loop does in 5: "at best 6" would be beaten."""
    facts = two_short()
    assert facts.ablation is not None and facts.step is not None
    seen = replace(
        facts.ablation,
        plain_ms=estimate(20.0, 20.0),
        no_input_ms=estimate(12.0, 12.5),
        no_copy_ms=estimate(12.0, 12.5),
        input_ms=estimate(8.0, 17.0),
    )
    once = two_short(ablation=seen, step=replace(facts.step, wall_ms=estimate(20.0, 20.0)))
    assert least_rest_ms(once) == 0.0
    assert pace_kept(once) == 0.0
    assert most_of(once, "input") == pytest.approx(20.0 / 8.0)  # all of the step
    assert least_without_ms(once, 8.0) == 0.0
    assert least_without_ms(once, 8.0, "copy") == 0.0


def test_ready_batches_own_mean_counts_unless_the_claim_contradicts_it() -> None:
    """A claim carries the step's noise too; what steps with ready batches took does not."""
    facts = two_short()
    assert facts.ablation is not None
    claim = replace(facts.ablation, no_input_ms=estimate(2.1, 1.0))
    raw = replace(facts.ablation, no_input_ms=estimate(2.0, 0.1))
    assert least_rest_ms(two_short(ablation=claim)) == pytest.approx(1.1)
    both = two_short(ablation=replace(claim, raw=raw))
    assert least_rest_ms(both) == pytest.approx(1.9)
    # Two that tell the same time are not chosen from: the better of two lows is beaten more often.
    wide = replace(raw, no_input_ms=estimate(2.0, 1.5))
    assert least_rest_ms(two_short(ablation=replace(claim, raw=wide))) == pytest.approx(0.5)
    # Where they contradict each other, the bound is below both.
    slow = replace(raw, no_input_ms=estimate(3.0, 0.1))
    assert least_rest_ms(two_short(ablation=replace(claim, raw=slow))) == pytest.approx(1.1)


@pytest.mark.parametrize(("exposed", "added"), [(True, 0.8), (False, 0.0)])
def test_receiving_is_left_where_workers_are_and_waits_are_the_steps(
    exposed: bool, added: float
) -> None:
    seen = Mechanisms(
        wait_ms=estimate(8.0),
        got_ms=estimate(0.9, 0.1),
        exposed=exposed,
        run_queue_ms=None,
        cpu_ms=None,
        interpreter_ms=None,
    )
    facts = two_short()
    assert facts.ablation is not None
    facts = two_short(ablation=replace(facts.ablation, mechanisms=seen))
    assert pool_ms(facts, 32, at_best=True)[0] == pytest.approx(1.9 + added)
    alone = replace(facts, loaders=(loader(settings={"num_workers": 0}),))
    assert pool_ms(alone, 32, at_best=True)[0] == pytest.approx(1.9)


def test_no_change_takes_less_than_the_rest_nor_saves_more_than_the_part_may_cost() -> None:
    facts = two_short()  # a step of 10 ms ± 1 %, input 8 ± 0.1
    assert least_without_ms(facts, 4.0) == pytest.approx(9.9 - 4.0 * 8.1 / 8.0)
    assert least_without_ms(facts, 8.0) == pytest.approx(1.9)
    assert least_without_ms(replace(facts, ablation=None), 4.0) == pytest.approx(9.9 - 4.0)
    assert least_without_ms(replace(facts, step=None, trace=None), 4.0) is None
