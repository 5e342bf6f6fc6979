"""Data and compute axes on a CUDA device: right batches, and torch as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from loaderdoctor.instrument.trial import compute_switches as switches
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.axis_cases import SAME_ON_DEVICE, Pictures, Two, digests, taken
from tests.instrument.watched import watch

pytestmark = pytest.mark.gpu
PAIRS = (
    cases.moved("[0]", (4, 3, 20, 20), "float32"),
    cases.moved("[1]", (4,), "int64"),
)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = cases.children()
    yield
    gc.collect()
    torch.cuda.synchronize()
    assert cases.children() <= before
    assert cases.background_threads() == []


@pytest.mark.parametrize(
    "more",
    [
        Settings(),
        Settings(num_workers=2, pin_memory=True, non_blocking=True),
        Settings(num_workers=2, pin_memory=True, side_stream=True),
        Settings(background="device", pin_memory=True, non_blocking=True),
    ],
    ids=Settings.label,
)
def test_bytes_travel_and_become_the_same_floats_on_the_device(
    more: Settings, device: torch.device
) -> None:
    loader = DataLoader(Pictures(32), batch_size=4)
    batches = taken(loader, Settings(uint8=True).over(more), 8, device=device, transfers=PAIRS)
    for (images, ids), (expected, own) in zip(batches, loader, strict=True):
        assert images.device == ids.device == device
        assert ids.tolist() == own.tolist()
        assert images.dtype == torch.float32
        assert (images.cpu() - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("axis", SAME_ON_DEVICE, ids=Settings.label)
def test_every_byte_arrives_as_the_plain_loader_gives_it(
    axis: Settings, device: torch.device
) -> None:
    loader = DataLoader(Pictures(32), batch_size=4)
    batches = taken(loader, axis, 16, device=device, transfers=PAIRS)
    got = [[tensor.cpu() for tensor in batch] for batch in batches]
    assert digests(got) == digests(list(loader)) * 2


def test_inputs_that_are_not_loaded_lie_on_the_device(device: torch.device) -> None:
    transfers = (
        cases.moved("['image']", (4, 3, 4), "float32"),
        cases.moved("['sound']", (4, 5), "float32"),
    )
    batches = taken(
        DataLoader(Two(), batch_size=4),
        Settings(fields="sound"),
        3,
        device=device,
        transfers=transfers,
    )
    for i, batch in enumerate(batches):
        assert batch["image"].device == device
        assert batch["sound"].is_cpu
        assert batch["label"].is_cpu
        assert batch["sound"][:, 0].tolist() == [float(4 * i + k) for k in range(4)]


@pytest.mark.parametrize("on", [True, False])
def test_flags_of_the_backends_go_back(on: bool) -> None:
    def flags() -> tuple[Any, ...]:
        cudnn = torch.backends.cudnn
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark

    before = flags()
    with switches.matmul_tf32(on), switches.flag(torch.backends.cudnn, "benchmark", on):
        assert flags() == ("high" if on else "highest", on, on)
    assert flags() == before


class Loop:
    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 18 * 18, 2)
        ).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loader = DataLoader(Pictures(64), batch_size=4)
        self.autocast: list[torch.dtype | None] = []
        self.counters: list[str] = []
        self.model[1].register_forward_hook(
            lambda module, args, out: self.autocast.append(out.dtype)
        )

    def __call__(self) -> None:
        for _ in range(10):
            for images, labels in self.loader:
                self.optimizer.zero_grad()
                output = self.model(images.to(self.device))
                assert output.dtype == torch.float32
                loss: Any = nn.functional.cross_entropy(output, labels.to(self.device) % 2)
                loss.backward()
                self.optimizer.step()
                step = next(iter(self.optimizer.state.values()))["step"]
                self.counters.append(step.device.type)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(amp=True),
        Settings(channels_last=True, amp=True),
        Settings(fused_optimizer=True),
        Settings(cudnn_benchmark=True),
        Settings(tf32=True),
        Settings(checkpoint=True),
        Settings(uint8=True, batch_size=8),
    ],
    ids=Settings.label,
)
def test_a_window_with_a_compute_axis_leaves_no_trace(
    settings: Settings, device: torch.device
) -> None:
    loop = Loop(device)
    places = [(p.data_ptr(), p.stride()) for p in loop.model.parameters()]
    names = sorted(vars(loop.model))
    groups = [{k: v for k, v in g.items() if k != "params"} for g in loop.optimizer.param_groups]
    flags = (torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision())
    watched = watch(
        loop,
        WindowRequest(id=1, mode="plain", n_steps=4, limit_s=60.0),
        WindowRequest(id=2, mode="trial", n_steps=8, settings=settings, limit_s=60.0),
    )
    assert watched.windows[1].status == "ok", watched.windows[1].reason
    assert [(p.data_ptr(), p.stride()) for p in loop.model.parameters()] == places
    assert sorted(vars(loop.model)) == names
    after = [{k: v for k, v in g.items() if k != "params"} for g in loop.optimizer.param_groups]
    assert after == groups
    assert (torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()) == flags
    assert loop.counters[-1] == "cpu"
    assert ("cuda" in loop.counters) is bool(settings.fused_optimizer)
    narrow = {torch.float16, torch.bfloat16} & set(loop.autocast)
    assert bool(narrow) is bool(settings.amp)
