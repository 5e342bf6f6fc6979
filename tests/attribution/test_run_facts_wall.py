"""All of the run's time, spread over its training steps."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest

from loaderdoctor import format as fmt
from loaderdoctor.attribution.run_facts import wall_facts
from loaderdoctor.attribution.step import step_facts
from loaderdoctor.attribution.verdict import judge_run, of_wall, with_elsewhere
from loaderdoctor.facts.loop import OutsideFacts, StepFacts, WallFacts
from loaderdoctor.findings.rules import find
from loaderdoctor.instrument.wire.records import OutsideRecord, WallRecord
from loaderdoctor.report.words.summary import cost_sentence, verdict_sentence
from tests.attribution.builders import observed, window
from tests.findings.builders import healthy, with_exposed

MS = 1_000_000


def step(ms: float = 10.0, steps_per_epoch: int = 100) -> StepFacts:
    w = window("plain", [ms] * 20)
    made = step_facts(observed(steps_per_epoch=steps_per_epoch), [w, w])
    assert made is not None
    return made


def one(what: Literal["pass", "save"] = "pass", **changes: Any) -> OutsideRecord:
    """20 passes of 50 ms, every five steps, the first of them of 90."""
    known = {
        "site": "train.py:9", "n": 20, "n_visits": 20, "first_step": 5, "last_step": 100,
        "n_timed": 20, "timed_ns": (19 * 50 + 90) * MS, "first_ns": 90 * MS, "wait_ns": 0,
        "n_batches": 80,
    }  # fmt: skip
    return OutsideRecord(what=what, **{**known, **changes})


def wall(*outside: OutsideRecord, step_: StepFacts | None = None, **changes: Any) -> WallFacts:
    record = WallRecord(**{"n_steps": 100, "outside": outside, **changes})
    made = wall_facts(record, step_ or step())
    assert made is not None
    return made


def test_passes_are_spread_over_the_steps_between_them_without_the_cold_first() -> None:
    found = wall(one())
    assert found.outside[0].seconds == pytest.approx(0.05)
    assert found.outside_ms == pytest.approx(10.0)
    assert found.total_ms == pytest.approx(20.0)
    assert found.outside_share == found.low_share == pytest.approx(0.5)


def test_two_passes_in_a_row_count_twice() -> None:
    found = wall(one(n=40, n_timed=40, timed_ns=40 * 50 * MS, first_ns=50 * MS))
    assert found.outside_ms == pytest.approx(20.0)


def test_once_an_epoch_is_spread_over_the_epoch_even_if_seen_once() -> None:
    once = one(n=1, n_visits=1, last_step=5, n_at_epoch_end=1, n_timed=1, timed_ns=90 * MS)
    found = wall(once, n_epochs=1)
    assert found.outside_ms == pytest.approx(0.9)
    assert found.low_share == 0.0  # it may have been the slowest


def test_validation_behind_every_second_epoch_costs_half() -> None:
    second = one(n=5, n_visits=5, n_at_epoch_end=5)
    assert wall(second, n_epochs=10).outside[0].every_steps == pytest.approx(200)


def test_what_was_seen_once_within_an_epoch_has_no_period_and_no_cost() -> None:
    found = wall(one(n=1, n_visits=1, last_step=5, n_timed=1, timed_ns=90 * MS))
    assert found.outside[0].ms_per_step is None
    assert found.total_ms == found.step_ms


def test_what_no_plain_step_timed_is_left_out() -> None:
    assert wall(one(n_timed=0, timed_ns=0)).outside == ()


def test_passes_hold_no_more_than_a_step_leaves_them() -> None:
    # 100 ms passes behind 60 ms crossings of 10 ms steps: the pass began by waiting for the device.
    found = wall(
        one(timed_ns=20 * 100 * MS, first_ns=100 * MS),
        n_crossings=20,
        crossings_ns=20 * 60 * MS,
        crossings_known_ns=20 * 100 * MS,
    )
    assert found.outside[0].seconds == pytest.approx(0.05)


@pytest.mark.parametrize(("crossing_ms", "n"), [(60, 1), (70, 1), (120, 2)])
def test_other_work_next_to_a_pass_is_more_than_a_slow_step(crossing_ms: int, n: int) -> None:
    found = wall(
        one(),
        n_crossings=20,
        crossings_ns=20 * crossing_ms * MS,
        crossings_known_ns=20 * 50 * MS,
    )
    assert len(found.outside) == n


def test_work_between_epochs_is_spread_over_the_epoch() -> None:
    found = wall(n_gaps=3, gaps_ns=3 * 500 * MS, gaps_loader_ns=3 * 100 * MS, n_epochs=3)
    assert [(p.what, p.n) for p in found.outside] == [("other", 3)]
    assert found.outside_ms == pytest.approx(4.0)
    assert wall(n_gaps=3, gaps_ns=30 * MS, n_epochs=3).outside == ()  # 0.1 of 10 ms a step


def test_a_loop_that_leaves_its_passes_early_ends_few_epochs() -> None:
    # One pass of 100 steps ran out; what lies between the others is in the time of their steps.
    found = wall(n_steps=4000, n_gaps=1, gaps_ns=4000 * MS, n_epochs=1)
    assert [p.every_steps for p in found.outside] == [2000.0]


def test_what_each_step_holds_is_in_its_time_already() -> None:
    found = wall(one("save", n=100, n_visits=100, first_step=1, timed_ns=20 * 4 * MS,
                     first_ns=4 * MS), in_steps=True)  # fmt: skip
    assert found.total_ms == found.step_ms == pytest.approx(10.0)
    assert found.own_ms == pytest.approx(6.0)


def test_no_account_no_wall() -> None:
    assert wall_facts(None, step()) is None
    assert wall_facts(WallRecord(n_steps=5), None) is None
    assert wall().total_ms == pytest.approx(10.0)


# ---------------------------------------------------------------- the verdict


def outside(ms: float, *, n: int = 20, in_steps: bool = False) -> WallFacts:
    """Next to a step of 10 ms."""
    part = OutsideFacts(
        what="validation", site="train.py:9", seconds=ms / 100, n=n, every_steps=10,
        in_steps=in_steps,
    )  # fmt: skip
    return WallFacts(step_ms=10.0, outside=(part,), n_steps=200)


@pytest.mark.parametrize(
    ("facts", "bound", "severity"),
    [
        (healthy(wall=outside(40.0)), "outside", "high"),
        (healthy(wall=outside(40.0, n=1)), "outside", "uncertain"),
        (healthy(wall=outside(1.0)), "outside", "moderate"),
        (healthy(wall=outside(0.3)), "compute", "none"),
        (healthy(wall=WallFacts(step_ms=10.0, outside=(), n_steps=200)), "compute", "none"),
        (with_exposed(input_=0.5, wall=outside(2.0)), "input", "high"),
        (with_exposed(input_=0.5, wall=outside(6.0)), "outside", "high"),  # 6 against 5 of 16
        (with_exposed(input_=0.38, wall=outside(36.0)), "outside", "high"),
        (with_exposed(input_=0.22, wall=outside(0.9)), "input", "high"),
        (with_exposed(input_=0.22, wall=outside(1.5)), "input", "moderate"),
    ],
)
def test_the_largest_of_all_the_time_is_the_verdict(facts: Any, bound: str, severity: str) -> None:
    assert judge_run(facts) == (bound, severity)


def elsewhere(ms: float, wait_share: float, *, n: int = 20, in_steps: bool = False) -> WallFacts:
    """Next to a step of 10 ms, so much of training on another loader."""
    part = OutsideFacts(
        what="training", site="tune.py:9", seconds=ms / 100, n=n, every_steps=10,
        wait_share=wait_share, n_batches=10, in_steps=in_steps,
    )  # fmt: skip
    return WallFacts(step_ms=10.0, outside=(), n_steps=200, elsewhere=(part,))


@pytest.mark.parametrize(
    ("clock", "input_", "wall", "bound", "severity"),
    [
        ("host", 0.0, elsewhere(10.0, 0.8), "input", "high"),  # 8 of 20
        ("host", 0.0, elsewhere(10.0, 0.05), "compute", "none"),
        ("host", 0.0, elsewhere(10.0, 0.8, in_steps=True), "compute", "none"),
        ("host", 0.3, elsewhere(10.0, 0.0), "input", "moderate"),  # 3 of 20
        ("host", 0.3, elsewhere(10.0, 0.3), "input", "high"),
        ("device", 0.0, elsewhere(10.0, 0.8), "compute", "none"),  # what of it is hidden?
        # Seen once: it may be one of many epochs that has such a pass.
        ("host", 0.0, elsewhere(10.0, 0.8, n=1), "input", "uncertain"),
        ("host", 0.1, elsewhere(10.0, 0.8, n=1), "input", "moderate"),
        ("host", 0.3, elsewhere(10.0, 0.0, n=1), "input", "high"),
        ("device", 0.0, elsewhere(10.0, 0.8, n=1), "compute", "none"),
    ],
)
def test_waits_of_other_loaders_that_train_count_where_nothing_hides_them(
    clock: Literal["device", "host"], input_: float, wall: WallFacts, bound: str, severity: str
) -> None:
    facts = with_exposed(input_=input_, wall=wall) if input_ else healthy(wall=wall)
    assert facts.step is not None
    facts = replace(facts, step=replace(facts.step, clock=clock))
    assert judge_run(facts) == (bound, severity)


def test_shares_of_all_the_time_sum_to_one() -> None:
    for known in (outside(40.0), outside(5.0, in_steps=True)):
        values = of_wall(with_exposed(input_=0.3, wall=known))
        assert sum(v for v in values.values() if v is not None) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("input_", "host", "surely", "wall", "bound", "severity"),
    [
        # `gan`, and a loop that accumulates gradients and validates, beside three busy programs on
        # two CPUs: 34 and 22 % input alone, 14 % host.
        (0.19, 0.44, 0.09, None, "input", "moderate"),
        (0.17, 0.46, 0.06, outside(2.1), "outside", "moderate"),
        # What surely is the host's is the largest, or all there is.
        (0.10, 0.60, 0.25, None, "host", "high"),
        (0.10, 0.60, 0.15, None, "host", "moderate"),
        (0.02, 0.46, 0.06, None, "host", "moderate"),
        (0.07, 0.42, 0.00, None, "host", "uncertain"),  # a little more than moderate, beside others
        (0.02, 0.46, 0.02, None, "host", "uncertain"),
    ],
)
def test_of_a_hosts_share_beside_others_what_is_surely_its_own_is_judged(
    input_: float, host: float, surely: float, wall: WallFacts | None, bound: str, severity: str
) -> None:
    facts = with_exposed(input_=input_, copy=0.0, host=host, wall=wall)
    facts = replace(facts, shares_low={**(facts.shares_low or {}), "host": surely})
    assert judge_run(facts) == (bound, severity)
    assert facts.host_of_others == pytest.approx(host - surely)
    said = verdict_sentence(judge_run(facts)[0], judge_run(facts)[1], facts=facts)
    may_be_theirs = f"{fmt.number(10 * (host - surely))} ms of it perhaps other programs' doing"
    assert (may_be_theirs in said) == (bound == "host" and severity != "uncertain")


def test_a_verdict_on_waits_of_other_loaders_tells_of_them() -> None:
    facts = healthy(wall=elsewhere(10.0, 0.8))
    assert facts.step is not None
    facts = replace(facts, step=replace(facts.step, clock="host"))
    said = verdict_sentence(*judge_run(facts), facts=facts, findings=find(facts))
    assert said.startswith("Waiting for loaders takes 40 % of all the time, in steps on other")
    assert "Steps are taken on other loaders too, 50 % of the time" in said
    assert "Give this loader workers" in said
    waits = with_exposed(input_=0.3, wall=elsewhere(10.0, 0.8))
    assert waits.step is not None
    waits = replace(waits, step=replace(waits.step, clock="host"))
    assert "loader costs" in verdict_sentence(*judge_run(waits), facts=waits, findings=find(waits))


def both(validation: WallFacts, training: WallFacts) -> WallFacts:
    return replace(validation, elsewhere=training.elsewhere)


def on_host(**known: Any) -> Any:
    facts = with_exposed(**known)
    assert facts.step is not None
    return replace(facts, step=replace(facts.step, clock="host"))


# Share of input, of the host, milliseconds outside and elsewhere a step, what of these are waits.
MIXES = tuple(
    product((0.0, 0.03, 0.08, 0.19, 0.3), (0.02, 0.17, 0.5), (0.0, 0.8, 2.8, 40.0),
            (0.0, 2.0, 30.0), (0.0, 0.2, 0.9), (1, 20))
)  # fmt: skip


def mixed(input_: float, host: float, ms: float, more: float, wait: float, n: int) -> Any:
    wall = both(outside(ms), elsewhere(more, wait, n=n))
    facts = on_host(input_=input_, host=host, copy=0.0, wall=wall)
    low = {"input": 0.8 * input_, "host": 0.9 * host}
    return replace(facts, shares_low=low)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_with_training_elsewhere_shares_sum_to_one_and_no_low_is_above_its_share(
    scale: float,
) -> None:
    for mix in MIXES:
        facts = mixed(*mix)
        own, wall = of_wall(facts), facts.wall
        low = {k: scale * v for k, v in own.items() if v is not None}
        values, bounds = with_elsewhere(own, low, wall)
        assert sum(v for v in values.values() if v is not None) == pytest.approx(1.0)
        for name, value in (bounds or {}).items():
            assert value <= (values[name] or 0.0) + 1e-9
        for name in ("outside", "host"):  # training elsewhere makes no other part graver
            assert (values.get(name) or 0.0) <= (own.get(name) or 0.0) + 1e-9


def test_training_elsewhere_makes_what_lies_outside_a_smaller_part() -> None:
    facts = on_host(wall=both(outside(2.8), elsewhere(30.0, 0.0)))
    values, low = with_elsewhere(of_wall(facts), {"outside": 2.8 / 12.8}, facts.wall)
    assert values["outside"] == pytest.approx(2.8 / 42.8)
    assert low == pytest.approx({"input": 0.0, "outside": 2.8 / 42.8})
    assert judge_run(facts) == ("outside", "moderate")


def test_a_sentence_names_at_least_the_share_that_its_severity_takes() -> None:
    told = 0
    for mix in MIXES:
        facts = mixed(*mix)
        bound, severity = judge_run(facts)
        if severity not in ("high", "moderate"):
            continue
        said = verdict_sentence(bound, severity, facts=facts, findings=find(facts))
        (first, *_) = re.findall(r"([\d.]+) %", said)
        assert float(first) >= (20 if severity == "high" else 5), (mix, severity, said)
        if said.startswith("Waiting for loaders"):
            told += 1
            assert mix[-1] > 1
            assert "tune.py:9" in said
    assert told > 20


def test_of_a_pass_seen_once_it_is_said_and_nothing_else_is_hidden_by_it() -> None:
    facts = on_host(input_=0.02, host=0.02, wall=elsewhere(10.0, 0.8, n=1))
    assert judge_run(facts) == ("input", "uncertain")
    said = verdict_sentence("input", "uncertain", facts=facts, findings=find(facts))
    assert "seen once, so how often it comes is not known" in said
    assert judge_run(replace(facts, wall=None)) == ("compute", "none")
    busy = on_host(input_=0.06, host=0.9, copy=0.0, wall=elsewhere(10.0, 0.9, n=1))
    assert judge_run(busy) == ("host", "high")


def test_a_loop_that_waits_here_and_elsewhere_is_told_of_both_elsewhere_first() -> None:
    facts = on_host(input_=0.16, host=0.78, copy=0.0, wall=elsewhere(3.2, 0.59))
    bound, severity = judge_run(facts)
    assert (bound, severity) == ("input", "high")
    said = verdict_sentence(bound, severity, facts=facts, findings=find(facts))
    assert said.startswith("Waiting for loaders takes 26 % of all the time: 14 % in steps on other")
    assert "12 % in its own. Steps are taken" in said
    assert cost_sentence(bound, severity, facts).startswith("Waiting for loaders takes 26 %")
