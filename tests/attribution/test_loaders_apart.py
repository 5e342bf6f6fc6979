"""Training and validation in one run: neither's samples enter the other's figures.

Told apart by what is made, not by how long it takes: each loader has transforms and indices of its
own, and fetches on one thread, perhaps from one dataset object.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.attribution.pictures import sample_times
from loaderdoctor.attribution.worker_batches import of_step, selections
from loaderdoctor.attribution.workers import other_worker_facts, worker_facts
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.instrument.wire.measured import FetchRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker

N_TRAIN, N_VALIDATION, BATCH = 64, 16, 4
TRAIN = LoaderRecord(id="train.py:10", role="train")
VALIDATION = LoaderRecord(id="train.py:20", role="other")
LOADERS = (VALIDATION, TRAIN)  # in the order of their first batches


class Crop:
    """Of training samples."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001)
        return x


class Warp:
    """Of validation samples: ten times as slow."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.010)
        return x


class Compose:
    """As torchvision's."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


class Split(Dataset[torch.Tensor]):
    """One object for both: the first samples are for training, the rest for validation."""

    def __init__(self) -> None:
        self.train, self.validation = Compose([Crop()]), Compose([Warp()])

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.zeros(4)
        return self.train(x) if index < N_TRAIN else self.validation(x)


class Run:
    """An epoch of training amid validation, with the fetches noted as the hooks note them."""

    def __init__(self, folder: Path, *, named: bool, shared: bool, **settings: Any) -> None:
        self.fetches: list[FetchRecord] = []
        names: dict[int, str] = {}
        one = Split()
        train = DataLoader(one, BATCH, sampler=range(N_TRAIN), **settings)
        other = one if shared else Split()
        indices = range(N_TRAIN, N_TRAIN + N_VALIDATION)
        validation = DataLoader(other, BATCH, sampler=indices, **settings)
        if named:
            names = {id(train): TRAIN.id, id(validation): VALIDATION.id}
        worker.install(folder, lambda loader: names.get(id(loader)))
        try:
            self.start_ns = time.perf_counter_ns()
            self._epoch(validation, 0)  # a sanity check before training
            self._epoch(train, 1)
            self._epoch(validation, 0)
            self.end_ns = time.perf_counter_ns()
        finally:
            worker.remove()
        self.log: WorkerLog = read(folder)

    def _epoch(self, loader: DataLoader[Any], number: int) -> None:
        iterator = iter(loader)
        while True:
            start_ns = time.perf_counter_ns()
            try:
                next(iterator)
            except StopIteration:
                return
            self.fetches.append(
                FetchRecord(
                    loader=number,
                    start_ns=start_ns,
                    end_ns=time.perf_counter_ns(),
                    thread=threading.get_native_id(),
                )
            )

    @property
    def window(self) -> WindowDone:
        return WindowDone(
            id=1,
            mode="plain",
            status="ok",
            n_steps=N_TRAIN // BATCH,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            fetches=tuple(self.fetches),
        )

    @property
    def facts(self) -> WorkerFacts:
        found = worker_facts(
            self.log,
            self.start_ns,
            self.end_ns,
            n_steps=N_TRAIN // BATCH,
            fetches=self.fetches,
            loaders=LOADERS,
        )
        assert found is not None
        return found


def told_apart(run: Run) -> None:
    facts = run.facts
    assert facts.loader == TRAIN.id
    assert (facts.n_batches, facts.n_samples) == (N_TRAIN // BATCH, N_TRAIN)
    assert [name for name, _ in facts.transforms] == ["Crop"]
    assert not [line for line in facts.lines if line.function.startswith("Warp")]
    chosen = of_step(
        selections(run.log, run.start_ns, run.end_ns, fetches=run.fetches, loaders=LOADERS), LOADERS
    )
    assert chosen is not None
    drawn = run.log.samples.index[np.isin(run.log.samples.batch, chosen.rows)]
    assert set(drawn.tolist()) == set(range(N_TRAIN))
    expected_ns = chosen.batches.end_ns - chosen.batches.begin_ns
    assert facts.batch_ms == pytest.approx(float(expected_ns.mean()) / 1e6)
    (other,) = other_worker_facts(run.log, [run.window], LOADERS)
    assert other.loader == VALIDATION.id
    assert other.n_samples == 2 * N_VALIDATION
    assert [name for name, _ in other.transforms] == ["Warp"]
    rest = run.log.batches.end_ns - run.log.batches.begin_ns
    rest = rest[~np.isin(np.arange(len(rest)), chosen.rows)]
    assert other.batch_ms == pytest.approx(float(rest.mean()) / 1e6)
    times = sample_times(run.log, run.start_ns, run.end_ns, fetches=run.fetches, loaders=LOADERS)
    assert times is not None
    assert times.n == N_TRAIN


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_slower_validation_loader_in_the_same_process_stays_out_of_the_train_loaders_figures(
    named: bool, shared: bool, tmp_path: Path
) -> None:
    told_apart(Run(tmp_path, named=named, shared=shared))


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_workers_over_one_dataset_object_are_told_apart_by_their_loader(
    method: str, tmp_path: Path
) -> None:
    told_apart(
        Run(tmp_path, named=True, shared=True, num_workers=2, multiprocessing_context=method)
    )


def test_a_window_without_a_batch_of_the_train_loader_has_no_figures(tmp_path: Path) -> None:
    run = Run(tmp_path, named=True, shared=True)
    first_training = next(f for f in run.fetches if f.loader == 1)
    early = [f for f in run.fetches if f.end_ns < first_training.start_ns]
    facts = worker_facts(
        run.log, run.start_ns, early[-1].end_ns, n_steps=1, fetches=early, loaders=LOADERS
    )
    assert facts is None
