"""Every stored screen tells one story: asked of the golden files, so that no view is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.console.test_page import REPORTS

GOLDEN = Path(__file__).parent / "golden"
SCREENS = sorted(GOLDEN.glob("*-[0-9]*.txt"))
BRIEF_AT_80 = sorted(GOLDEN.glob("*-brief-80.txt"))
LINES, SWEEP_LINES = 40, 60
# Of the reports that the files show, the ones with a warning that decides how far to trust them.
DOUBTED = {"sweep"}

REMEDY = re.compile(
    r"(?P<what>\S+=\S+(?: with \S+)?) brings the step to (?P<ms>[\d.]+) ms"
    "(?: for as many samples)?, "
)
TIMES = r"(?P<times>[\d.]+)×"
BAR = re.compile(
    r"with change 1 below(?:, for as many samples)? +(?P<ms>[\d.]+) ± [\d.]+ ms +━+ +" + TIMES
)
GAIN = re.compile(
    r"(?P<ms>[\d.]+) ± [\d.]+ ms (?:a step|for as many samples), measured here \("
    + TIMES
    + " as fast"
)
HOUR = re.compile(r"Every hour of this \w+ becomes (?:about )?([\d.]+) min")


def told(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


def test_every_report_is_kept_whole_and_brief_at_three_widths() -> None:
    assert len(SCREENS) == 6 * len(REPORTS)


@pytest.mark.parametrize("path", BRIEF_AT_80, ids=lambda path: path.stem)
def test_a_clear_case_fits_a_screen(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= (SWEEP_LINES if path.stem.startswith("sweep-") else LINES)


@pytest.mark.parametrize("path", SCREENS, ids=lambda path: path.stem)
def test_how_far_to_trust_it_is_said_where_it_matters_and_nowhere_else(path: Path) -> None:
    assert ("How far to trust it: " in told(path)) is (path.stem.split("-")[0] in DOUBTED)


def test_the_stories_that_are_compared_are_there() -> None:
    advised = [path for path in SCREENS if REMEDY.search(told(path))]
    assert {path.stem.split("-")[0] for path in advised} == {
        "input_bound", "ladder", "several_ranks", "sweep",
    }  # fmt: skip
    assert all(GAIN.search(told(path)) and HOUR.search(told(path)) for path in advised)
    assert any(BAR.search(told(path)) for path in advised)


@pytest.mark.parametrize("path", SCREENS, ids=lambda path: path.stem)
def test_headline_bars_first_advice_and_last_line_are_of_one_change(path: Path) -> None:
    text = told(path)
    remedy = REMEDY.search(re.split(r"The step |Trials, as published", text)[0])
    gain, bar, hour = GAIN.search(text), BAR.search(text), HOUR.search(text)
    if remedy is None:  # then nothing is advised with figures, anywhere
        assert (gain, bar, hour) == (None, None, None)
        return
    assert gain is not None
    assert hour is not None
    first = text.partition("What to change 1 ")[2]
    for setting in re.findall(r"\w+=\w+", remedy["what"]):
        assert setting in first.partition("measured here")[0], setting
    times = re.search(TIMES + " as fast", text)
    assert times is not None
    said = {(remedy["ms"], times["times"]), (gain["ms"], gain["times"])}
    if bar is not None:
        said.add((bar["ms"], bar["times"]))
    assert len(said) == 1, said
    # The ratio is printed with two digits, and minutes are whole from ten on.
    assert float(hour[1]) == pytest.approx(60 / float(times["times"]), rel=0.02, abs=0.5)
    assert text.count("Every hour") == 1


@pytest.mark.parametrize("path", SCREENS, ids=lambda path: path.stem)
def test_now_is_one_figure(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    step = re.search(r"^  ([\d.]+(?: ± [\d.]+)?) ms a step", text, re.MULTILINE)
    now = re.search(r"^  now +([\d.]+(?: ± [\d.]+)?) ms", text, re.MULTILINE)
    if now is not None:
        assert step is not None
        assert now[1] == step[1]
