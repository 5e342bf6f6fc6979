"""The recorder asks its tuner as soon as the tuner wants to hear, whoever told it last."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaderdoctor.instrument import recording as recorder_module
from loaderdoctor.instrument.recording import Recorder
from loaderdoctor.instrument.recording.process_counts import queue_fill
from loaderdoctor.instrument.wire.measured import QueueFill

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


def pool(n_ready: int, n_asked: int) -> Any:
    """An iterator with workers, as torch keeps its books; one batch came before its turn."""
    results = SimpleNamespace(qsize=lambda: n_ready - 1)
    return SimpleNamespace(
        _tasks_outstanding=n_asked,
        _task_info={0: (1,), 1: (0, "batch"), 2: (1,)},
        _data_queue=results,
        _worker_result_queue=results,
    )


def test_a_beat_tells_the_faults_since_the_last_and_how_full_the_queues_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = iter([(1_000, 7), (1_050, 8)])
    monkeypatch.setattr(recorder_module, "_faults", lambda: next(faults))
    looks: list[str] = []

    def iterator() -> Any:
        looks.append("look")
        return pool(3, 4)

    feed = SimpleNamespace(iterator=iterator)
    session: Any = SimpleNamespace(
        workers=SimpleNamespace(sums_folder=Path("nothing-there")),
        definition=SimpleNamespace(tick="step", train=(), clock=SimpleNamespace(feed=lambda: feed)),
        wall=SimpleNamespace(n_epochs=0, record=lambda n: None),
        n_steps=0,
    )
    recorder = Recorder(session)
    recorder._open(0)
    recorder._marks.due_ns = 10**12
    for step in range(1, 21):
        session.window.count(step * STEP_NS)
    assert not looks  # not at each step
    beat = recorder._beat(20 * STEP_NS)
    assert beat.queue == QueueFill(n_ready=3, n_asked=4)
    assert looks == ["look"]
    assert (beat.minor_faults, beat.major_faults) == (50, 1)


def test_queues_that_are_not_torchs_are_not_guessed_at() -> None:
    assert queue_fill(SimpleNamespace(_tasks_outstanding=4)) is None
    assert queue_fill(iter(())) is None


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
