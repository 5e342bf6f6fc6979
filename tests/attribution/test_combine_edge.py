"""Workers that only just keep up are told from those with time to spare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import edge_facts
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.facts.host import EdgeFacts
from loaderdoctor.report.words.summary import verdict_sentence
from tests.findings.builders import ablation, step, with_exposed, workers

# `half_overlap` of benchmarks/loops.py in small: 4 workers, a batch each 9.5 ms, a step of 10.
AT_THE_EDGE = EdgeFacts(
    n_workers=4, busy_share=0.96, supply_ms=9.5, rest_ms=9.9, n_waits=80, n_long_waits=3,
    longest_wait_ms=4.0,
)  # fmt: skip


def test_busy_workers_are_at_the_edge_and_their_long_waits_are_counted() -> None:
    waits = step(waits_ms=(0.1,) * 77 + (2.0, 3.0, 4.0))
    found = edge_facts(waits, workers(batch_ms=38.0, idle_share=0.04), ablation(input_ms=0.1))
    assert found == AT_THE_EDGE


@pytest.mark.parametrize(("batch_ms", "edge"), [(30.0, False), (38.0, True)])
def test_without_a_record_of_idling_the_batch_says_it(batch_ms: float, edge: bool) -> None:
    some = workers(batch_ms=batch_ms, idle_share=None)
    assert (edge_facts(step(), some, ablation()) is not None) is edge


def test_workers_with_time_to_spare_or_not_recorded_are_not() -> None:
    busy = workers(batch_ms=38.0, idle_share=0.04)
    assert edge_facts(step(), workers(batch_ms=38.0, idle_share=0.3), ablation()) is None
    assert edge_facts(step(), None, ablation()) is None
    assert edge_facts(step(), busy, None) is None
    assert edge_facts(None, busy, ablation()) is None
    assert edge_facts(step(), replace(busy, n_workers=0), ablation()) is None


def test_what_noise_makes_of_such_a_loop_is_no_input_verdict() -> None:
    unclear = with_exposed(input_=0.15, margin=17.8)
    assert judge_run(unclear) == ("input", "uncertain")
    assert judge_run(replace(unclear, edge=AT_THE_EDGE)) == ("compute", "none")
    starved = with_exposed(input_=0.6, edge=AT_THE_EDGE)
    assert judge_run(starved) == ("input", "high")


def test_the_verdict_says_what_tips_it() -> None:
    from loaderdoctor.findings.rules.starved import workers_just_keep_up

    facts = with_exposed(edge=AT_THE_EDGE)
    finding = workers_just_keep_up(facts)
    assert finding is not None
    said = verdict_sentence("compute", "none", facts=facts, findings=(finding,))
    assert "At the edge: 4 workers only just keep up: busy 96 % of the time" in said
    assert "One worker fewer, a step 10 % faster, or another program on these CPUs" in said
