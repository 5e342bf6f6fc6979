"""Free copies and forced transfers on a real device: right content, no copy over the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from loaderdoctor.instrument.batches import h2d
from loaderdoctor.instrument.batches.free_copies import FreeCopies
from loaderdoctor.instrument.batches.replay_buffer import ReplayBuffer
from loaderdoctor.instrument.session.switches import ForceTransfer, TransferObserver

pytestmark = pytest.mark.gpu
N = 256


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    if h2d._Patch.hook is not None:
        h2d._Patch.hook.remove()


def images(i: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(i)
    return torch.randint(0, 256, (N, 64), dtype=torch.uint8, generator=generator)


def n_h2d_copies(action: Callable[[], Any]) -> int:
    """Copies over the bus as the profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as run:
        action()
        torch.cuda.synchronize()
    return sum(event.name.startswith("Memcpy HtoD") for event in run.events())


def learned(free: FreeCopies, step: Callable[[], Any], n_steps: int = 3) -> None:
    free.install()
    for _ in range(n_steps):
        free.begin_step()
        step()
    torch.cuda.synchronize()
    free.start_counting()


def test_answers_hold_the_content_and_nothing_crosses_the_bus(device: torch.device) -> None:
    x, y = images(), torch.arange(N)
    free = FreeCopies(device)

    def step() -> tuple[Tensor, Tensor, Tensor]:
        return (
            x.to(device, torch.float16, non_blocking=True),
            y.cuda(non_blocking=True),
            x.pin_memory().to(device),
        )

    learned(free, step)
    sums = []

    def steps() -> None:
        for _ in range(10):
            free.begin_step()
            half, labels, raw = step()
            assert half.dtype == torch.float16
            sums.append((half.double().sum(), labels.sum(), raw.double().sum()))

    assert n_h2d_copies(steps) == 0
    free.remove()
    expected = (x.double().sum().item(), y.sum().item(), x.double().sum().item())
    assert {tuple(value.item() for value in each) for each in sums} == {expected}
    assert (free.hits, free.misses, free.reason) == (30, 0, None)


def test_in_place_changes_of_answers_never_add_up(device: torch.device) -> None:
    x, y = images().float(), torch.ones(N, dtype=torch.int64)
    free = FreeCopies(device)

    def step() -> tuple[float, int]:
        a, b = x.to(device), y.to(device)
        a.div_(255)
        b.sub_(1)
        return a.double().sum().item(), int(b.sum().item())

    learned(free, step)
    expected = ((x / 255).double().sum().item(), 0)
    for _ in range(2):
        for _ in range(20):
            free.begin_step()
            got = step()
            assert got[0] == pytest.approx(expected[0], rel=1e-6)
            assert got[1] == 0
        free.restore()
    spent = free.inline_ns
    for _ in range(20):
        free.begin_step()
        step()
    assert free.inline_ns == spent  # as many copies as a window uses were ready
    free.remove()


def test_answers_are_right_on_another_stream(device: torch.device) -> None:
    x = images().float()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    free = FreeCopies(device)

    def step() -> Tensor:
        with torch.cuda.stream(side):
            a = x.pin_memory().to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        a.record_stream(torch.cuda.current_stream())
        torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
        total = a.double().sum()
        a.mul_(2)
        return total

    learned(free, step)
    for _ in range(20):
        free.begin_step()
        assert step().item() == x.double().sum().item()
    free.remove()


def test_a_static_input_buffer_keeps_its_content(device: torch.device) -> None:
    x = images().float().pin_memory()
    static = torch.empty(N, 64, device=device)
    free = FreeCopies(device)
    learned(free, lambda: static.copy_(x, non_blocking=True))

    def steps() -> None:
        for _ in range(5):
            free.begin_step()
            static.copy_(x, non_blocking=True)
            assert torch.equal(static.cpu(), x)
            static.div_(3)

    assert n_h2d_copies(steps) == 0
    free.remove()
    assert free.misses == 0


def test_recorded_batches_and_answers_belong_together(device: torch.device) -> None:
    """Lengths stay on the host: the answer has to be of the same batch, not just of the shape."""
    replay_buffer = ReplayBuffer()
    for n in range(1, 12):
        lengths = torch.full((4,), n)
        replay_buffer.record((torch.full((4, 8), float(n)), lengths, torch.zeros(n)))
    free = FreeCopies(device, position=lambda: replay_buffer.position)
    source = replay_buffer.as_source()

    def step() -> None:
        x, lengths, _ = source.next_batch()
        assert lengths.device.type == "cpu"
        assert x.to(device).mean().item() == lengths[0].item()

    learned(free, step, n_steps=replay_buffer.n_batches)
    for _ in range(3 * replay_buffer.n_batches):
        free.begin_step()
        step()
    free.remove()
    assert free.misses == 0


def test_memory_goes_back(device: torch.device) -> None:
    before = torch.cuda.memory_allocated(device)
    free = FreeCopies(device)
    learned(free, lambda: images().to(device))
    assert torch.cuda.memory_allocated(device) > before
    free.remove()
    free.release()
    assert torch.cuda.memory_allocated(device) == before


def test_no_answer_during_a_graph_capture(device: torch.device) -> None:
    x = images().float().pin_memory()
    static = torch.empty(N, 64, device=device)
    free = FreeCopies(device)
    learned(free, lambda: static.copy_(x, non_blocking=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.copy_(x, non_blocking=True)
    free.remove()
    static.zero_()
    graph.replay()
    assert torch.equal(static.cpu(), x)


def test_records_name_pinned_memory_and_cuda_calls(device: torch.device) -> None:
    observer = TransferObserver("cuda")
    observer.install()
    for _ in range(4):
        observer.begin_step()
        batch = [torch.zeros(8).pin_memory(), torch.zeros(8)]
        observer.note_batch(batch)
        batch[0].cuda(non_blocking=True)
        batch[1].to(device)
    observer.remove()
    first, second = observer.records()
    assert (first.call, first.pinned, first.non_blocking, first.path) == ("cuda", True, True, "[0]")
    assert (second.call, second.pinned, second.non_blocking) == ("to", False, False)


def test_recorded_pinned_batches_stay_pinned_and_device_batches_on_the_device(
    device: torch.device,
) -> None:
    replay_buffer = ReplayBuffer()
    for _ in range(3):
        replay_buffer.record([images().pin_memory(), images(), images().to(device)])
    for _ in range(6):
        pinned, pageable, on_device = replay_buffer.next_batch()
        assert (pinned.is_pinned(), pageable.is_pinned()) == (True, False)
        assert on_device.device == device
        for tensor in (pinned, pageable, on_device):
            assert torch.equal(tensor.cpu(), images())
            tensor.zero_()
    replay_buffer.restore()
    assert torch.equal(replay_buffer.next_batch()[0], images())
    replay_buffer.release()


@pytest.mark.parametrize("wanted", [True, False])
def test_forced_transfers_block_or_do_not(device: torch.device, wanted: bool) -> None:
    """A blocking copy waits for the stream it is on; the other returns while it still works."""
    x = torch.zeros(1024, pin_memory=True)
    force = ForceTransfer(wanted, "cuda")
    force.install()
    torch.empty(1024, device=device)  # a first allocation may itself wait for the device
    busy = torch.cuda.Event()  # type: ignore[no-untyped-call]
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
    busy.record()
    x.to(device, non_blocking=not wanted)
    returned_early = not busy.query()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    force.remove()
    assert returned_early is wanted
