"""Batches moved as the loop moves them, and a whole dataset kept where the loop computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
)

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.trial.on_device import ResidentSource
from loaderdoctor.instrument.trial.open_trial import measure_boundary
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.opening import ids, opened
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")

CPU = torch.device("cpu")


def test_only_what_the_loop_moves_is_moved() -> None:
    meta = torch.device("meta")
    batch: Any = {"x": torch.zeros(4, 3), "n": torch.zeros(4, dtype=torch.int64), "name": "a"}
    by_place = ToDevice(meta, (cases.moved("['x']", (4, 3), "float32"),), non_blocking=False)
    out, new = by_place.move(batch)
    assert (out["x"].device.type, out["n"].device.type, out["name"]) == ("meta", "cpu", "a")
    assert new == [out["x"]] or new[0] is out["x"]
    assert batch["x"].device.type == "cpu"
    record = cases.moved("", (64, 3), "float32")
    by_kind = ToDevice(
        meta, (type(record)(**{**_fields(record), "path": None}),), non_blocking=False
    )
    assert by_kind.moves("anywhere", torch.zeros(2, 3))
    assert not by_kind.moves("anywhere", torch.zeros(2, 4))
    assert not by_kind.moves("anywhere", torch.zeros(2, 3, dtype=torch.float64))


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def resident(n: int, *, shuffle: bool, batch_size: int = 4) -> ResidentSource:
    loader = DataLoader(Squares(n), batch_size=batch_size)
    inner = opened(loader, Settings(num_workers=1))
    return ResidentSource(
        inner, ToDevice(CPU, (), non_blocking=False), len(loader), shuffle=shuffle
    )


def test_resident_batches_are_the_whole_dataset_each_epoch_in_a_new_order() -> None:
    others = cases.children()  # workers of earlier tests, not collected yet
    source = resident(64, shuffle=True)
    assert cases.children() <= others
    epochs = [ids(source, 16) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(64))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert measure_boundary(source) >= 0
    assert cases.children() <= others  # nor has it any worker to start at a boundary
    source.close()
    with pytest.raises(StopIteration):
        source.next_batch()


def test_resident_batches_keep_their_order_without_a_shuffle() -> None:
    source = resident(32, shuffle=False)
    assert ids(source, 16) == [*range(32), *range(32)]
    source.close()


def test_a_loop_that_changes_its_batch_does_not_change_the_resident_dataset() -> None:
    source = resident(32, shuffle=False)
    for _ in range(40):
        squares, index = source.next_batch()
        assert torch.equal(squares[:, 0], index.double().square().float())
        squares.add_(1)
        index.sub_(1)
    source.close()


def test_a_dataset_that_does_not_fit_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    from loaderdoctor.instrument.trial import on_device as module

    monkeypatch.setattr(module, "available_bytes", lambda: 500)
    with pytest.raises(TrialRefused, match="may be used"):
        resident(64, shuffle=False)


def test_filling_that_would_take_too_long_is_given_up_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from loaderdoctor.instrument.trial import on_device as module

    monkeypatch.setattr(module, "FILL_LIMIT_S", 0.5)
    loader = DataLoader(Squares(4000, sleep_s=0.002), batch_size=4)
    inner = opened(loader, Settings())
    with pytest.raises(TrialRefused, match="would take about"):
        ResidentSource(inner, ToDevice(CPU, (), non_blocking=False), len(loader), shuffle=False)
