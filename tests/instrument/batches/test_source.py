"""The axes `synthetic` and `fields`: batches that are ready, and one input loaded of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from loaderdoctor.instrument.trial.open_trial import measure_boundary
from loaderdoctor.settings import Settings
from tests.instrument.axis_cases import (
    WORKERS,
    Pictures,
    Two,
    digests,
    plainly,
    taken,
)
from tests.instrument.opening import opened, reason
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_synthetic_batches_are_real_ones_and_cost_no_loading() -> None:
    dataset = Pictures(64)
    loader = DataLoader(dataset, batch_size=4)
    source = opened(loader, Settings(synthetic=True))
    made = dataset.counted
    batches = [source.next_batch() for _ in range(20)]
    assert dataset.counted == made
    assert set(digests(batches)) <= set(plainly(loader, 16))
    assert measure_boundary(source) == 0
    source.close()
    assert "ready" in reason(loader, Settings(synthetic=True, num_workers=2))


def test_what_repeated_shapes_spare_the_loop_is_said() -> None:
    notes: list[str] = []

    def note(kind: str, text: str) -> None:
        notes.append(kind)

    for lengths in ([3] * 40, range(1, 41)):
        data = [torch.zeros(n, 4) for n in lengths]
        opened(DataLoader(data, batch_size=None), Settings(synthetic=True), note=note).close()  # type: ignore[arg-type]
    assert notes == ["synthetic-repeats-shapes"]


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
def test_one_input_is_loaded_and_the_others_are_ready(workers: Settings) -> None:
    loader = DataLoader(Two(), batch_size=4)
    batches = taken(loader, Settings(fields="sound").over(workers), 8)
    for i, batch in enumerate(batches):
        n = 2 if i == 7 else 4
        assert list(batch) == ["image", "sound", "label"]
        assert batch["sound"][:, 0].tolist() == list(range(4 * i, 4 * i + n))
        assert batch["image"][:, 0, 0].tolist() == [0, 1, 2, 3][:n]
        assert batch["label"].tolist() == [0, 1, 2, 3][:n]


def test_inputs_of_pairs_go_by_number_and_an_unknown_one_is_named() -> None:
    loader = DataLoader(Squares(), batch_size=4)
    (_, second) = taken(loader, Settings(fields="1"), 2)
    assert second[1].tolist() == [4, 5, 6, 7]
    assert second[0][:, 0].tolist() == [0.0, 1.0, 4.0, 9.0]
    assert "it has 0, 1" in reason(loader, Settings(fields="image"))


class Branches(Dataset[dict[str, Any]]):
    """Counts how often each input was made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.at = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample."""
        scale = 2.0
        if self.at != index:
            self.at = index
        picture = self.picture(index) * scale
        sound = torch.zeros(3)
        sound[:2] = self.sound(index)
        sound += 1
        return {"picture": picture, "sound": sound, "label": index}

    def picture(self, index: int) -> Tensor:
        self.made.append("picture")
        return torch.full((2,), float(self.at))

    def sound(self, index: int) -> Tensor:
        self.made.append("sound")
        return torch.full((2,), float(index))


@pytest.mark.parametrize(("field", "other"), [("picture", "sound"), ("sound", "picture")])
def test_what_only_the_other_inputs_need_is_not_run(field: str, other: str) -> None:
    dataset = Branches()
    for workers in (Settings(), Settings(num_workers=2)):
        loader = DataLoader(dataset, batch_size=4)
        expected = [batch[field] for batch in loader]
        source = opened(loader, Settings(fields=field).over(workers))
        dataset.made.clear()
        batches = [source.next_batch() for _ in range(4)]
        source.close()
        assert all(torch.equal(b[field], e) for b, e in zip(batches, expected, strict=True))
        assert other not in dataset.made
    assert type(dataset) is Branches


def test_samples_that_cannot_be_cut_down_are_made_whole_and_the_report_says_so() -> None:
    class Indirect(Branches):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return super().__getitem__(index)

    notes: list[str] = []
    source = opened(
        DataLoader(Indirect(), batch_size=4),
        Settings(fields="sound"),
        note=lambda kind, text: notes.append(kind),
    )
    assert source.next_batch()["sound"][0].tolist() == [1.0, 1.0, 1.0]
    source.close()
    assert notes == ["other-inputs-made"]


@dataclass(frozen=True)
class Frozen:
    image: Tensor
    sound: Tensor


def test_a_batch_that_is_frozen_gets_its_other_inputs_too() -> None:
    def collate(samples: list[dict[str, Any]]) -> Frozen:
        made = default_collate(samples)
        return Frozen(made["image"], made["sound"])

    loader = DataLoader(Two(), batch_size=4, collate_fn=collate)
    (_, second) = taken(loader, Settings(fields="sound"), 2)
    assert type(second) is Frozen and second.image[0, 0, 0] == 0
    assert second.sound[:, 0].tolist() == [4.0, 5.0, 6.0, 7.0]


@pytest.mark.slow
def test_spawned_workers_get_whole_samples() -> None:
    settings = Settings(fields="sound", num_workers=1, start_method="spawn")
    batches = taken(DataLoader(Two(), batch_size=4), settings, 2)
    assert batches[1]["sound"][:, 0].tolist() == [4.0, 5.0, 6.0, 7.0]
