"""Steps handed out in one piece are told as those that went the whole way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.instrument import recording
from loaderdoctor.instrument.recording import Recorder
from loaderdoctor.instrument.recording.loop_tuner import LoopTuner
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session import loop as loops
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.wire.protocol import Beat, Note
from tests.instrument.watched import Numbers, QueuedChannel, Trainer, loader_of

N = 160  # batches of an epoch
# Our Python functions in a plain step: the hooks of `__next__` and of the optimizer, and one more.
MAX_CALLS_A_STEP = 3
MAX_CALLS_A_TUNED_STEP = 6  # the pass, torch's iterator in it, and the sampler's


class Fussy(Numbers):
    """Fails at one sample."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 151:
            raise ValueError("no such sample")
        return super().__getitem__(index)


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """Has no length."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        yield from (Numbers(2 * N)[i] for i in range(2 * N))


def plain() -> None:
    trainer, loader = Trainer(), loader_of(N, shuffle=True)
    for _ in range(3):
        for x, _ in loader:
            trainer.step(x)


def left_early() -> None:
    trainer, loader = Trainer(), loader_of(N)
    for epoch in range(4):
        for n, (x, _) in enumerate(loader):
            trainer.step(x)
            if n == 100 + epoch:
                break


def validated() -> None:
    trainer, loader, others = Trainer(), loader_of(N), loader_of(5)
    for _ in range(3):
        for n, (x, _) in enumerate(loader):
            trainer.step(x)
            if n % 50 == 49:
                with torch.no_grad():
                    for y, _ in others:
                        trainer.model(y)


def two_a_step() -> None:
    trainer, loader, other = Trainer(), loader_of(N), loader_of(3 * N)
    others = iter(other)
    for _ in range(2):
        for x, _ in loader:
            y, _ = next(others)
            trainer.step(x + y)


def begun_late() -> None:
    """Another loader, in a few steps of many, once all is recorded; validation besides."""
    trainer, loader, others, val = Trainer(), loader_of(4 * N), loader_of(N), loader_of(5)
    batches, made = iter(others), 0
    for _ in range(2):
        for x, _ in loader:
            drawn = made >= 600 and made % 20 == 0
            trainer.step(torch.cat([x, next(batches)[0]]) if drawn else x)
            made += 1
            if made % 50 == 0:
                with torch.no_grad():
                    for y, _ in val:
                        trainer.model(y)


def itself_validated() -> None:
    trainer, loader = Trainer(), loader_of(N)
    for _ in range(3):
        for x, _ in loader:
            trainer.step(x)
        with torch.no_grad():
            for x, _ in loader:
                trainer.model(x)


def without_length() -> None:
    trainer, loader = Trainer(), DataLoader(Stream(), 2)
    for _ in range(3):
        for x, _ in loader:
            trainer.step(x)


def failing() -> None:
    trainer, loader = Trainer(), DataLoader(Fussy(2 * N), 2)
    for _ in range(3):
        batches = iter(loader)
        for _ in range(N):
            with suppress(ValueError):
                x, _ = next(batches)
                trainer.step(x)


def saved() -> None:
    trainer, loader = Trainer(), loader_of(N)
    for _ in range(2):
        for n, (x, _) in enumerate(loader):
            trainer.step(x)
            if n % 40 == 39:
                torch.save(trainer.model.state_dict(), "/dev/null")


def replayed() -> None:
    trainer, kept = Trainer(), []
    for x, _ in loader_of(N):
        trainer.step(x)
        kept.append(x)
    for x in kept * 2:
        trainer.step(x)


SHAPES: list[Callable[[], None]] = [
    plain,
    left_early,
    validated,
    two_a_step,
    begun_late,
    itself_validated,
    without_length,
    failing,
    saved,
    replayed,
]


def told(loop: Callable[[], None], folder: Path, *, tuned: bool = False) -> list[Any]:
    """Records a loop; its beats, without times."""
    channel = QueuedChannel()
    session = Session(channel, run_dir=folder, records_workers=False)
    session.record_to_end(
        lambda session: Recorder(session, tuner=LoopTuner(session, exact=True) if tuned else None)
    )
    hooks = Hooks(session)
    hooks.watch()
    try:
        loop()
    finally:
        session.script_over("script-ended", 0)
        hooks.remove()
    broken = [m.text for m in channel.sent if isinstance(m, Note) and m.kind == "internal-error"]
    assert not broken, broken[0]
    return [_counts(m) for m in channel.sent if isinstance(m, Beat)]


def _counts(beat: Beat) -> Any:
    sums = beat.sums
    return (
        (beat.n_steps, beat.n_epochs),
        (sums.n_steps, sums.n_starts, sums.n_gaps, sums.n_besides),
        (beat.wall.n_steps, beat.wall.n_crossings, beat.wall.n_gaps) if beat.wall else None,
        (sum(beat.step_bins.values()), sum(beat.wait_bins.values())),
        tuple(x.step for x in beat.blocks),
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beat, at the end; the first window is short."""
    monkeypatch.setattr(recording, "BEAT_NS", 10**12)
    monkeypatch.setattr(recording, "FIRST_STEPS", (8, 8))
    monkeypatch.setattr(recording, "BLOCK_NS", 1)


