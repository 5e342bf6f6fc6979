"""Batches moved by a thread, on a side stream, or resident: every one of them right."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.trial import resident
from loaderdoctor.instrument.trial.open_trial import measure_boundary, open_trial
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases

pytestmark = pytest.mark.gpu
SIDE = 224
TRANSFERS = (
    cases.moved("['x']", (8, 3, SIDE, SIDE), "uint8"),
    cases.moved("['y']", (8,), "int64"),
)


class Images(Dataset[dict[str, Any]]):
    """Image i is i everywhere; `n` stays on the host."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3, SIDE, SIDE), index, dtype=torch.uint8), "y": index, "n": index}


class OnDevice(Dataset[Tensor]):
    def __init__(self) -> None:
        self.data = torch.zeros(8, device="cuda")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    torch.cuda.synchronize()
    before, held = cases.children(), torch.cuda.memory_allocated()
    yield
    gc.collect()
    torch.cuda.synchronize()
    assert cases.children() <= before
    assert cases.background_threads() == []
    assert torch.cuda.memory_allocated() == held


def opened(settings: Settings, device: torch.device, *, shuffle: bool = False) -> Any:
    return open_trial(
        DataLoader(Images(), batch_size=8, shuffle=shuffle),
        settings,
        device=device,
        transfers=TRANSFERS,
        open_iter=cases.raw_iterator,
    )


EACH_WAY = [
    Settings(background="device"),
    Settings(background="device", pin_memory=True, non_blocking=True),
    Settings(background="device", num_workers=2, pin_memory=True, non_blocking=True),
    Settings(side_stream=True),
    Settings(side_stream=True, pin_memory=True),
    Settings(side_stream=True, pin_memory=True, num_workers=2, persistent_workers=True),
    Settings(side_stream=True, background="host", pin_memory=True),
    Settings(resident=True),
    Settings(num_workers=2, pin_memory=True, persistent_workers=True),
]


@pytest.mark.parametrize("settings", EACH_WAY, ids=Settings.label)
def test_every_batch_has_its_own_content_while_the_device_is_busy(
    settings: Settings, device: torch.device
) -> None:
    """Checksums are taken after other work and much allocation, where a race would show."""
    source = opened(settings, device)
    sums: list[tuple[Tensor, Tensor]] = []
    numbers: list[int] = []
    for _ in range(3 * 8):
        batch = source.next_batch()
        assert batch["n"].device.type == "cpu"
        numbers += batch["n"].tolist()
        moved_here = settings.resident or settings.side_stream or settings.background == "device"
        assert batch["x"].is_cuda is bool(moved_here)
        x, y = batch["x"].to(device), batch["y"].to(device)
        del batch
        torch.cuda._sleep(3_000_000)  # type: ignore[no-untyped-call]
        sums.append((x.sum(dim=(1, 2, 3), dtype=torch.int64), y))
        del x, y
        # blocks of the same size: memory given back too early would be overwritten
        torch.full((8, 3, SIDE, SIDE), 255, dtype=torch.uint8, device=device)
    source.close()
    assert numbers == [*range(64)] * 3
    got = torch.cat([each for each, _ in sums]).cpu()
    labels = torch.cat([each for _, each in sums]).cpu()
    assert torch.equal(labels, torch.arange(64).repeat(3))
    assert torch.equal(got, labels * 3 * SIDE * SIDE)
    sums.clear()


@pytest.mark.parametrize("settings", EACH_WAY, ids=Settings.label)
def test_closing_at_once_and_boundaries_leave_nothing(
    settings: Settings, device: torch.device
) -> None:
    opened(settings, device).close()
    source = opened(settings, device)
    source.next_batch()
    assert measure_boundary(source) >= 0
    assert source.drop(3) in (0, 3)
    source.next_batch()
    assert source.startup_ns > 0
    source.close()


def test_resident_batches_are_reshuffled_and_survive_changes(device: torch.device) -> None:
    source = opened(Settings(resident=True), device, shuffle=True)
    epochs = []
    for _ in range(3):
        epoch = []
        for _ in range(8):
            batch = source.next_batch()
            epoch += batch["y"].tolist()
            batch["x"].zero_()
        epochs.append(epoch)
    assert sorted(epochs[0]) == list(range(64))
    assert epochs[1] != epochs[2]
    batch = source.next_batch()
    assert torch.equal(batch["x"][:, 0, 0, 0].long(), batch["y"])
    source.close()
    del batch


def test_what_does_not_fit_is_withheld_and_freed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "gpu_free_bytes", lambda _: 3 * 10**6)
    with pytest.raises(TrialRefused, match="on the device"):
        opened(Settings(resident=True), device)


def test_a_loop_that_copies_nothing_gets_nothing_moved(device: torch.device) -> None:
    loader = DataLoader(Images(), batch_size=8)
    with pytest.raises(TrialRefused, match="not seen to copy"):
        open_trial(
            loader, Settings(side_stream=True), device=device, transfers=(),
            open_iter=cases.raw_iterator,
        )  # fmt: skip


def test_a_dataset_on_the_device_is_not_forked(device: torch.device) -> None:
    loader = DataLoader(OnDevice(), batch_size=2)
    with pytest.raises(TrialRefused, match="CUDA tensors"):
        open_trial(
            loader, Settings(num_workers=1, start_method="fork"), device=device, transfers=(),
            open_iter=cases.raw_iterator,
        )  # fmt: skip
    del loader
