"""The first screen says what is known, in one set of words, and nothing twice."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.facts.step import Bound, VerdictSeverity
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.report.console import console_text, render_report
from loaderdoctor.report.html import html
from loaderdoctor.report.model import Finding as ReportFinding
from loaderdoctor.report.model import Recommendation, Report
from loaderdoctor.report.words.changes import changes_of, vocabulary
from loaderdoctor.report.words.first_screen import (
    boundary_sentence,
    changes_and_ideas,
    evidence_words,
    step_notes,
    what_if,
    what_if_notes,
)
from loaderdoctor.report.words.summary import cost_sentence, verdict_sentence
from loaderdoctor.report.words.verdict import headline
from tests.findings.builders import with_exposed
from tests.report import sample_facts, samples
from tests.report.sample_facts import estimate
from tests.report.samples import recommendation

CODE = recommendation(
    "Slice whole batches out of memory", None, None,
    measured_step_ms=None, measured_ci_ms=None, predicted_step_ms=2.5,
)  # fmt: skip
UNTRIED = recommendation("background", "off", "host", measured_step_ms=None, measured_ci_ms=None)


def test_an_uncertain_verdict_leads_with_what_is_known() -> None:
    report = samples.uncertain(unsettled="The script ended first.")
    assert headline(report) == ("Computing takes 81 %", "input uncertain")
    assert report.verdict.summary == (
        "Computing takes 81 % of 100 ms a step; the loader seems to take 17 % (0 to 37 %), perhaps "
        "nothing. "
        "The script ended first."
    )
    assert report.verdict.bound == "input"
    assert report.verdict.severity == "uncertain"
    text, page = console_text(report), html(report)
    assert text.startswith("Computing takes 81 %, input uncertain")
    assert "Input-bound" not in text
    assert "Input-bound" not in page
    assert "Computing takes 81 %" in page


def test_where_the_uncertain_part_is_the_largest_it_is_named_with_its_noise() -> None:
    report = samples.uncertain(input_share=0.7, margin=0.9)
    assert headline(report) == ("Perhaps input-bound", "uncertain")
    assert (
        "The loader seems to take 70 % (0 to 100 %) of 100 ms a step, perhaps nothing"
        in report.verdict.summary
    )


def test_advice_to_measure_longer_comes_only_from_who_knows_that_there_was_no_time() -> None:
    assert "--budget" not in samples.uncertain().verdict.summary


@pytest.mark.parametrize(
    "changes",
    [
        (CODE, *samples.CHANGES),
        (*samples.CHANGES, CODE),
        (UNTRIED, CODE),
        (CODE, UNTRIED),
        # What was measured need not beat the mean of all other windows.
        (recommendation("num_workers", 0, 2, measured_step_ms=14.0), CODE),
    ],
)
def test_the_first_sentence_names_the_first_change_of_the_list(
    changes: tuple[Recommendation, ...],
) -> None:
    report = samples.input_bound(recommendations=changes)
    first = changes_of(changes)[0].words()
    others = {change.words() for change in changes_of(changes)[1:]}
    summary = report.verdict.summary.lower()
    assert first.lower() in summary
    assert not any(other.lower() in summary for other in others)
    listed = console_text(report, width=200).split("What to change\n")[1]
    assert listed.lstrip().startswith(f"1  {changes_of(changes)[0].title()}")


def test_changes_of_code_are_never_taken_for_one() -> None:
    twice = (CODE, recommendation("Launch less", None, None, measured_step_ms=None,
                                  measured_ci_ms=None, predicted_step_ms=2.5))  # fmt: skip
    assert [len(change.rows) for change in changes_of(twice)] == [1, 1]


def test_words_for_where_a_figure_comes_from_are_explained_once() -> None:
    changes = (
        *samples.CHANGES,
        UNTRIED,
        CODE,
        recommendation(
            "A", None, None, measured_step_ms=None, measured_ci_ms=None, predicted_from="trace"
        ),
    )
    text = " ".join(console_text(samples.input_bound(recommendations=changes)).split())
    for word in ("measured here", "predicted by ablation", "predicted from the trace"):
        assert text.count(f"{word}: ") == 1
    assert "not tried here" not in text
    assert vocabulary(changes_of((UNTRIED,))) == (
        "predicted by ablation: computed from windows with batches already in memory."
    )


def test_two_figures_for_now_are_told_apart_in_a_clause() -> None:
    report = samples.input_bound()
    assert what_if_notes(report) == ()
    assert report.ablation is not None
    wider = {**report.ablation.ci_ms, "plain_ms": (12.1, 14.1)}
    same = msgspec.structs.replace(report.ablation, ci_ms=wider)
    assert what_if_notes(msgspec.structs.replace(report, ablation=same)) == ()
    apart = {**report.ablation.ci_ms, "plain_ms": (15.0, 15.4)}
    other = msgspec.structs.replace(
        report, ablation=msgspec.structs.replace(report.ablation, plain_ms=15.2, ci_ms=apart)
    )
    (note,) = what_if_notes(other)
    assert what_if_notes(other, brief=True) == (note,)
    assert what_if(other)[0].figure == "15.2 ± 0.2 ms"
    assert "6 rounds of this comparison" in note
    assert "13.1 ms above is of all windows" in note
    assert note in " ".join(console_text(other).split())
    assert "6 rounds of this comparison" in html(other)


def test_free_copies_that_were_not_measured_have_a_reason() -> None:
    report = samples.input_bound()
    assert report.ablation is not None
    without = msgspec.structs.replace(
        report.ablation, no_copy_ms=None, copy_ms=None, reason="each batch has a shape of its own"
    )
    told = msgspec.structs.replace(report, ablation=without)
    note = "Free copies were not measured: each batch has a shape of its own."
    assert what_if_notes(told, brief=True) == what_if_notes(told) == (note,)
    assert note in " ".join(console_text(told, brief=True).split())


def test_one_loop_within_noise_has_one_figure_for_now() -> None:
    report = samples.input_bound()
    assert report.ablation is not None
    wide = {**report.ablation.ci_ms, "plain_ms": (12.0, 40.0)}
    loaded = msgspec.structs.replace(
        report, ablation=msgspec.structs.replace(report.ablation, plain_ms=26.2, ci_ms=wide)
    )
    now, advised, instant, _ = what_if(loaded)
    assert now.value_ms is not None
    assert advised.gain is not None
    assert instant.value_ms is not None
    assert instant.gain is not None
    assert now.value_ms == report.step.wall_ms
    assert advised.value_ms == 2.31
    assert advised.gain == pytest.approx(now.value_ms / 2.31)
    assert instant.gain == pytest.approx(26.2 / (report.ablation.no_input_ms or 0.0))
    assert instant.value_ms == pytest.approx(now.value_ms / instant.gain)
    assert what_if_notes(loaded, brief=True) == ()
    (note,) = what_if_notes(loaded)
    assert note.startswith("To the scale of the step above; in the 6 rounds")
    shown = console_text(loaded, brief=True)
    assert "26" not in shown.partition("What it would be")[2].partition("Findings")[0]


def test_a_gain_of_other_rounds_says_what_it_is_against() -> None:
    """Else the change would seem to beat an instant loader, whose step is shorter."""
    row = recommendation("num_workers", 0, 7, own_step_ms=17.5)
    report = samples.input_bound(recommendations=(row,))
    _, advised, instant, _ = what_if(report)
    assert (advised.gain or 0.0) > (instant.gain or 0.0)
    said = "With change 1 below: 7.6× as fast as the loop as it is in the same rounds, 17.5 ms."
    assert said in what_if_notes(report, brief=True)
    assert said in what_if_notes(msgspec.structs.replace(report, ablation=None))


def test_what_may_cost_nothing_is_not_said_to_make_the_step_so_much_faster() -> None:
    perhaps, surely = (samples.uncertain(margin=margin) for margin in (0.20, 0.03))
    assert [row.gain for row in what_if(perhaps)] == [None, None]
    assert "1.20×" not in console_text(perhaps, width=80) + html(perhaps)
    assert [row.gain for row in what_if(surely)] == [None, pytest.approx(100 / 83)]
    # Copies that may cost nothing leave the gain of the loader, in whose figure they are included.
    no_input, no_copy = what_if(samples.input_bound(recommendations=()))[1:]
    assert no_input.gain is not None and no_copy.gain is not None


def test_the_page_of_an_uncertain_verdict_says_what_to_do_as_the_terminal_does() -> None:
    advice = "To know more: run it again with nothing else running, or longer (--budget 120)."
    for text in (html(samples.uncertain()), console_text(samples.uncertain(), width=200)):
        assert advice in " ".join(text.split())
    assert advice not in html(samples.healthy())


def test_a_comparison_of_one_round_says_what_its_interval_rests_on() -> None:
    facts = sample_facts.facts()
    assert facts.ablation is not None
    once = replace(
        facts.ablation,
        plain_ms=estimate(13.118, float("inf"), 1),
        no_input_ms=estimate(1.769, float("inf"), 1),
        n_rounds=1,
    )
    report = samples.verdict("input", "high", facts=sample_facts.facts(ablation=once))
    assert "One round: ± allows for what rounds of other loops" in console_text(report)
    assert "One round: ± allows for what rounds of other loops" in html(report)


def test_a_second_loader_of_the_step_is_not_said_to_be_none_of_it() -> None:
    report = samples.cpu_only()
    first = report.loaders[0]
    assert report.workers is not None
    report = msgspec.structs.replace(
        report,
        loaders=(
            first,
            msgspec.structs.replace(first, id="gan.py:44", role="train"),
            msgspec.structs.replace(first, id="gan.py:50", role="other"),
        ),
        other_workers=tuple(
            msgspec.structs.replace(report.workers, loader=name)
            for name in ("gan.py:44", "gan.py:50")
        ),
    )
    for text in (console_text(report), html(report)):
        assert "gan.py:44 feeds the step too" in text
        assert "gan.py:50 does not feed the step" in text


@pytest.mark.parametrize(
    ("boundary_ms", "says"),
    [
        (94.0, "0.8 % of an epoch of 938 steps, too little to matter."),
        (2000.0, "14 % of an epoch of 938 steps, which is worth saving."),
        (0.0, "0 % of an epoch of 938 steps, nothing to save."),
    ],
)
def test_an_epoch_boundary_is_explained_and_weighed(boundary_ms: float, says: str) -> None:
    step = msgspec.structs.replace(samples.input_bound().step, boundary_ms=boundary_ms)
    text = boundary_sentence(step)
    assert text is not None
    assert "the first batch" in text
    assert text.endswith(says)


@pytest.mark.parametrize(("severity", "worth"), [("uncertain", False), ("moderate", True)])
def test_an_epoch_boundary_is_not_worth_saving_where_that_is_not_shown(
    severity: str, worth: bool
) -> None:
    report = samples.input_bound()
    step = msgspec.structs.replace(report.step, boundary_ms=2000.0)
    found = msgspec.structs.replace(
        report.findings[0], kind="worker-startup-each-epoch", severity=severity
    )
    report = msgspec.structs.replace(report, step=step, findings=(found,))
    (said,) = (note for note in step_notes(report) if "Each new epoch" in note)
    assert ("worth saving" in said, "none is shown to be saved" in said) == (worth, not worth)
    assert any("Each new epoch" in x for x in step_notes(report, brief=True)) == worth


def test_figures_of_a_finding_that_its_sentence_says_are_not_said_again() -> None:
    finding = Finding(
        kind=Kind.LOADER_IN_MAIN_PROCESS,
        severity=Severity.HIGH,
        share=0.41,
        loader="a.py:19",
        summary="The loop makes its batches itself (num_workers=0): 14.6 of 35.8 ms a step, and "
        "nothing overlaps it. 1 worker would keep up. Hottest line: a.py:15 (D.get), 88 % of it.",
        evidence={
            "num_workers": 0,
            "input_ms_per_step": 14.61,
            "step_ms": 35.82,
            "batch_ms": 15.12,  # the sentence has other figures, not this one
            "rest_of_step_ms": 14.6,
            "num_workers_needed": 1,
            "cpu_share": 0.5,
            "line": "a.py:15 (D.get)",
            "line_share": 0.88,
            "n_samples": 35.8,
            "missing": None,
        },
    )
    shown = evidence_words(samples.input_bound(findings=(finding,)).findings[0])
    assert shown == ["batch 15.1 ms", "CPU 50 %", "samples 35.8"]


def test_a_word_that_begins_a_sentence_is_not_said_again_as_evidence() -> None:
    (found,) = samples.validation_bound().findings
    assert "Validation (train.py:57)" in found.summary
    assert evidence_words(found) == ["seconds each 0.18"]


def test_no_verdict_is_not_drawn_as_good_news() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, color_system="standard", force_terminal=True)
    console.print(render_report(samples.nothing_recorded(), brief=True))
    assert "\x1b[1;33mNo verdict" in out.getvalue()


def test_a_healthy_verdict_with_wide_noise_says_so() -> None:
    cost = estimate(1.0, 30.0)
    ablation = AblationFacts(
        plain_ms=estimate(100.0, 20.0), no_input_ms=estimate(99.0, 20.0), no_copy_ms=None,
        input_ms=cost, copy_ms=None, n_rounds=3,
    )  # fmt: skip
    given = sample_facts.facts(
        shares=sample_facts.shares(input=0.01, compute=0.99, copy=None),
        step=sample_facts.step_facts(estimate(100.0, 20.0)),
        ablation=ablation,
    )
    report = samples.verdict("compute", "none", facts=given, unsettled="There was no time.")
    summary = report.verdict.summary
    assert summary.startswith("Nothing is shown to be worth changing.")
    assert summary.endswith("1 % (0 to 31 %) of the step. There was no time.")
    threads = Finding(
        kind=Kind.THREAD_OVERSUBSCRIPTION, severity=Severity.HIGH, share=0.8,
        summary="The step's own 2 threads slow it down.", evidence={"threads_of": "loop"},
    )  # fmt: skip
    said = verdict_sentence("compute", "none", facts=given, findings=(threads,))
    assert said.startswith("What the loader costs is still open: 1 % (0 to 31 %) of the step. ")
    assert threads.summary in said and "Nothing is wrong" not in said
    unseen = replace(given, ablation=None)
    said = verdict_sentence("compute", "none", facts=unseen, findings=(threads,))
    assert threads.summary in said and "Nothing is wrong" not in said


def noisy_trials() -> Report:
    rows = (
        samples.trial("0 workers", 300.0, step_ms_ci=(290.0, 310.0), n_windows=3),
        samples.trial(
            "1 worker", 217.0, step_ms_ci=(-190.0, 624.0), n_windows=2, window_ms=(185.0, 249.0)
        ),
        samples.trial("2 workers", 250.0, step_ms_ci=None, n_windows=1),
    )
    return samples.input_bound(trials=rows, best=None)


@pytest.mark.parametrize("width", [80, 200])
def test_a_trial_with_more_noise_than_time_has_no_figure(width: int) -> None:
    table = console_text(noisy_trials(), width=width).split("Trials, fastest first\n")[1]
    lines = [line for line in table.splitlines() if line.split()[:1] in (["0"], ["1"], ["2"])]
    assert [line.split()[0] for line in lines] == ["2", "0", "1"]  # the unclear one last
    assert "250 once" in lines[0]
    assert "300 ± 10" in lines[1]
    assert "unclear" in lines[2]
    assert "217" not in table
    assert "185 to 249 ms" in " ".join(table.split())


def test_the_page_marks_such_a_trial_likewise() -> None:
    page = html(noisy_trials())
    assert "unclear" in page
    assert "217 ± 407" not in page
    chart = page[page.index('id="trial-times"') :]
    assert chart.index("#0 ·") < chart.index("#1 ·")  # last here too
    assert "185 to 249 ms" in page


def test_a_step_that_is_not_known_well_is_no_figure_with_a_larger_error() -> None:
    report = samples.input_bound()
    step = msgspec.structs.replace(report.step, wall_ms=217.0, wall_ms_ci=(-190.0, 624.0))
    text = console_text(msgspec.structs.replace(report, step=step))
    assert "roughly 217 ms a step" in text
    assert "“roughly”: the times it is the mean of" in " ".join(text.split())


@pytest.mark.parametrize(("share", "said"), [(0.06, False), (0.4, True)])
def test_a_cause_of_little_is_not_said_to_be_the_reason(share: float, said: bool) -> None:
    finding = Finding(
        kind=Kind.COLLATE_BOUND, severity=Severity.HIGH, share=share, summary="", evidence={}
    )
    text = verdict_sentence("input", "high", facts=with_exposed(input_=0.6), findings=[finding])
    assert ("because collating is slow" in text) is said


def test_a_loader_that_is_hardly_waited_for_costs_all_the_same() -> None:
    facts = with_exposed(input_=0.6)
    assert facts.step is not None
    waited = replace(facts, step=replace(facts.step, raw_wait_ms=6.0))
    hidden = replace(facts, step=replace(facts.step, raw_wait_ms=0.5))
    assert verdict_sentence("input", "high", facts=waited).startswith("Waiting for the loader")
    assert verdict_sentence("input", "high", facts=hidden).startswith("The loader costs 6.00 of")


def test_a_comparison_with_more_noise_than_time_is_about() -> None:
    report = samples.input_bound()
    assert report.ablation is not None
    wide = {**report.ablation.ci_ms, "no_input_ms": (-2.3, 9.0)}
    ablation = msgspec.structs.replace(report.ablation, no_input_ms=3.36, ci_ms=wide)
    shown = msgspec.structs.replace(report, ablation=ablation)
    for text in (console_text(shown), html(shown)):
        assert "roughly 3.36 ms" in text
        assert "“roughly”: the times it is the mean of" in " ".join(text.split())
        assert "± 6" not in text
        assert "7.4×" not in text  # no ratio to a figure that is not known


@pytest.mark.parametrize(
    ("severity", "words"),
    [("high", "its threads compete"), ("uncertain", "its threads may compete"), (None, "healthy")],
)
def test_a_loop_whose_own_threads_fight_is_not_called_healthy(
    severity: str | None, words: str
) -> None:
    report = samples.healthy()
    finding = ReportFinding(
        kind="thread-oversubscription",
        severity=severity or "high",
        share=0.9,
        loader=None,
        evidence={"threads_of": "loop" if severity else "workers"},
        summary="The step's own 2 threads slow it down.",
    )
    assert headline(msgspec.structs.replace(report, findings=(finding,)))[1] == words


def test_what_the_loops_threads_cost_leads_an_uncertain_and_a_healthy_verdict() -> None:
    threads = Finding(
        kind=Kind.THREAD_OVERSUBSCRIPTION,
        severity=Severity.HIGH,
        share=0.8,
        summary="The step's own 2 threads slow it down.",
        evidence={"threads_of": "loop"},
    )
    facts = replace(with_exposed(input_=0.6, margin=4.5), profiler_overhead=0.44)
    said = verdict_sentence("input", "uncertain", facts=facts, findings=(threads,))
    assert said.startswith("The step's own 2 threads slow it down. ")
    assert "was not steady meanwhile" in said
    said = verdict_sentence("compute", "none", facts=with_exposed(), findings=(threads,))
    assert said.startswith("Nothing is wrong with the loader.")
    assert "The step's own 2 threads slow it down." in said
    said = verdict_sentence("input", "high", facts=with_exposed(input_=0.6), findings=(threads,))
    assert said.startswith("The step's own 2 threads slow it down. Waiting for the loader costs 6")
    assert "because" not in said
    larger = replace(threads, kind=Kind.SAMPLER_BOUND, share=0.9, evidence={})
    said = verdict_sentence("input", "uncertain", facts=facts, findings=(larger, threads))
    assert "own 2 threads" not in said


def test_beside_a_finding_that_matters_a_healthy_verdict_names_the_change() -> None:
    facts = with_exposed()
    hint = Finding(kind=Kind.TF32_OFF, severity=Severity.MODERATE, summary="tf32 is off", share=0.1)
    change = recommendation(
        "Allow TF32", None, None,
        measured_step_ms=None, measured_ci_ms=None, predicted_step_ms=8.0,
    )  # fmt: skip
    given: dict[str, Any] = {"facts": facts, "recommendations": (change,)}
    assert "To change: allow TF32" in verdict_sentence("compute", "none", findings=(hint,), **given)
    small = replace(hint, severity=Severity.LOW)
    for said in (
        verdict_sentence("compute", "none", findings=(small,), **given),
        verdict_sentence("compute", "none", findings=(hint,), facts=facts, recommendations=()),
    ):
        assert said.startswith("Nothing worth changing.")


def test_the_rounds_of_an_ablation_are_steps_enough_for_a_verdict() -> None:
    few = sample_facts.facts(step=sample_facts.step_facts(estimate(13.1, 0.2, 1), n_steps=4))
    assert judge_run(few) == ("input", "high")
    assert judge_run(replace(few, ablation=None)) == ("unknown", "none")


def test_what_the_bound_costs_can_be_said_beside_what_a_sweep_found() -> None:
    facts = with_exposed(input_=0.6)
    assert cost_sentence("input", "high", facts).endswith("costs 6.00 of 10.0 ms a step (60 %).")
    assert cost_sentence("input", "uncertain", facts) == ""
    assert cost_sentence("unknown", "none", facts) == ""


@pytest.mark.parametrize("bound", ["compute", "host"])
def test_where_batches_are_not_recorded_nothing_is_called_healthy_or_in_order(
    bound: Bound,
) -> None:
    """A loop without a DataLoader: what making batches costs is part of its other work."""
    parts = sample_facts.shares(compute=0.7, host=0.3, input=None, copy=None)
    step = sample_facts.step_facts(estimate(100.0, 4.0))
    given = sample_facts.facts(shares=parts, step=step, ablation=None)
    severity: VerdictSeverity = "none" if bound == "compute" else "high"
    report = samples.verdict(bound, severity, facts=given)
    assert report.verdict.summary.endswith("What getting batches costs is not recorded.")
    text = console_text(report)
    assert "healthy" not in text and "Nothing worth changing" not in text
    assert "What to change" not in text
    assert headline(samples.healthy()) == ("Compute-bound", "healthy")


@pytest.mark.parametrize(
    ("of_loader_ms", "named"), [(1500.0, True), (2300.0, False), (None, False)]
)
def test_the_loops_own_work_between_epochs_is_not_called_the_loaders(
    of_loader_ms: float | None, named: bool
) -> None:
    step = msgspec.structs.replace(
        samples.input_bound().step, boundary_ms=2403.0, loader_boundary_ms=of_loader_ms
    )
    text = boundary_sentence(step)
    assert text is not None
    assert "adds 2,403 ms" in text
    own = "the first batch: 1,500 ms; and the loop's own work between epochs)"
    assert (own in text) is named


def test_an_idea_that_leads_the_list_has_its_first_number_in_every_view() -> None:
    idea = msgspec.structs.replace(CODE, setting="Let the workers do it", code="", idea="Call it.")
    for advised in ((idea, *samples.CHANGES), (*samples.CHANGES, idea)):
        report = samples.input_bound(recommendations=advised)
        leads = advised[0] is idea
        numbered, ideas = changes_and_ideas(report)
        assert [x.words() for x in ideas] == ([] if leads else ["Let the workers do it"])
        assert (numbered[0].words() == "Let the workers do it") == leads
        for brief in (False, True):
            assert ("1  Let the workers do it" in console_text(report, brief=brief)) == leads
        assert ("Ideas, for which no line" in html(report)) == (not leads)
