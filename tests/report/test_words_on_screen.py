"""No word of ours on any stored screen: read from the golden files, so that every view is asked."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from loaderdoctor.report.html import html
from loaderdoctor.setting_words import READINGS, heading, label, phrase
from loaderdoctor.settings import AXES, Settings
from tests.report.console.test_page import REPORTS

ROOT = Path(__file__).parent.parent.parent
GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
# Axes that torch has under the same name; the others are words of our command line and JSON.
TORCHS = {
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order",
    "non_blocking", "batch_size",
}  # fmt: skip
OURS = [axis.name for axis in AXES if axis.name not in TORCHS]
# As a setting (`cache=True`, `cache off → on`, `background host`), and, of names that are no
# words, anywhere. `torch.set_num_threads` and `torch.channels_last` are torch's own.
AS_SETTING = re.compile(
    rf"(?<![\w.])(?:{'|'.join(OURS)})"
    r"(?:=\S|:? (?:as is|on|off|True|False|host|device)\b(?! a| the))"
)
AS_WORD = re.compile(
    rf"(?<![\w.])(?:{'|'.join(n for n in OURS if '_' in n)})\b|(?<![-\w.])resident\b"
)
# Words that say something to us alone: the screens have plainer ones.
OLD_GLOSSARY = re.compile(
    r"\b(?:visits?|looks? at code|bench|hot lines?|withheld|doorway|handover|dips|loaderless|"
    r"yardsticks?|confront\w*|glimpsed|ready batch(?:es)?|anew|beside|of its own|is no|are no)\b"
    r"|\bas is → ",
    re.IGNORECASE,
)
# On pages, which may say more: words of ours that have a plain one (refused, track, again, ...).
ON_PAGES = re.compile(
    r"\b(?:withheld|lanes?|anew|dips?|hot lines?|looks? at code|bench|doorway|loaderless|"
    r"yardsticks?|confront\w*|glimpsed|races them|in the race)\b",
    re.IGNORECASE,
)
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
TO_PERCENT = re.compile(r"([\d.]+) to ([\d.]+) %")
NOISE = re.compile(r"([\d.,]+) ± ([\d.,]+)")


def test_there_are_screens_to_ask() -> None:
    assert len(GOLDEN) >= 50


def ours_in(text: str) -> list[str]:
    """Words of ours in what a reader sees."""
    text = " ".join(text.split())
    return [
        found[0] for words in (AS_SETTING, AS_WORD, OLD_GLOSSARY) for found in words.finditer(text)
    ]


def beyond_all(text: str) -> list[str]:
    """Intervals that hold less than nothing or more than all, and noise larger than its figure."""
    shares = [
        x for x in TO_PERCENT.finditer(text) if not all(0 <= float(x[i]) <= 100 for i in (1, 2))
    ]
    noisy = [x for x in NOISE.finditer(text) if _number(x[2]) > _number(x[1])]
    return [found[0] for found in (*shares, *noisy)]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_screen_speaks_no_word_of_ours(path: Path) -> None:
    assert ours_in(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_no_interval_holds_more_than_all_and_no_noise_more_than_its_figure(path: Path) -> None:
    assert beyond_all(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", REPORTS)
def test_nor_does_its_page(name: str) -> None:
    body = html(REPORTS[name]()).partition("<body>")[2]
    seen = unescape(re.sub(r"<code>[a-z-]+</code>|<[^>]*>", " ", body))  # but names of findings
    assert "loaderdoctor" in seen
    assert ours_in(seen) == []
    assert beyond_all(seen) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_speaks_no_word_of_ours_that_has_a_plain_one(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^(```.*?^```|    .*?$)", " ", text, flags=re.MULTILINE | re.DOTALL)  # code
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)  # code in a line, addresses
    assert [found[0] for found in ON_PAGES.finditer(text)] == []


def test_the_patterns_find_what_they_are_for() -> None:
    for bad in ("cache=True", "background host", "resident: off", "persistent_workers as is → on"):
        assert AS_SETTING.search(bad) or AS_WORD.search(bad) or OLD_GLOSSARY.search(bad), bad
    for fine in ("the cache on the disk", "torch.set_num_threads(1)", "kept in memory"):
        assert not AS_SETTING.search(fine), fine
        assert not AS_WORD.search(fine), fine


def test_what_no_figure_may_be_is_found() -> None:
    assert beyond_all("seems to take 17 % (-3 to 137 %)") == ["3 to 137 %"]
    assert beyond_all("83 ± 90 ms; 1,000 ± 900 ms") == ["83 ± 90"]
    assert ours_in("num_workers=2, cache=True brings it, beside a ready\n batch") == [
        "cache=T", "beside", "ready batch",
    ]  # fmt: skip
    assert beyond_all("17 % (0 to 37 %), 83 ± 20 ms") == ours_in("num_workers=2") == []


def test_every_axis_has_its_words_and_none_is_an_axis_name_of_ours() -> None:
    assert list(READINGS) == [axis.name for axis in AXES]
    values = {"bool": (True, False), "int": (2,), "share": (0.4,)}
    for axis in AXES:
        assert heading(axis.name)
        for value in values.get(axis.kind, axis.choices):
            said = f"{label(axis.name, value)}; {phrase(axis.name, value)}; {heading(axis.name)}"
            assert not AS_SETTING.search(said), said
            assert axis.name in TORCHS or not AS_WORD.search(said), said


def test_what_is_switched_off_is_said_of_a_change_alone() -> None:
    assert label("side_stream", False) == ""
    assert phrase("side_stream", False) == "copying on the loop's own stream"
    assert phrase("amp", False) == "no AMP"
    assert phrase("persistent_workers", False) == "persistent_workers=False"
    assert phrase("background", "off") == "no background thread"
    assert Settings(cache=True).label() == "keeping prepared samples in memory"
