"""Runs a training loop in this process under the real hooks, with requests queued up front.

Only the connection is replaced: what the command would send lies ready, what it would receive is
kept. Loops here are functions; whole scripts in processes of their own are in test_bench.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.wire.channel import Channel
from loaderdoctor.instrument.wire.protocol import (
    Ended,
    FromRun,
    Measure,
    Note,
    Observed,
    Stop,
    ToRun,
    WindowDone,
    WindowRequest,
)


@dataclass(slots=True)
class QueuedChannel(Channel):
    """Messages to the run lie in `requests`; after them it is let run to its end."""

    connection: None = None  # type: ignore[assignment]
    requests: list[ToRun] = field(default_factory=list)
    sent: list[FromRun] = field(default_factory=list)

    def send(self, message: FromRun) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float) -> ToRun | None:
        if timeout_s == 0.0:
            return None
        return self.requests.pop(0) if self.requests else Stop(to_end=True)


@dataclass(slots=True)
class Watched:
    """What one watched loop told."""

    sent: list[FromRun]
    session: Session

    @property
    def observed(self) -> Observed:
        return next(m for m in self.sent if isinstance(m, Observed))

    @property
    def windows(self) -> list[WindowDone]:
        return [m for m in self.sent if isinstance(m, WindowDone)]

    @property
    def notes(self) -> list[Note]:
        return [m for m in self.sent if isinstance(m, Note)]

    @property
    def ended(self) -> Ended:
        return next(m for m in self.sent if isinstance(m, Ended))


def watch(
    loop: Callable[[], object], *requests: WindowRequest, follow_s: float | None = None
) -> Watched:
    """Run `loop` hooked, measure `requests` in it, and take every hook out again."""
    channel = QueuedChannel(requests=[Measure(requests=requests)] if requests else [])
    run_dir = Path(tempfile.mkdtemp(prefix="loaderdoctor-test-"))
    session = Session(channel, run_dir=run_dir, records_workers=False, follow_s=follow_s)
    hooks = Hooks(session)
    hooks.watch()
    try:
        loop()
    finally:
        session.script_over("script-ended", 0)
        hooks.remove()
    broken = [m.text for m in channel.sent if isinstance(m, Note) and m.kind == "internal-error"]
    assert not broken, broken[0]
    return Watched(channel.sent, session)


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """`n` samples of four floats that tell their index."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2


class Slow(Numbers):
    """Samples that take a while."""

    def __init__(self, n: int, ms: float) -> None:
        super().__init__(n)
        self.ms = ms

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.ms / 1e3)
        return super().__getitem__(index)


class Trainer:
    """A tiny model with its optimizer; `step` is one batch of training."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)

    def backward(self, x: torch.Tensor) -> None:
        self.model(x).sum().backward()

    def step(self, x: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.backward(x)
        self.optimizer.step()


def loader_of(n_batches: int, batch_size: int = 2, **options: object) -> DataLoader[object]:
    """A loader of `n_batches` batches."""
    return DataLoader(Numbers(n_batches * batch_size), batch_size, **options)  # type: ignore[arg-type]


def request(id_: int, mode: str, n_steps: int = 8, **more: object) -> WindowRequest:
    return WindowRequest(id=id_, mode=mode, n_steps=n_steps, limit_s=30.0, **more)  # type: ignore[arg-type]


def mean_ms(window: WindowDone) -> float:
    return fmean(window.host_step_ns) / 1e6


def counting_loop(
    loader: DataLoader[object], n_epochs: int, lengths: list[int], seen: list[int] | None = None
) -> Callable[[], None]:
    """Trains, and notes how many batches each epoch had (and the first index of each batch)."""
    trainer = Trainer()

    def loop() -> None:
        for _ in range(n_epochs):
            n = 0
            for x, _y in loader:
                trainer.step(x)
                n += 1
                if seen is not None:
                    seen.append(int(x[0, 0]))
            lengths.append(n)

    return loop
