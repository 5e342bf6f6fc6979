"""Each setting in each sentence that speaks of settings, kept as a page to be read.

The page is tests/report/golden/setting_sentences.txt; LOADERDOCTOR_REFRESH_GOLDEN=1 writes it
again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from loaderdoctor.findings import Outcome, Prediction, Tested
from loaderdoctor.report.model import Recommendation
from loaderdoctor.report.words.changes import changes_of, leader_not_advised
from loaderdoctor.report.words.summary import verdict_sentence
from loaderdoctor.setting_words import (
    READINGS,
    Value,
    capitalised,
    heading,
    label,
    phrase,
    together,
)
from loaderdoctor.settings import AXES, Settings
from tests.report import samples
from tests.report.sample_facts import facts, with_gpu

GOLDEN = Path(__file__).parents[1] / "golden" / "setting_sentences.txt"
_VALUES: dict[str, tuple[Value, ...]] = {
    "bool": (True, False), "int": (2,), "share": (0.4,), "choice": (), "text": (),
}  # fmt: skip
_FREE: dict[str, tuple[Value, ...]] = {
    "storage": ("/mnt/ssd",), "augment": ("no-RandomCrop",), "fields": ("image",),
}  # fmt: skip
VALUES = [
    (axis.name, value)
    for axis in AXES
    for value in (*_VALUES[axis.kind], *axis.choices, *_FREE.get(axis.name, ()))
]


def advised(name: str, value: Value, **figures: float | None) -> tuple[Recommendation, ...]:
    return (samples.recommendation(name, None, value, code="", **figures),)


def verdict_with(rows: tuple[Recommendation, ...]) -> str:
    said = verdict_sentence("input", "high", facts=with_gpu(), recommendations=rows)
    return said.partition("recorded. ")[2]


def sentences(name: str, value: Value) -> Iterator[str]:
    """As the verdict, the list of changes, the trials and the findings have it."""
    untried: dict[str, float | None] = {"measured_step_ms": None, "predicted_step_ms": 1.8}
    yield verdict_with(advised(name, value))
    yield verdict_with(advised(name, value, measured_step_ms=14.0, own_step_ms=20.0))
    yield verdict_with(advised(name, value, **untried))
    yield verdict_with(advised(name, value, **untried, seen_step_ms=3.0, own_step_ms=13.0))
    still = advised(name, value)
    healthy = verdict_sentence("compute", "none", facts=facts(), recommendations=still)
    yield healthy.partition("0.039 ms. ")[2]
    yield f"1  {changes_of(still)[0].title()}"
    wanted = Settings(**{name: value})  # type: ignore[arg-type]
    outcome = Outcome(settings=wanted, step_ms=2.0, own_ms=13.0, gain_low_ms=9.0, gain_high_ms=13.0)
    guess = Prediction(sentence="It would help.", setting=name)
    yield f"A trial {Tested(prediction=guess, outcome=outcome).sentence}"
    base = samples.trial("as is", 14.8, settings={})
    first = samples.trial(wanted.label(), 2.0, settings={name: value}, gain_ms=None)
    report = structs.replace(samples.input_bound(), trials=(base, first), recommendations=())
    yield (leader_not_advised(report) or "-").partition(" (")[0]


def page() -> str:
    lines = []
    for name, value in VALUES:
        if READINGS[name].spelling and value not in (True, 2):
            continue  # reads as the others of torch's own do
        listed = label(name, value) or "goes without saying"
        lines += ["", f"{heading(name)}: {phrase(name, value)} (in a list: {listed})"]
        lines += [f"    {said}" for said in sentences(name, value)]
    return "\n".join(lines[1:]) + "\n"


def test_every_setting_in_every_sentence() -> None:
    written = page()
    if os.environ.get("LOADERDOCTOR_REFRESH_GOLDEN"):
        GOLDEN.write_text(written, encoding="utf-8")
    assert written == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_phrase_is_one_thing_that_stands_in_any_sentence(name: str, value: Value) -> None:
    said = phrase(name, value)
    first = said.split()[0]
    assert said
    assert ":" not in said
    assert not said.endswith(".")
    if not READINGS[name].spelling:
        # A gerund, or a noun in the singular: no past participle, which only a list could take.
        assert not first.endswith("ed"), said
        assert " kept " not in said


def test_settings_of_ours_come_first_and_torchs_follow_with() -> None:
    assert together([("num_workers", 7)]) == "num_workers=7"
    assert together([("num_workers", 7), ("cache", True)]) == (
        "keeping prepared samples in memory with num_workers=7"
    )
    three = [("num_workers", 7), ("pin_memory", True), ("non_blocking", True)]
    assert together(three) == "num_workers=7 with pin_memory=True and non_blocking=True"
    assert together([("num_workers", 7)], "the main guard") == "num_workers=7 with the main guard"


def test_a_sentence_begins_with_a_capital_but_a_setting_keeps_its_spelling() -> None:
    assert capitalised("keeping prepared samples in memory").startswith("Keeping")
    for spelling in ("num_workers=7", "gc.freeze()", "torch.compile", "memory_format=torch.x"):
        assert capitalised(spelling) == spelling