@pytest.mark.parametrize("loop", SHAPES, ids=lambda x: x.__name__)
def test_quick_steps_are_told_as_others_are(
    loop: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_whole = 0
    fetch = loops.Loop.fetch

    def counted(self: Any, feed: Any, own: Any) -> Any:
        nonlocal n_whole
        n_whole += 1
        return fetch(self, feed, own)

    monkeypatch.setattr(loops.Loop, "fetch", counted)
    quick, n_of_quick, n_whole = told(loop, tmp_path / "quick"), n_whole, 0
    with monkeypatch.context() as patched:
        patched.setattr(loops.Loop, "_quicken", lambda self, feed: None)
        whole = told(loop, tmp_path / "whole")
    assert quick == whole
    assert quick[-1][1][0] > N // 2
    if loop is not two_a_step:  # there each step holds more than itself
        assert n_of_quick < 0.6 * n_whole


def test_batches_that_can_not_be_made_are_no_steps(tmp_path: Path) -> None:
    (n_steps, _), (n_of_beat, n_starts, n_gaps, _), *_ = told(failing, tmp_path)[-1]
    assert n_steps == 3 * (N - 1)
    assert n_gaps == 3
    assert n_of_beat > 2 * N
    assert n_starts == 2


def test_what_lies_outside_is_told_from_where_the_step_before_it_ended(tmp_path: Path) -> None:
    """Not from the last step before a loader that began late."""
    account: list[Any] = []
    session_of = Session.__init__

    def kept(self: Session, *args: Any, **options: Any) -> None:
        session_of(self, *args, **options)
        account.append(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "__init__", kept)
        began = perf_counter_ns()
        told(begun_late, tmp_path)
        whole_ns = perf_counter_ns() - began
    (session,) = account
    wall = session.wall.record(session.n_steps)
    assert {x.role for x in session.registry.states} == {"train", "other"}
    assert wall.n_crossings > 40
    assert wall.crossings_ns < whole_ns / 2


@pytest.mark.parametrize("tuned", [False, True], ids=["", "tuned"])
def test_a_plain_step_of_a_recorded_run_enters_few_functions_of_ours(
    tuned: bool, tmp_path: Path
) -> None:
    n_calls: list[int] = []
    count = 0

    def counting(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "/loaderdoctor/" in frame.f_code.co_filename

    def loop() -> None:
        nonlocal count
        trainer = Trainer()
        try:
            for n, (x, _) in enumerate(loader_of(600)):
                trainer.step(x)
                if n == 400:
                    sys.setprofile(counting)
                n_calls.append(count)
                count = 0
        finally:
            sys.setprofile(None)

    told(loop, tmp_path, tuned=tuned)
    inside = sorted(n_calls[410:])
    most = MAX_CALLS_A_TUNED_STEP if tuned else MAX_CALLS_A_STEP
    assert 0 < inside[len(inside) // 2] <= most
