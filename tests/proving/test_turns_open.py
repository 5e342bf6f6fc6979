"""Turns that differ too much to decide anything end early, and more of them say how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loaderdoctor.instrument.wire.channel import CheckedRun, CheckedStep
from loaderdoctor.proving import turns
from loaderdoctor.proving.turns import Side, Turns, in_turns


def side(name: str) -> Side:
    return Side(name=name, kind="script", target="t.py", args=(), cwd=Path())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("swing", "n_turns", "said"),
    [(0.5, 6, "and so would 12: runs differ too much"), (0.12, 12, ": 6 more of them, about ")],
)
def test_a_proof_ends_where_its_last_turn_would_leave_it_open(
    swing: float, n_turns: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a change that gains 20 %, turns swing about it by so much."""
    done: list[str] = []

    def run(side: Side, out: Path, how: Turns) -> CheckedRun:
        i = len(done) // 2
        done.append(side.name)
        by = 1.2 * (1 + swing * (-1) ** i) if side.name == "original" else 1.0
        return CheckedRun(
            steps=(CheckedStep(inputs="a", loss=1.0),),
            step_ns=(0, round(1e6 * by), round(2e6 * by)),
            ended="stopped",
        )

    monkeypatch.setattr(turns, "_run", run)
    words: list[str] = []
    say: Callable[[str], None] = words.append
    found = in_turns(side("original"), side("changed"), Turns(), started=say)
    assert len(done) == 2 * n_turns == 2 * found.speed_up.n
    assert any(said in text for text in words), words


@pytest.mark.parametrize(("times", "n_turns"), [((18.0, 60.0, 30.0), 3), ((2.0, 60.0, 12.0), 6)])
def test_turns_whose_interval_holds_anything_end_where_the_gain_is_certain(
    times: tuple[float, ...], n_turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step that takes 1.3 to 1.5 ms then; a run of 2 ms is not far from these."""
    done: list[str] = []

    def run(side: Side, out: Path, how: Turns) -> CheckedRun:
        i = len(done) // 2
        done.append(side.name)
        ms = times[i % 3] if side.name == "original" else 1.3 + 0.2 * (i % 2)
        return CheckedRun(
            steps=(CheckedStep(inputs="a", loss=1.0),),
            step_ns=(0, round(1e6 * ms)),
            ended="stopped",
        )

    monkeypatch.setattr(turns, "_run", run)
    found = in_turns(side("original"), side("changed"), Turns(), started=lambda said: None)
    assert found.speed_up.n == n_turns
