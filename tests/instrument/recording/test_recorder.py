"""The recorder asks its tuner as soon as the tuner wants to hear, whoever told it last."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from loaderdoctor.instrument.recording.recorder import Recorder

STEP_NS = 1_000_000


class Listener:
    """Wants to hear of nothing for long at first, then of each step: a trial has begun."""

    def __init__(self) -> None:
        self.heard: list[int] = []  # the last mark, at each call
        self.answer = 1000

    def hear(self, at: list[int], flags: object, fetches: object) -> int:
        self.heard.append(at[-1])
        return self.answer

    def emptied(self) -> None: ...

    def news(self) -> None: ...


def test_what_is_answered_at_a_beat_counts_from_there() -> None:
    session: Any = SimpleNamespace(
        workers=SimpleNamespace(sums_folder=Path("nothing-there")),
        definition=SimpleNamespace(tick="step", train=(), clock=SimpleNamespace(feed=None)),
        wall=SimpleNamespace(n_epochs=0, record=lambda n: None),
        n_steps=0,
    )
    listener: Any = Listener()
    recorder = Recorder(session, tuner=listener)
    recorder._open(0)
    recorder._marks.due_ns = 10**12
    for step in range(1, 21):
        session.window.count(step * STEP_NS)
    assert listener.heard == [STEP_NS]  # and not before the thousandth
    listener.answer = 1
    session.n_steps = 20
    recorder._beat(20 * STEP_NS)
    recorder._marks.due_ns = 10**12
    for step in range(21, 25):
        session.window.count(step * STEP_NS)
    assert listener.heard[2:] == [step * STEP_NS for step in range(21, 25)]
