"""What the report says of a loop that replays its first epoch from memory."""

from __future__ import annotations

from loaderdoctor.report.console import console_text
from loaderdoctor.report.words.method import of_first_epoch
from tests.report import samples


def test_a_loop_that_replays_its_first_epoch_is_told_so_in_the_first_words() -> None:
    text = console_text(of_first_epoch(samples.input_bound()))
    first_screen = " ".join(text.partition("The step\n")[0].split())
    assert "That is in the first epoch only: the loop then replays its batches" in first_screen


def test_of_a_loop_that_does_not_wait_nothing_is_said_of_its_first_epoch() -> None:
    report = samples.healthy()
    assert of_first_epoch(report) == report
