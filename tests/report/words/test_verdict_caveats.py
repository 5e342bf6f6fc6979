"""What is said where no rule found a cause."""

from __future__ import annotations

import math
from dataclasses import replace

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.estimate import Estimate
from loaderdoctor.report.words.summary import verdict_sentence
from loaderdoctor.report.words.verdict import no_cause
from tests.findings.builders import trace, with_exposed, workers


def test_what_was_measured_of_the_loader_stands_for_a_cause() -> None:
    facts = with_exposed(input_=0.3, workers=workers(receive_ms=0.6, idle_share=0.7))
    said = verdict_sentence("input", "high", facts=facts, n_tried=0)
    assert "No single cause stands out: making a batch takes 20.0 ms in a worker" in said
    assert "receiving it 0.60 ms" in said
    assert "4 workers idle 70 % of the time" in said
    assert "No setting was tried; an instant loader would bring the step to 7.00 ms." in said
    assert "No setting tried here" in verdict_sentence("input", "high", facts=facts, n_tried=2)
    # Nor is anything said of settings that nobody tried where nothing was compared either.
    blind = replace(facts, ablation=None)
    for n_tried, told in ((0, "No setting was tried."), (2, "No setting tried here was faster")):
        said = verdict_sentence("input", "high", facts=blind, n_tried=n_tried)
        assert told in said and "is known to help" not in said


def test_an_instant_loader_promises_nothing_where_one_round_was_measured() -> None:
    # A cuDNN autotuner: 286 ms as it is, 684 with ready batches, in the only round there was.
    facts = with_exposed(input_=0.3, workers=workers())
    assert facts.ablation is not None
    once = Estimate(value=-398.0, low=-math.inf, high=math.inf, n=1)
    facts = replace(facts, ablation=replace(facts.ablation, input_ms=once))
    said = verdict_sentence("host", "high", facts=facts, n_tried=0)
    assert "No setting was tried." in said
    assert "instant loader" not in said


def test_what_is_missing_is_said_where_nothing_was_recorded() -> None:
    facts = with_exposed(input_=0.3, workers=None)
    assert "was not recorded" in no_cause("input", facts)
    assert "loaderdoctor diagnose" in no_cause("input", facts_of_trace(trace()))
    assert "was recorded one by one" in no_cause("copy", replace(facts, trace=None))


def test_copies_without_a_cause_are_summed() -> None:
    assert "copies a step" in no_cause("copy", with_exposed(copy=0.3))
    assert no_cause("host", with_exposed(host=0.3)) == ""
