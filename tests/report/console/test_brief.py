"""The one screen that a terminal gets: short, of one story, and it says where the rest is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from loaderdoctor.findings import Kind, Severity
from loaderdoctor.report.console import console_text
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.report.words.first_screen import causes, shortened
from loaderdoctor.report.words.verdict import trust_sentence
from tests.report import samples

FOLDER = Path("loaderdoctor-runs/20260102-030405-train")
LINES, COLUMNS = 40, 80
BUSY = ReportWarning(
    kind="busy-machine",
    text="Other programs used 1.1 of the 2 usable CPUs (56 %) while the loop was timed. Times are "
    "those of the loop with that load next to it.",
)


def brief(report: Report, width: int = COLUMNS) -> str:
    return console_text(report, width=width, folder=FOLDER, brief=True)


@pytest.mark.parametrize(
    "report",
    [samples.input_bound(), samples.healthy(), samples.validation_bound(), samples.uncertain()],
    ids=["input", "healthy", "validation", "uncertain"],
)
def test_a_clear_case_fits_one_screen(report: Report) -> None:
    assert len(brief(report).splitlines()) <= LINES


def test_headline_bars_first_change_and_last_line_speak_of_one_change() -> None:
    other = samples.recommendation("pin_memory", False, True, measured_step_ms=1.0, code="x")
    report = samples.input_bound(recommendations=(*samples.CHANGES, other))
    text = brief(report)
    head, bars, changes = text.partition("The step")[0], text.split("What it would be")[1], text
    assert "num_workers=7 with" in " ".join(head.split())
    (bar,) = (line for line in bars.splitlines() if "with change 1 below" in line)
    assert "2.31 ± 0.09 ms" in bar
    assert "5.7×" in bar
    assert "\n  1  num_workers=7 (now 0), persistent_workers=True\n" in changes
    assert "\n  2  pin_memory=True: " in changes
    last = " ".join(text.splitlines()[-2:])
    assert "Every hour of this training becomes 11 min" in last  # of 5.7×, not of 13×


def test_what_decides_how_far_to_trust_it_follows_the_verdict() -> None:
    report = structs.replace(samples.input_bound(), warnings=(BUSY,))
    top = " ".join(brief(report).partition("The step")[0].split())
    assert top.endswith(
        "How far to trust it: Other programs used 1.1 of the 2 usable CPUs (56 %) while the loop "
        "was timed; alone it may be faster, and another setting best."
    )
    assert "1 warning" in brief(report)


def test_the_gravest_doubt_comes_first_and_harmless_warnings_are_none() -> None:
    ended = ReportWarning(kind="script-ended-early", text="The script ended early. Let it run.")
    harmless = ReportWarning(kind="amp-dtype", text="AMP is bfloat16.")
    report = structs.replace(samples.input_bound(), warnings=(harmless, BUSY, ended))
    assert trust_sentence(report) == "The script ended early. (1 more warning in the whole report)"
    assert trust_sentence(structs.replace(report, warnings=(harmless,))) is None


def test_findings_of_the_same_time_are_one_cause_with_aspects() -> None:
    twin = replace(
        samples.IN_MAIN,
        kind=Kind.COLLATE_BOUND,
        summary="Collating is slow.",
        aspect_of=Kind.LOADER_IN_MAIN_PROCESS,
    )
    small = replace(samples.IN_MAIN, kind=Kind.PAGEABLE_COPY, share=0.1, severity=Severity.LOW)
    report = samples.input_bound(findings=(samples.IN_MAIN, twin, small))
    first, second = causes(report.findings)
    assert [aspect.kind for aspect in first.aspects] == ["collate-bound"]
    assert second.first.kind == "pageable-copy"
    text = brief(report)
    assert text.count("● high") == 1
    assert "the same time seen as: collate-bound" in text


def test_outside_the_steps_the_first_advice_is_about_that_and_not_about_the_loader() -> None:
    idea = samples.recommendation(
        "Validate less often", None, None, code="", measured_step_ms=None, measured_ci_ms=None,
        predicted_step_ms=None, idea="Validate after more steps.",
    )  # fmt: skip
    report = structs.replace(samples.validation_bound(), recommendations=(*samples.CHANGES, idea))
    text = brief(report)
    below = text.partition("What to change")[2]
    assert below.index("Validate less often") < below.index("For the step itself")
    assert below.index("For the step itself") < below.index("num_workers=7")
    assert "with change 1 below" not in text  # no bar of another change than the verdict's
    assert "Every hour" not in text


def test_uncertain_findings_are_counted_where_there_are_certain_ones() -> None:
    unsure = replace(
        samples.IN_MAIN, kind=Kind.SAMPLER_BOUND, severity=Severity.UNCERTAIN, share=0.1
    )
    text = brief(samples.input_bound(findings=(samples.IN_MAIN, unsure)))
    assert "sampler-bound" not in text
    assert "and 1 smaller, or not certain" in text


def test_long_findings_are_cut_between_sentences() -> None:
    assert shortened("One. Two is (as in pkg.mod) `a.b`. Three.", most=30) == "One."
    assert shortened("One. Two.", most=30) == "One. Two."
    assert shortened("A sentence alone is never cut.", most=3) == "A sentence alone is never cut."


def test_without_a_run_folder_the_rest_is_had_by_verbose() -> None:
    text = console_text(samples.input_bound(), brief=True)
    assert "All of it: --verbose" in text
    assert "report.html" not in text


def test_a_change_that_an_option_makes_is_outlined_with_it() -> None:
    row = samples.recommendation(
        "num_workers", 0, 7, code="", command="python train.py -j 7", idea="Run it with `-j 7`."
    )
    first = samples.recommendation("pin_memory", False, True, measured_step_ms=2.0)
    text = " ".join(brief(samples.input_bound(recommendations=(first, row))).split())
    assert ". Run it with `-j 7`." in text
    alone = brief(samples.input_bound(recommendations=(row,)))
    assert "Run it with `-j 7`.\n     python train.py -j 7\n" in alone


def test_what_mostly_computes_is_bound_in_part_only() -> None:
    assert brief(samples.cpu_only()).startswith("Partly input-bound, moderate   train.py\n")
    assert brief(samples.input_bound()).startswith("Input-bound, high   train.py\n")


def test_advice_of_another_finding_stands_below_it_and_is_not_the_answer() -> None:
    other = replace(
        samples.IN_MAIN, kind=Kind.PASS_BEFORE_TRAINING, severity=Severity.LOW, share=None,
        summary="8 s went by before training began.", advice="Compute it once.",
    )  # fmt: skip
    text = brief(samples.input_bound(findings=(other,), recommendations=(), not_advised=()))
    found, _, to_change = text.partition("What to change")
    assert "    → Compute it once.\n" in found
    assert "Compute it once" not in to_change


def test_an_uncertain_verdict_says_what_would_settle_it() -> None:
    assert "or longer (--budget 120)" in " ".join(brief(samples.uncertain()).split())
    settled = " ".join(brief(samples.uncertain(unsettled="Give it a larger --budget.")).split())
    assert "--budget 120" not in settled


def test_the_number_of_a_loader_is_explained_where_it_is_read() -> None:
    report = samples.validation_bound()
    second = structs.replace(report.loaders[0], id="train.py:57#2")
    said = report.verdict.summary.replace("train.py:57", "train.py:57#2")
    verdict = structs.replace(report.verdict, summary=said)
    shown = structs.replace(report, loaders=(second,), verdict=verdict)
    assert "\ntrain.py:57#2: loader 2 of that line\n" in brief(shown)
    assert "loader 2 of" not in brief(structs.replace(shown, verdict=report.verdict))


@pytest.mark.parametrize("n_warnings", [0, 1])
def test_a_long_screen_leaves_out_what_the_verdict_says_first(n_warnings: int) -> None:
    slow = replace(
        samples.IN_MAIN, kind=Kind.SLOW_RANK, summary="Rank 1 is late in every step. " * 7,
        advice="Look at what this rank reads.", share=0.7, loader=None, evidence={"rank": 1},
    )  # fmt: skip
    report = structs.replace(
        samples.several_ranks(),
        findings=samples.input_bound(findings=(samples.IN_MAIN, slow)).findings,
        warnings=(BUSY,) * n_warnings,
    )
    text = brief(report)
    assert len(text.splitlines()) <= LINES
    assert "What it would be" not in text
    assert "slow-rank" in text
    assert "The training process makes every batch itself" not in text
    assert "num_workers=7, persistent_workers=True)" in text  # code is never left out
    assert "beware: " in text
    assert "What it would be" in console_text(report, width=COLUMNS, folder=FOLDER)


def test_other_changes_and_ideas_are_counted_where_the_code_is_long() -> None:
    code = "train.py:41\n" + "\n".join(f"+ line_{i} = {i}" for i in range(24))
    first = samples.recommendation("cache", None, True, code=code)
    second = samples.recommendation("num_workers", 0, 2, measured_step_ms=4.0)
    idea = samples.recommendation("Slice batches", None, None, code="", measured_step_ms=None,
                                  measured_ci_ms=None, idea="Index the array.")  # fmt: skip
    text = brief(samples.input_bound(recommendations=(first, second, idea)))
    assert "and 1 more, and 1 idea\n" in text
    assert "line_23 = 23" in text
    assert "Index the array" not in text
    short = brief(samples.input_bound(recommendations=(samples.CHANGES[0], second, idea)))
    assert "Index the array" in short
