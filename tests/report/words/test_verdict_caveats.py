"""What is said where no rule found a cause."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import own_settings_known
from loaderdoctor.findings import Came, Outcome
from loaderdoctor.findings.rules import find
from loaderdoctor.report.model import Recommendation
from loaderdoctor.report.words.summary import verdict_sentence
from loaderdoctor.report.words.verdict import no_cause
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.answers import check_predictions
from tests.findings.builders import trace, with_exposed, workers
from tests.findings.rules.test_host_loop_work import SAMPLED
from tests.findings.rules.test_saturated_overhead import HANDED_OVER, ONE_WORKER


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


def test_no_prediction_stands_above_what_was_measured() -> None:
    idea = Recommendation(
        setting="Do less for each batch", from_=None, to=None, code="", predicted_step_ms=4.0,
        predicted_from="ablation", measured_step_ms=None, measured_ci_ms=None, caution=None,
        summary=None,
    )  # fmt: skip
    facts = with_exposed(input_=0.3, workers=workers())
    told = {
        n: verdict_sentence("input", "high", facts=facts, recommendations=(idea,), n_tried=n)
        for n in (0, 1, 3)
    }
    assert "4.00 ms" in told[0] and "Tried" not in told[0]
    for n, counted in ((1, "1 setting"), (3, "3 settings")):
        assert f"Tried: {counted}, none measurably faster here." in told[n]
        assert "Not tested: do less for each batch." in told[n]
        assert "4.00 ms" not in told[n]  # the figure stands below, in the list
    # One that was measured goes first, whatever else is predicted.
    helps = msgspec.structs.replace(
        idea, setting="num_workers", from_=4, to=6, measured_step_ms=8.0
    )
    both = verdict_sentence(
        "input", "high", facts=facts, recommendations=(helps, idea), n_tried=3
    )  # fmt: skip
    assert "num_workers=6 brings the step to 8.00 ms" in both and "Tried" not in both


def test_the_headline_of_a_host_bound_loop_names_the_line_and_what_was_measured_next_to_it() -> (
    None
):
    idea = Recommendation(
        setting="Let the loader's workers do it", from_=None, to=None, code="",
        predicted_step_ms=4.0, predicted_from="ablation", measured_step_ms=None,
        measured_ci_ms=None, caution=None, summary=None,
    )  # fmt: skip
    helps = msgspec.structs.replace(
        idea, setting="num_workers", from_=4, to=6, measured_step_ms=8.0
    )
    facts = replace(SAMPLED, workers=workers())
    told = verdict_sentence(
        "host", "high", facts=facts, findings=find(facts), recommendations=(idea, helps), n_tried=3
    )
    cause, _, change = told.partition(". ")
    assert (
        "because the loop does other work between steps: shape_words (train.py:16) takes" in cause
    )
    assert change.startswith(
        "Not tested: let the loader's workers do it. Next to it: num_workers=6"
    )
    assert "4.00 ms" not in told and "8.00 ms" in told


@pytest.mark.parametrize("came", ["no different", "faster", "slower"])
def test_a_setting_that_made_no_difference_is_told_with_its_figures_and_not_advised(
    came: Came,
) -> None:
    facts = with_exposed(input_=0.25, loaders=ONE_WORKER, workers=HANDED_OVER)
    gain_ms = {"no different": (-0.4, 0.6), "faster": (0.4, 0.8), "slower": (-0.8, -0.4)}[came]
    none = Outcome(
        settings=Settings(num_workers=0), step_ms=9.9, own_ms=10.0,
        gain_low_ms=gain_ms[0], gain_high_ms=gain_ms[1],
    )  # fmt: skip
    assert none.came == came
    found = check_predictions(find(facts), (none,), own=own_settings_known(facts))
    told = verdict_sentence("input", "moderate", facts=facts, findings=found, n_tried=1)
    advised = "Make the batches in the loop (num_workers=0)"
    assert (advised in told) == (came == "faster")
    if came != "faster":
        assert f"9.90 ms a step against 10.0 ms as it is, {none.words}" in told
        assert "fewer tensors in a batch" in told  # the rest of that advice stands


def test_what_took_too_few_windows_is_not_advised_again() -> None:
    seen = Recommendation(
        setting="num_workers", from_=4, to=0, code="", predicted_step_ms=4.0,
        predicted_from="ablation", measured_step_ms=None, measured_ci_ms=None, caution=None,
        summary=None, seen_step_ms=9.0, own_step_ms=10.0,
    )  # fmt: skip
    facts = with_exposed(input_=0.3, workers=workers())
    told = verdict_sentence("input", "high", facts=facts, recommendations=(seen,), n_tried=1)
    assert "Tried num_workers=0: 9.00 ms a step next to 10.0 ms as is, in too few windows" in told
    assert "Try " not in told


def test_a_noisy_share_is_told_with_its_interval() -> None:
    facts = with_exposed(input_=0.3, workers=workers())
    assert facts.ablation is not None
    step = facts.ablation.plain_ms.value
    for margin, told in ((0.02, "(30 %)"), (0.12, "(30 %, 18 to 42 %)")):
        part = Estimate(
            value=0.3 * step, low=(0.3 - margin) * step, high=(0.3 + margin) * step, n=4
        )
        noisy = replace(facts, ablation=replace(facts.ablation, input_ms=part))
        assert told in verdict_sentence("input", "high", facts=noisy, n_tried=0)
