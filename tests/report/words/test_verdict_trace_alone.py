"""What is said behind a verdict that a trace alone bears."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.step import Bound, VerdictSeverity
from loaderdoctor.facts.trace import ProfilerFacts, TraceFacts
from loaderdoctor.report.words.summary import verdict_sentence
from loaderdoctor.report.words.verdict import caveats, uncertain_sentence
from tests.findings.builders import copy_facts, shares, trace, with_exposed
from tests.trace_facts import changed

PROFILER = ProfilerFacts(
    n_ops=300.0, n_frames=0.0, n_memory_events=0.0, least_ms=0.6, likely_ms=1.4, most_ms=2.7
)


JUDGED: tuple[tuple[Bound, VerdictSeverity], ...] = (
    ("compute", "uncertain"),
    ("host", "moderate"),
)


def said(seen: TraceFacts, bound: Bound, severity: VerdictSeverity = "high") -> str:
    return caveats(bound, severity, facts_of_trace(seen))


def test_few_steps_are_told_with_what_they_say_of_others() -> None:
    few = replace(
        trace(n_steps=3, shares=shares(input_=0.46)),
        few_steps={"input": Estimate(value=0.46, low=0.39, high=0.53, n=3)},
    )
    assert said(few, "input") == (
        "3 steps are few: by them input is 39 % to 53 % of the loop's steps. Record more of them."
    )
    one = replace(
        few, n_steps=1,
        few_steps={"input": Estimate(value=0.46, low=-float("inf"), high=float("inf"), n=1)},
    )  # fmt: skip
    assert said(one, "input").startswith("1 step is few: how much others differ is not known.")
    assert said(trace(), "compute", "none") == ""


def test_stacks_understate_the_loader() -> None:
    with_stacks = changed(trace(), profiler=replace(PROFILER, n_frames=900.0))
    assert "understated" in said(with_stacks, "host")
    assert "understated" not in said(changed(trace(), profiler=PROFILER), "host")


def test_a_verdict_that_the_profiler_may_have_made_says_so() -> None:
    seen = changed(trace(shares=shares(host=0.4)), profiler=PROFILER)
    assert "little need be left" in said(seen, "compute", "uncertain")
    assert "the profiler's own" in said(seen, "host", "moderate")
    assert "may be too slow" in said(seen, "host", "high")
    assert said(changed(seen, fetch_kind="single-process"), "host", "high") == ""


def test_launching_and_crowded_cpus_are_both_named_where_a_trace_can_not_tell_them() -> None:
    seen = changed(trace(shares=shares(host=0.45), host_exposed_ms=4.5), profiler=PROFILER)
    sentence = verdict_sentence("host", "uncertain", facts=facts_of_trace(seen))
    assert "launching that takes as long by itself, or workers that crowd the CPUs" in sentence
    assert "the profiler's own" in sentence
    alone = facts_of_trace(changed(seen, fetch_kind="single-process"))
    assert "crowd" not in verdict_sentence("host", "uncertain", facts=alone)


def test_a_diagnosis_that_has_its_trace_alone_is_not_sent_to_diagnose() -> None:
    seen = changed(trace(shares=shares(host=0.4)), profiler=PROFILER)
    here = replace(facts_of_trace(seen), command="diagnose")
    asked: tuple[tuple[Bound, VerdictSeverity], ...] = (
        ("compute", "uncertain"),
        ("host", "moderate"),
    )
    for bound, severity in asked:
        elsewhere = said(seen, bound, severity)
        assert "`loaderdoctor diagnose` measures" in elsewhere
        assert "loaderdoctor diagnose" not in caveats(bound, severity, here)
        assert caveats(bound, severity, here)[:40] == elsewhere[:40]


def test_nothing_is_said_where_plain_windows_bear_the_verdict() -> None:
    facts = with_exposed(input_=0.5)
    assert caveats("input", "moderate", facts) == ""


def test_only_what_was_tried_or_cannot_help_is_said_not_to_help() -> None:
    facts = facts_of_trace(trace(shares=shares(host=0.5), host_exposed_ms=5.0))
    sentence = verdict_sentence("host", "high", facts=facts)
    assert "No loader setting is known to help" not in sentence
    assert "not told by a trace alone" in sentence


def test_silence_beside_pageable_batches_leaves_open_what_of_three_costs_most() -> None:
    pageable = copy_facts(source="pageable", exposed_ms_per_step=3.8, busy_ms_per_step=3.7)
    seen = trace(shares=shares(copy=0.38, host=0.25), host_exposed_ms=2.5, copies=(pageable,))
    assert judge_trace(seen) == ("copy", "high")
    freed = changed(seen, freeing_ms=2.2, all_freeing_ms=4.5)
    bound, severity = judge_trace(freed)
    assert (bound, severity) == ("copy", "uncertain")  # as the bars have it
    sentence = uncertain_sentence(bound, facts_of_trace(freed), 10.0, None)
    for possible in ("copying batches", "freeing the batch before", "the loop's own Python"):
        assert possible in sentence
    assert "Which of the three it is most, no trace tells" in sentence
    of_host = changed(freed, shares=shares(copy=0.1, host=0.4))
    assert judge_trace(of_host) == ("host", "uncertain")
    assert "the loop's own Python" in uncertain_sentence(
        "host", facts_of_trace(of_host), 10.0, None
    )
    # Freed while the device computes, it leaves the copies what they are.
    hidden = changed(seen, freeing_ms=0.0, all_freeing_ms=2.0)
    assert judge_trace(hidden) == ("copy", "high")
