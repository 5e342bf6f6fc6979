"""report.html in a real browser: nothing fetched, nothing said, nothing wider than the screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderdoctor.commands.analyze import AnalyzeOptions, analyze
from loaderdoctor.report.html import html
from tests.report import html_samples, samples
from tests.report.browser import Page, browser, executable
from tests.report.conftest import trace_path
from tests.report.sample_facts import facts, shares

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium is installed to open the page with"
)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "sweep": html(html_samples.many_trials(60), html_samples.extras()),
        "hostile": html(
            html_samples.hostile(samples.sweep()), html_samples.extras(html_samples.HOSTILE)
        ),
        "healthy": html(samples.healthy()),
        "ranks": html(samples.several_ranks(), html_samples.extras()),
        "nothing": html(samples.nothing_recorded()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


NAMES = ("sweep", "hostile", "healthy", "ranks", "nothing")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "width", [390, 1280, *(pytest.param(x, marks=pytest.mark.slow) for x in (320, 768))]
)
def test_a_page_fits_its_screen_and_asks_for_nothing(
    name: str, width: int, page: Page, pages: dict[str, Path]
) -> None:
    page.open(pages[name], width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.messages == []
    assert page.requests == [pages[name].as_uri()]
    assert page.evaluate("document.scripts.length") == 0


@pytest.mark.parametrize(("width", "kind"), [(390, "narrow"), (1280, "wide")])
def test_the_charts_of_the_width_are_shown_and_the_others_hidden(
    width: int, kind: str, page: Page, pages: dict[str, Path]
) -> None:
    page.open(pages["sweep"], width=width)
    shown = "[...document.querySelectorAll('.chart svg')].filter(x => x.checkVisibility())"
    assert page.evaluate(f"{shown}.every(x => x.closest('.{kind}'))") is True
    assert page.evaluate(f"{shown}.length") > 8


def test_the_answer_is_on_the_first_screen_of_a_phone(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["sweep"], width=390, height=844)
    bottom = "document.querySelector('.bar').getBoundingClientRect().bottom"
    assert page.evaluate(bottom) < 844


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of recorded traces: bound by its loader, by a copy, and by nothing of the two."""
    folder = tmp_path_factory.mktemp("recorded")
    for case in RECORDED:
        analyze(AnalyzeOptions(traces=(trace_path(case),), output=folder / case))
    return {case: folder / case / "report.html" for case in RECORDED}


RECORDED = ("respawn_each_epoch", "pageable_big_copy", "enough_workers")


@pytest.mark.parametrize("case", RECORDED)
def test_the_page_of_a_recorded_trace_is_quiet_and_fits_on_screens_and_paper(
    case: str, page: Page, recorded: dict[str, Path]
) -> None:
    for width in (390, 1280):
        for dark in (False, True):
            page.open(recorded[case], width=width, dark=dark)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.messages == []
            assert page.requests == [recorded[case].as_uri()]
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            shade = sum(map(int, re.findall(r"\d+", paper)[:3])) / 3
            assert shade < 64 if dark else shade > 192
    # Paper is white and as wide as A4, whatever the screen was.
    page.open(recorded[case], width=1280, dark=True)
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=A4_WIDTH, height=1000, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    try:
        assert page.evaluate("document.documentElement.scrollWidth") <= A4_WIDTH
        assert page.evaluate("getComputedStyle(document.body).color") == PRINTED_INK
        assert page.printed().startswith(b"%PDF")
    finally:
        page.call("Emulation.setEmulatedMedia", media="")


A4_WIDTH = 794  # CSS pixels
PRINTED_INK = "rgb(27, 30, 35)"


def test_text_can_be_read_in_light_and_dark(page: Page, pages: dict[str, Path]) -> None:
    """WCAG AA: 4.5 between text and what lies behind it."""
    for dark in (False, True):
        page.open(pages["sweep"], width=390, dark=dark)
        assert page.evaluate(_CONTRAST) >= 4.5


# The worst contrast of the colours that text is set in, against those it stands on.
_CONTRAST = """
(() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue('--' + name).trim();
    const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
      .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const pairs = [['ink', 'paper'], ['muted', 'paper'], ['muted', 'track'], ['muted', 'card'],
    ['red', 'red-soft'], ['amber', 'amber-soft'], ['green', 'green-soft'],
    ['green', 'add'], ['red', 'del'], ['ink', 'card']];
  return Math.min(...pairs.map(([a, b]) => {
    const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  }));
})()
"""


# Names that the bar shows, and those that are cut: partly in sight within their own part of it.
_NAMES = """[...document.querySelectorAll('.bar i')].map(part => {
    const box = part.getBoundingClientRect(), name = part.firstElementChild.getBoundingClientRect();
    const hidden = name.top >= box.bottom;
    return [part.innerText, hidden ? 'hidden' : name.right <= box.right ? 'shown' : 'cut'];
})"""


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("share", [0.1, 0.15, 0.18, 0.25])
def test_a_name_in_the_bar_is_whole_or_not_there(
    share: float, width: int, page: Page, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(html(samples.uncertain(input_share=1 - share)))
    page.open(tmp_path / "page.html", width=width)
    names = dict(page.evaluate(_NAMES))
    assert names["input"] == "shown"
    assert "cut" not in names.values()
    if (share, width) == (0.25, 1280):
        assert names["compute"] == "shown"
    if (share, width) == (0.1, 320):
        assert names["compute"] == "hidden"


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_table_of_the_step_ends_where_its_bar_ends(
    width: int, page: Page, tmp_path: Path
) -> None:
    parts = shares(input=0.87, communication=0.09, host=0.02, compute=0.02, copy=None)
    text = html(samples.verdict("input", "high", facts=facts(shares=parts)))
    (tmp_path / "page.html").write_text(text)
    page.open(tmp_path / "page.html", width=width)
    table, bar = (
        f"document.querySelector('{x}').getBoundingClientRect().right" for x in (".parts", ".bar")
    )
    assert page.evaluate(table) <= page.evaluate(bar) + 0.5
