"""What a recorded run keeps while no step is made, and so no beat comes, does not grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loaderdoctor.instrument import recording
from loaderdoctor.instrument.recording import Recorder
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session import loop as loops
from loaderdoctor.instrument.session.hooks import Hooks
from tests.instrument.watched import QueuedChannel, Trainer, loader_of


def read_all(trainer: Trainer, loader: Any) -> None:
    for x, _ in loader:
        trainer.model(x)


def one_each(trainer: Trainer, loader: Any) -> None:
    for _ in range(400):
        x, _ = next(iter(loader))
        trainer.model(x)


@pytest.mark.parametrize("itself", [False, True], ids=["another", "itself"])
@pytest.mark.parametrize("read", [read_all, one_each])
def test_fetches_of_a_long_validation_are_not_kept(
    read: Callable[[Trainer, Any], None],
    itself: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "BEAT_NS", 10**12)
    monkeypatch.setattr(recording, "FIRST_STEPS", (8, 8))
    session = Session(QueuedChannel(), run_dir=tmp_path, records_workers=False)
    session.record_to_end(lambda session: Recorder(session))
    trainer, loader, others = Trainer(), loader_of(400), loader_of(400)
    hooks = Hooks(session)
    hooks.watch()
    try:
        for x, _ in loader:
            trainer.step(x)
        held = session.window.fetches
        assert held is not None
        n_of_steps = len(held)
        with torch.no_grad():
            read(trainer, loader if itself else others)
        assert session.window.fetches is held
        assert len(held) == n_of_steps > 300
        assert not session.window.boundaries
    finally:
        session.script_over("script-ended", 0)
        hooks.remove()


def test_a_loader_of_the_step_that_is_read_alone_is_kept_to_an_extent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "BEAT_NS", 10**12)
    monkeypatch.setattr(recording, "FIRST_STEPS", (8, 8))
    monkeypatch.setattr(loops, "MAX_FETCHES", 150)
    session = Session(QueuedChannel(), run_dir=tmp_path, records_workers=False)
    session.record_to_end(lambda session: Recorder(session))
    trainer, loader, beside = Trainer(), loader_of(60), loader_of(400)
    hooks = Hooks(session)
    hooks.watch()
    try:
        others = iter(beside)
        for x, _ in loader:
            trainer.step(x + next(others)[0])
        for x, _ in others:
            trainer.step(x)
        assert [x.role for x in session.registry.states] == ["train", "train"]
        assert session.window.fetches is not None
        assert len(session.window.fetches) == 150
    finally:
        session.script_over("script-ended", 0)
        hooks.remove()
