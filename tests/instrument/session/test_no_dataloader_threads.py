"""Threads that train without a DataLoader, side by side or one behind the other."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from loaderdoctor.instrument.session import Session, no_dataloader
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.session.no_dataloader import NoDataLoaderWatch
from loaderdoctor.instrument.wire.protocol import FromRun, NoDataLoader, Note
from tests.instrument.watched import QueuedChannel, Trainer


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns all the time."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@contextmanager
def watching(folder: Path) -> Iterator[tuple[NoDataLoaderWatch, list[FromRun]]]:
    """As `diagnose` watches a script; what it tells."""
    channel = QueuedChannel()
    session = Session(channel, run_dir=folder, records_workers=False)
    hooks = Hooks(session)
    hooks.watch()
    watch = NoDataLoaderWatch(session)
    session.no_dataloader = watch.stepped
    try:
        yield watch, channel.sent
    finally:
        session.script_over("script-ended", 0)
        hooks.remove()


def started(step: Callable[[], object], seconds: float) -> threading.Thread:
    """A thread that makes steps for so long."""

    def work() -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            step()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.usefixtures("often")
def test_threads_that_share_an_optimizer_do_not_end_the_watch(tmp_path: Path) -> None:
    optimizer = Trainer().optimizer
    with watching(tmp_path) as (watch, sent):
        for thread in [started(lambda: watch.stepped(optimizer), 0.5) for _ in range(3)]:
            thread.join()
        assert not [m.text for m in sent if isinstance(m, Note)]


def test_steps_are_followed_to_the_next_thread_where_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_dataloader, "MIN_S", 0.3)
    monkeypatch.setattr(no_dataloader, "SAMPLED_S", 0.1)
    trainer, x = Trainer(), torch.ones(2, 4)
    with watching(tmp_path) as (_, sent):
        for seconds in (0.1, 3.0):
            started(lambda: trainer.step(x), seconds).join()
        (told,) = [m for m in sent if isinstance(m, NoDataLoader)]
    assert told.site.startswith("watched.py:")
    assert told.trace_path is not None
