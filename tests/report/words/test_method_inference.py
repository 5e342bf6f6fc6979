"""A loop that does not train has words that fit it, and what goes before training has its line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from loaderdoctor.instrument.wire.records import PassRecord
from loaderdoctor.report import model
from loaderdoctor.report.console import console_text
from loaderdoctor.report.words.first_screen import before_training_sentence
from loaderdoctor.report.words.method import of_inference
from loaderdoctor.report.words.verdict import headline
from loaderdoctor.report.words.whole_run import meaning
from tests.report import samples
from tests.report.sample_facts import facts

STATISTICS = PassRecord(
    loader="train.py:22", site="train.py:25", n_batches=2000, n_passes=8, took_s=25.4,
    code="for x, _ in loader:", calls_model=False,
)  # fmt: skip
SKIPPED = PassRecord(
    loader="train.py:22", site="train.py:25", n_batches=2500, took_s=40.0, skips=True
)


def report(**changes: Any) -> model.Report:
    return samples.verdict("input", "high", facts=replace(facts(), **changes))


def test_inference_is_named_in_the_headline_and_its_times_are_of_batches() -> None:
    shown = report(trains=False, calls_model=True)
    assert headline(shown) == ("Input-bound inference", "high")
    text = console_text(shown)
    assert "a batch" in text
    assert "a step" not in shown.verdict.summary
    assert "training" not in text.partition("Method")[0].replace("before training", "")


def test_a_loop_that_trains_keeps_its_words() -> None:
    shown = report()
    assert of_inference(shown) is shown
    assert headline(shown) == ("Input-bound", "high")
    assert "a step" in shown.verdict.summary


def test_of_a_pass_that_is_only_read_nothing_is_promised() -> None:
    shown = samples.verdict(
        "unknown", "none", facts=replace(facts(), trains=False, calls_model=False)
    )
    assert headline(shown) == ("No training seen", "")
    assert "If training follows, this says nothing of it" in shown.verdict.summary
    faster = msgspec.structs.replace(
        shown,
        recommendations=samples.input_bound().recommendations,
        step=samples.input_bound().step,
    )
    assert meaning(samples.input_bound()) is not None
    assert meaning(faster) is None


def test_an_hour_of_inference_is_called_that() -> None:
    shown = msgspec.structs.replace(samples.input_bound(), trains=False, calls_model=True)
    assert "Every hour of this inference" in (meaning(shown) or "")


def test_passes_before_training_have_a_line_with_their_seconds() -> None:
    shown = report(before_training=(STATISTICS, SKIPPED))
    said = before_training_sentence(shown)
    assert said == (
        "Before training began: 25.4 s in 8 passes over train.py:22 (train.py:25; 2,000 batches); "
        "40.0 s in 2,500 batches of train.py:22 that were thrown away (train.py:25)."
    )
    assert "2,000 batches" in console_text(shown)
    assert shown.before_training[0].n_passes == 8


def test_a_check_of_two_batches_has_none() -> None:
    short = msgspec.structs.replace(STATISTICS, took_s=0.2, n_batches=2)
    shown = report(before_training=(short,))
    assert before_training_sentence(shown) is None
    assert len(shown.before_training) == 1
