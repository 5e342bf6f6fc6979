"""Lines on stderr: one a minute, and never into a progress bar's."""

from __future__ import annotations

import io
from pathlib import Path

from loaderdoctor.alerts import Alert
from loaderdoctor.commands.run.listen import CLEAR, Teller


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def alert(text: str) -> Alert:
    return Alert(kind="slower", at_s=0.0, step=1, text=text, advice="Do this.")


def test_at_most_one_line_a_minute_in_order() -> None:
    out = io.StringIO()
    teller = Teller(out)
    for text in ("One.", "Two.", "Three."):
        teller.add(alert(text))
    assert [teller.tell(float(s)) is not None for s in range(0, 130, 10)].count(True) == 3
    assert out.getvalue().splitlines() == [
        f"loaderdoctor: {text} Do this." for text in ("One.", "Two.", "Three.")
    ]


def test_on_a_terminal_the_bar_is_cleared_first_and_comes_again_below() -> None:
    out = Terminal()
    out.write(" 42%|####      |")
    Teller(out).say("Slower.")
    assert out.getvalue() == f" 42%|####      |{CLEAR}loaderdoctor: Slower.\n"


def test_in_a_file_a_line_begins_on_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("a") as log:
        teller = Teller(log)
        teller.say("First.")
        log.write(" 42%|####")
        log.flush()
        teller.say("Second.")
    assert path.read_text().splitlines() == [
        "loaderdoctor: First.",
        " 42%|####",
        "loaderdoctor: Second.",
    ]


def test_a_text_of_the_scripts_cannot_steer_the_terminal() -> None:
    out = io.StringIO()
    Teller(out).say("worker \x1b[2J died")
    assert "\x1b" not in out.getvalue()
