"""What `loaderdoctor run` costs a step, and whether its memory grows.

    python benchmarks/run_overhead.py [--pairs 300] [--device cuda] [--tune watching|serving]
                                      [--workers 1]
    python benchmarks/run_overhead.py --long 1000000

A loop over a DataLoader without workers, recorded, and the same loop that nobody watches take turns
in blocks of 50 steps, in random order within each pair, and share model and optimizer: of two that
are alike, one's step took 30 us more than the other's. Printed: the median of the pairs'
differences in CPU time of the thread, microseconds a step (other programs can't stretch that much),
and how much of it lies in getting the batch: the rest is two short hooks, and noise, most of it
where workers run beside the loop.
With --tune as `run --tune` between its trials: torch's own iterator serves (watching), or another
pool does (serving; one worker on either side). With --long that many recorded steps in a row, and
the resident memory of this process at each tenth of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

from loaderdoctor.instrument.recording import Recorder
from loaderdoctor.instrument.recording.loop_tuner import LoopTuner
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.wire.protocol import Beat, FromRun, Observed, ToRun
from loaderdoctor.settings import Settings

BLOCK = 50
WARM_STEPS = 4000
N_SAMPLES = 400_000  # an epoch outlasts what is measured


class Nobody:
    """Listens, and forgets; counts beats."""

    lost = False
    n_above = 0

    def __init__(self) -> None:
        self.n_beats = 0
        self.warm = False

    def send(self, message: FromRun) -> None:
        self.n_beats += isinstance(message, Beat)
        self.warm = self.warm or isinstance(message, Observed)

    def receive(self, timeout_s: float) -> ToRun | None:
        return None

    def forget_in_fork(self) -> None:
        self.lost = True


def as_lists(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[list[Any], list[Any]]:
    """A batch without tensors: handing these over takes a varying millisecond."""
    return [x.tolist() for x, _ in samples], [y.item() for _, y in samples]


class Training:
    """A model that any batches are trained on, step by step."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._model = torch.nn.Linear(4, 2).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def over(self, *, n_workers: int) -> Iterator[int]:
        """Train without an end: a step for each `next`, which gives what its batch took (ns)."""
        data = TensorDataset(torch.randn(N_SAMPLES, 4), torch.randint(0, 2, (N_SAMPLES,)))
        loader: DataLoader[Any] = DataLoader(
            data,
            8,
            shuffle=True,
            num_workers=n_workers,
            pin_memory=self._device != "cpu",
            collate_fn=as_lists if n_workers else None,
        )
        while True:
            batches = iter(loader)
            began = thread_time_ns()
            for batch in batches:
                took = thread_time_ns() - began
                x, y = (torch.as_tensor(p).to(self._device, non_blocking=True) for p in batch)
                self._optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self._model(x), y)
                torch.autograd.backward(loss)
                self._optimizer.step()
                yield took
                began = thread_time_ns()


class Held(LoopTuner):
    """Tunes as ever, but asks for nothing; `serving`: another pool serves instead."""

    def __init__(self, session: Session, *, serving: bool) -> None:
        super().__init__(session, exact=True)
        self._serving = serving

    def _refusal(self, settings: Settings) -> str | None:
        return "held for a benchmark"

    def begin(self) -> None:
        """The loop is warm."""
        super().begin()
        assert self._not_tuned is None, self._not_tuned
        if self._serving:
            assert self._handed is not None
            assert self._handed.live is not None
            live = self._handed.live
            assert live.want(replace(live.own, prefetch_factor=4)) is None


@contextmanager
def recording(tune: str) -> Iterator[tuple[Session, Nobody]]:
    """Loops are recorded meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        link = Nobody()
        session = Session(link, run_dir=Path(folder))
        session.record_to_end(
            lambda session: Recorder(
                session, tuner=Held(session, serving=tune == "serving") if tune else None
            )
        )
        hooks = Hooks(session)
        hooks.watch()
        session.workers.start()
        try:
            yield session, link
        finally:
            session.script_over("script-ended", 0)
            hooks.remove()
        assert link.n_beats, "the loop was never recorded"


def compare(n_pairs: int, device: str, tune: str, n_workers: int) -> None:
    """A recorded loop and one that is not, in blocks by turns, and the blocks' differences."""
    n_workers = 1 if tune == "serving" else n_workers
    rng = random.Random(0)
    whole: list[float] = []
    fetching: list[float] = []
    with recording(tune) as (session, _):
        training = Training(device)
        loops = {watched: training.over(n_workers=n_workers) for watched in (True, False)}
        for _ in range(WARM_STEPS):
            next(loops[True])
        for _ in range(n_pairs):
            took, fetched = {}, {}
            for watched in rng.sample((True, False), 2):
                session.live = watched
                began = thread_time_ns()
                fetched[watched] = sum(next(loops[watched]) for _ in range(BLOCK))
                took[watched] = thread_time_ns() - began
            session.live = True
            whole.append((took[True] - took[False]) / BLOCK / 1e3)
            fetching.append((fetched[True] - fetched[False]) / BLOCK / 1e3)
    print(f"{_told(whole)}, {median(whole) / 20:.2f} % of a step of 2 ms; "
          f"getting the batch {_told(fetching)}")  # fmt: skip


def _told(differences: list[float]) -> str:
    found = sorted(differences)
    n = len(found)
    off = round(0.98 * n**0.5)
    low, high = found[n // 2 - off], found[n // 2 + off]
    return f"{median(found):.1f} us a step ({low:.1f} to {high:.1f}; {n} pairs)"


def long(n_steps: int, device: str) -> None:
    """Resident memory over many steps."""
    process = psutil.Process(os.getpid())
    with recording(""):
        for n, _ in zip(range(1, n_steps + 1), Training(device).over(n_workers=0), strict=False):
            if n % (n_steps // 10) == 0:
                gc.collect()
                print(f"{n:>10,} steps  {process.memory_info().rss / 1e6:7.1f} MB", flush=True)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--tune", choices=["watching", "serving"], default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.long:
        long(options.long, options.device)
    else:
        compare(options.pairs, options.device, options.tune, options.workers)


if __name__ == "__main__":
    main()
