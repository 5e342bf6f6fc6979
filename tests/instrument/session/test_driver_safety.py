"""What can't be read of a dataset is noted, and the loader's safety is told all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from loaderdoctor.instrument import dataset
from loaderdoctor.instrument.dataset import containers
from loaderdoctor.instrument.session.driver import _check_safety
from loaderdoctor.instrument.wire.records import LoaderRecord
from tests.findings.builders import loader as record_of


def failing(dataset: object) -> Any:
    raise RuntimeError("of the user's own making")


def test_a_dataset_that_cannot_be_read_does_not_lose_its_loaders_safety(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "containers", failing)
    monkeypatch.setattr(dataset, "stream_of", failing)
    loader = DataLoader(TensorDataset(torch.zeros(8)), batch_size=2)
    record: LoaderRecord = record_of(augmentations=None)
    state = SimpleNamespace(id="loader-0", living=lambda: loader, record=record)
    notes: list[str] = []
    session: Any = SimpleNamespace(
        definition=SimpleNamespace(train=[state]),
        note=lambda kind, words: notes.append(kind),
        recording=None,
    )
    _check_safety(session)
    assert notes == ["containers-not-read", "stream-not-read"]
    assert record.safety.pickles is None
    assert state.record.safety.pickles


class Own(TensorDataset):
    """Whose pickles are of its own making."""

    n_made = 0

    def __reduce__(self) -> Any:
        Own.n_made += 1
        return object, ()


@pytest.mark.parametrize(
    ("options", "recorded", "n_made"),
    [
        ({}, True, 0),
        ({"num_workers": 1, "multiprocessing_context": "fork"}, True, 0),
        ({"num_workers": 1, "multiprocessing_context": "spawn"}, True, 1),  # as the loop does
        ({}, False, 1),
    ],
)
def test_a_recorded_run_pickles_as_the_loop_does(
    options: dict[str, Any], recorded: bool, n_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "n_made", 0)
    loader = DataLoader(Own(torch.zeros(8)), batch_size=2, **options)
    record: LoaderRecord = record_of(augmentations=None)
    state = SimpleNamespace(id="loader-0", living=lambda: loader, record=record)
    session: Any = SimpleNamespace(
        definition=SimpleNamespace(train=[state]),
        note=pytest.fail,
        recording=print if recorded else None,
    )
    _check_safety(session)
    assert Own.n_made == n_made
    assert state.record.safety.pickles is (True if n_made else None)
