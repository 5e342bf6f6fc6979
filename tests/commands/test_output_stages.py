"""What a diagnosis says while it runs: for people at a terminal, and only for them."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pyte
import pytest
from rich.console import Console

from loaderdoctor.commands.output import Stages
from tests.commands.reading import read_to_end

LONG = "loaderdoctor: this text is of more words than fit one line, " + "and more " * 8 + "\n"


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None)


def test_a_stage_is_said_with_the_time_left_and_not_twice_at_once() -> None:
    now_s = [0.0]
    shown = console(terminal=True)
    stages = Stages(shown, clock=lambda: now_s[0])
    stages("profiling", 44.7)
    stages("trying settings", 30.0)
    stages("trying settings", 29.0)
    now_s[0] += 6.0
    stages("trying settings", 24.0)
    stages("stopping it")
    assert isinstance(shown.file, io.StringIO)
    said = " ".join(shown.file.getvalue().split())
    assert said.split("loaderdoctor: ")[1:] == [
        "profiling, about 45 s left ",
        "trying settings, about 30 s left ",
        "trying settings, about 24 s left ",
        "stopping it",
    ]


def test_a_pipe_gets_warnings_as_they_are_and_no_stages() -> None:
    shown = console(terminal=False)
    stages = Stages(shown)
    stages("profiling", 44.7)
    stages.warn(LONG)
    assert isinstance(shown.file, io.StringIO)
    assert shown.file.getvalue() == LONG


def test_a_warning_is_wrapped_between_words_in_a_terminal() -> None:
    shown = console(terminal=True)
    Stages(shown).warn(LONG)
    assert isinstance(shown.file, io.StringIO)
    lines = shown.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines) == LONG.strip()


# Where the first advice lacks a figure that holds at the budget's end (`budget.lacks`).
FOREIGN = re.compile(r"\[[A-Z]\d{4} |[A-Z]+:\d{4}-\d\d-\d\d ")  # torch's logs, on the same terminal
LONGER = r"first advice (?:is still a prediction|brings is known)"


@pytest.mark.slow
def test_diagnose_tells_every_stage_in_a_real_terminal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import time, torch
            from torch.utils.data import DataLoader, Dataset
            class Slow(Dataset):
                def __len__(self): return 512
                def __getitem__(self, i):
                    time.sleep(0.002)
                    return torch.randn(8)
            weight = torch.zeros(8, requires_grad=True)
            for _ in range(1000):
                for x in DataLoader(Slow(), batch_size=8):
                    (x * weight).sum().backward()
            """
        )
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", "20", str(script)]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm", "PYTHONWARNINGS": "ignore"},
    ) as process:  # fmt: skip
        os.close(theirs)
        said = read_to_end(ours)
        assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", said.decode()).replace("\r", "")
    stages = re.findall(r"loaderdoctor: ([a-z ]+)", text)
    for stage in (
        "measuring the loop as it is",
        "profiling",
        "comparing with batches already in memory",
    ):
        assert stage in stages
    # Every long step but the script's own start says how long it takes yet.
    silent = [x for x in text.splitlines() if x.startswith("loaderdoctor: ") and "left" not in x]
    told = ("not valid", "nearly done", LONGER)
    assert [x for x in silent if not any(re.search(one, x) for one in told)] == [
        "loaderdoctor: starting the script, for as long as its loop takes to be warm",
        "loaderdoctor: watching the first steps",
    ]
    for part in re.split(LONGER, text):  # from there on what is left is told of the second budget
        left = [int(s) for s in re.findall(r"about (\d+) s left", part)]
        assert left == sorted(left, reverse=True)
    first = re.findall(r"about (\d+) s left", re.split(LONGER, text)[0])
    assert len(first) >= 3 and int(first[0]) <= 20
    assert [x for x in text.splitlines() if len(x) > 80 and not FOREIGN.match(x)] == []


class Terminal(io.StringIO):
    """A screen of pyte's that reads what is written to it."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.screen = pyte.Screen(columns, rows)
        self.screen.set_mode(pyte.modes.LNM)  # as a terminal's driver: a line feed returns, too
        self._stream = pyte.Stream(self.screen)

    def write(self, text: str) -> int:
        self._stream.feed(text)
        return len(text)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]


def stages_of(terminal: Terminal, now_s: list[float]) -> Stages:
    shown = Console(
        file=terminal, width=terminal.screen.columns, force_terminal=True, color_system=None
    )
    size = (terminal.screen.columns, terminal.screen.lines)
    return Stages(shown, clock=lambda: now_s[0], size=lambda: size)


def test_the_stage_stays_at_the_foot_while_the_script_prints_above_it() -> None:
    terminal, now_s = Terminal(40, 10), [0.0]
    stages = stages_of(terminal, now_s)
    terminal.write("$ loaderdoctor diagnose train.py\n")
    for epoch in range(20):
        stages(f"stage {epoch}", 100.0 - epoch)
        terminal.write(f"epoch {epoch} ")  # in two pieces, with a stage between them
        stages("between", 3.0)
        terminal.write("done\n")
        assert terminal.lines[-1].startswith("loaderdoctor: between")
    # Eight lines of the script, whole, and the one that its next print goes to.
    assert terminal.lines[:9] == [f"epoch {epoch} done" for epoch in range(12, 20)] + [""]
    assert sum(line.startswith("loaderdoctor:") for line in terminal.lines) == 1


def test_the_foot_is_given_back_and_the_answer_goes_on_where_the_script_ended() -> None:
    terminal, now_s = Terminal(40, 10), [0.0]
    stages = stages_of(terminal, now_s)
    for line in range(12):
        terminal.write(f"line {line}\n")
        stages(f"stage {line}", 5.0)
    stages.close()
    stages.close()  # what was given back is not given back again
    terminal.write("Input-bound, high\n" + "".join(f"report {i}\n" for i in range(3)))
    assert not any(line.startswith("loaderdoctor:") for line in terminal.lines)
    assert terminal.lines[-5:] == ["Input-bound, high", "report 0", "report 1", "report 2", ""]
    assert terminal.screen.margins is None  # all of the screen scrolls again


def test_a_long_stage_is_cut_and_a_resized_terminal_gets_a_new_foot() -> None:
    terminal, now_s = Terminal(40, 10), [0.0]
    stages = stages_of(terminal, now_s)
    stages("trying settings " + "num_workers=2, " * 9, 5.0)
    assert len(terminal.lines[-1]) < 40
    terminal.screen.resize(12, 40)
    stages_taller = Stages(stages._console, size=lambda: (40, 12))
    stages_taller("next", 4.0)
    assert terminal.lines[-1] == "loaderdoctor: next, about 4 s left"


def test_a_terminal_of_few_rows_or_unknown_size_gets_lines() -> None:
    for size in ((40, 4), (0, 0)):
        shown = console(terminal=True)
        stages = Stages(shown, size=lambda size=size: size)  # type: ignore[misc]
        stages("profiling", 44.7)
        stages.close()
        assert isinstance(shown.file, io.StringIO)
        assert shown.file.getvalue().split() == (
            ["loaderdoctor:", "profiling,", "about", "45", "s", "left"]
        )
