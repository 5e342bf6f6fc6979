"""No word of ours on any stored screen: read from the golden files, so that every view is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loaderdoctor.setting_words import READINGS, heading, label, phrase
from loaderdoctor.settings import AXES, Settings

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
# HOUSE: what these words were replaced by stands in docs/architecture.md and in the reports.
OLD_GLOSSARY = re.compile(
    r"\b(?:visits?|looks? at code|bench|hot lines?|withheld|doorway|handover|dips|loaderless|"
    r"yardsticks?|confront\w*|glimpsed|ready batch(?:es)?|anew|beside|of its own|is no|are no)\b"
    r"|\bas is → ",
    re.IGNORECASE,
)
TO_PERCENT = re.compile(r"([\d.]+) to ([\d.]+) %")
NOISE = re.compile(r"([\d.,]+) ± ([\d.,]+)")


def test_there_are_screens_to_ask() -> None:
    assert len(GOLDEN) >= 50


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_screen_speaks_no_word_of_ours(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").split())
    for words in (AS_SETTING, AS_WORD, OLD_GLOSSARY):
        assert words.findall(text) == []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_no_interval_holds_more_than_all_and_no_noise_more_than_its_figure(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert all(0 <= float(edge) <= 100 for pair in TO_PERCENT.findall(text) for edge in pair)
    for value, margin in NOISE.findall(text):
        assert float(margin.replace(",", "")) <= float(value.replace(",", ""))


def test_the_patterns_find_what_they_are_for() -> None:
    for bad in ("cache=True", "background host", "resident: off", "persistent_workers as is → on"):
        assert AS_SETTING.search(bad) or AS_WORD.search(bad) or OLD_GLOSSARY.search(bad), bad
    for fine in ("the cache on the disk", "torch.set_num_threads(1)", "kept in memory"):
        assert not AS_SETTING.search(fine), fine
        assert not AS_WORD.search(fine), fine


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
