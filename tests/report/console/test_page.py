"""The report as people see it. Golden files: LOADERDOCTOR_REFRESH_GOLDEN=1 pytest tests/report."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from loaderdoctor.facts.step import Bound, VerdictSeverity
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.report import model
from loaderdoctor.report.console import console_text, render_report
from loaderdoctor.report.console.renderables import cells
from tests.report import samples

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = Path("loaderdoctor-runs/20260102-030405-train")
REPORTS: dict[str, Callable[[], model.Report]] = {
    "input_bound": samples.input_bound,
    "healthy": samples.healthy,
    "cpu_only": samples.cpu_only,
    "sweep": samples.sweep,
    "several_ranks": samples.several_ranks,
    "nothing_recorded": samples.nothing_recorded,
    "uncertain": samples.uncertain,
    "validation_bound": samples.validation_bound,
    "ladder": samples.ladder,
}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("brief", [True, False], ids=["brief", "whole"])
def test_report_reads_as_stored(name: str, width: int, brief: bool) -> None:
    text = console_text(REPORTS[name](), width=width, folder=FOLDER, brief=brief)
    stored = GOLDEN / f"{name}-{'brief-' if brief else ''}{width}.txt"
    if os.environ.get("LOADERDOCTOR_REFRESH_GOLDEN") == "1":
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(text, encoding="utf-8")
    assert text == stored.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [40, 50, 60, 79, 80, 100, 121, 200])
@pytest.mark.parametrize("brief", [True, False], ids=["brief", "whole"])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(
    name: str, width: int, brief: bool
) -> None:
    report = REPORTS[name]()
    text = console_text(report, width=width, folder=FOLDER, brief=brief)
    code = {line for row in report.recommendations for line in row.code.splitlines()}
    lines = [line for line in text.splitlines() if line.strip() not in code]
    assert max(cell_len(line) for line in lines) <= width
    words = text.split()
    assert not any(word.endswith("…") for word in words)
    for trial in report.trials if report.command == "sweep" else ():
        if trial.step_ms is not None and trial.samples_per_s is not None:
            assert f"{trial.samples_per_s:,.0f}" in text


@pytest.mark.parametrize("name", ["healthy", "validation_bound", "uncertain", "cpu_only"])
@pytest.mark.parametrize("width", [24, 40, 60])
def test_a_narrow_terminal_has_every_figure(name: str, width: int) -> None:
    def figures(columns: int) -> set[str]:
        return set(re.findall(r"\d[\d,.]*\d|\d", console_text(REPORTS[name](), width=columns)))

    assert figures(width) == figures(200)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_code_is_printed_as_it_is_at_any_width_and_on_any_terminal(width: int) -> None:
    long = "loader = DataLoader(train_set, batch_size=64, num_workers=7, pin_memory=True, 名前=x)"
    code = f"- {long.replace('7', '0')}\n+ {long}\n+     # {'ü' * 90}"
    row = samples.recommendation("num_workers", 0, 7, code=code)
    report = samples.input_bound(recommendations=(row,))
    for color in (None, "standard"):
        out = io.StringIO()
        console = Console(file=out, width=width, color_system=color, force_terminal=bool(color))
        console.print(render_report(report))
        printed = [line.strip() for line in Text.from_ansi(out.getvalue()).plain.splitlines()]
        at = printed.index(code.splitlines()[0])
        assert printed[at : at + 3] == code.splitlines()


def test_the_answer_is_in_the_first_five_lines() -> None:
    top = " ".join(console_text(samples.input_bound(), width=80).splitlines()[:5])
    for word in ("Input-bound", "high", "11.3 of 13.1 ms", "86 %", "num_workers=7", "2.31 ms"):
        assert word in top


@pytest.mark.parametrize("name", REPORTS)
def test_colour_only_repeats_what_words_say(name: str) -> None:
    def text(color: str | None) -> str:
        out = io.StringIO()
        console = Console(file=out, width=100, color_system=color, force_terminal=bool(color))  # type: ignore[arg-type]
        console.print(render_report(REPORTS[name]()))
        return out.getvalue()

    coloured = text("truecolor")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text(None)


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_output_that_holds_no_unicode_gets_plain_letters(name: str, encoding: str) -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding, newline="\n"), width=80)
    console.print(render_report(REPORTS[name]()))
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "?" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_text_of_the_user_is_neither_markup_nor_terminal_codes() -> None:
    nasty = "[bold]x[/bold] \x1b]0;owned\x07 \u202egnp.exe [link=http://x]y[/]"
    finding = Finding(
        kind=Kind.PAGEABLE_COPY,
        severity=Severity.LOW,
        share=None,
        summary=nasty,
        evidence={"site": nasty},
        loader=nasty,
        advice=nasty,
    )
    report = samples.input_bound(
        target=nasty,
        summary=nasty,
        findings=(finding,),
        recommendations=(samples.recommendation("num_workers", nasty, 4, code=nasty),),
        not_advised=(model.NotAdvised(setting=nasty, reason=nasty),),
        warnings=(model.ReportWarning(kind="k", text=nasty),),
        trials=(
            samples.trial(nasty, 2.0),
            samples.trial(nasty, None, status="failed", reason=nasty),
        ),
    )
    out = io.StringIO()
    Console(file=out, width=200, color_system="truecolor", force_terminal=True).print(
        render_report(report, folder=Path(nasty))
    )
    text = out.getvalue()
    assert "\x1b]" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert text.count("[bold]x[/bold]") >= 8


def test_what_was_not_recorded_is_said_and_never_zero() -> None:
    text = console_text(samples.nothing_recorded())
    assert text.count("not recorded") >= 2
    assert "0 ms" not in text
    assert "not applicable (no accelerator)" in console_text(samples.cpu_only())


VERDICTS: list[tuple[Bound, VerdictSeverity, str]] = [
    ("input", "high", "Waiting for the loader costs 11.3 of 13.1 ms a step (86 %)"),
    ("copy", "moderate", "Copying batches to the accelerator costs 0.039 of 13.1 ms"),
    ("host", "high", "Python and launching cost 1.32 of 13.1 ms a step (10 %)"),
    ("communication", "moderate", "Communication between ranks costs"),
    (
        "input",
        "uncertain",
        "The loader seems to take 86 % (85 to 88 %) of 13.1 ms a step, perhaps little",
    ),
    ("compute", "none", "Nothing worth changing. Computing takes"),
    ("unknown", "none", "No verdict: "),
]


@pytest.mark.parametrize(("bound", "severity", "start"), VERDICTS)
def test_every_verdict_is_a_sentence_with_figures(
    bound: Bound, severity: VerdictSeverity, start: str
) -> None:
    summary = samples.verdict(bound, severity).verdict.summary
    assert summary.startswith(start)
    assert summary.endswith(".")


def test_verdict_names_what_was_not_tried_as_not_tried() -> None:
    untried = samples.recommendation(
        "num_workers", 0, 7, measured_step_ms=None, measured_ci_ms=None, predicted_step_ms=1.8
    )
    report = samples.input_bound(recommendations=(untried,))
    assert (
        "Try num_workers=7: at best 1.80 ms a step, predicted by ablation;"
        in report.verdict.summary
    )
    changes = console_text(report).partition("What to change")[2]
    assert "1.80 ms a step, predicted by ablation" in changes
    assert "Every hour" not in console_text(report)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 120))
def test_cells_fill_the_bar_exactly(weights: list[float], width: int) -> None:
    given_cells = cells(weights, width)
    assert all(n >= 0 for n in given_cells)
    assert sum(given_cells) == (width if sum(weights) > 0 else 0)
    if width >= 2 * len(weights):
        total = sum(weights)
        for weight, n in zip(weights, given_cells, strict=True):
            assert n >= 1 or not total or weight / total * width < 0.1


def test_a_trials_speed_is_that_beside_the_loop_in_the_same_rounds() -> None:
    """The machine slowed down: 5 ms a step over all windows, 18 ms in the rounds of the trial."""
    paired = samples.trial("background host", 9.0, gain_ms=9.0, gain_ms_ci=(4.0, 14.0))
    report = samples.input_bound(trials=(samples.trial("as is", 5.0), paired))
    table = console_text(report, width=200).split("Trials, fastest first\n")[1]
    (row,) = (line for line in table.splitlines() if "background host" in line)
    assert " 2.0× " in row or " 2.00× " in row
    assert "speed: against the loop as it is in the same rounds." in table
    ranked = samples.trial("background host", 9.0, gain_ms=9.0, gain_confirmed=False)
    swept = samples.sweep()
    text = console_text(samples.input_bound(trials=(*swept.trials[:1], ranked)), width=200)
    assert "speed: beside" not in text
