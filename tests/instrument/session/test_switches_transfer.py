"""The loop's own host-to-device calls recorded, and made with the other `non_blocking`."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from loaderdoctor.instrument.batches.h2d import H2DCall
from loaderdoctor.instrument.session.switches import ForceTransfer, TransferObserver
from tests.instrument.on_meta import X

pytestmark = pytest.mark.usefixtures("no_hook_stays")


def test_only_calls_of_every_step_are_recorded_with_their_line() -> None:
    observer = TransferObserver()
    observer.install()
    model = nn.Linear(3, 3).to("meta")
    for step in range(8):
        observer.begin_step()
        batch = [torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)]
        observer.note_batch(batch)
        x, y = [tensor.to("meta", non_blocking=True) for tensor in batch]  # both
        if step == 5:
            torch.zeros(100).to("meta")
        model(x).sum() + y.sum()
    observer.begin_step()
    observer.remove()
    images, labels = observer.records()
    assert images.site.startswith("test_switches_transfer.py:")
    assert images.code is not None
    assert images.code.endswith("# both")
    assert (images.path, labels.path) == ("[0]", "[1]")
    assert (images.shape, images.dtype, images.n_bytes) == ((4, 3), "float32", 48)
    assert (labels.dtype, labels.non_blocking, labels.pinned) == ("int64", True, False)


def test_a_tensor_that_the_loop_made_has_no_place_in_the_batch() -> None:
    observer = TransferObserver()
    observer.install()
    for _ in range(4):
        observer.begin_step()
        batch = {"x": torch.zeros(4, dtype=torch.uint8)}
        observer.note_batch(batch)
        batch["x"].float().to("meta")
    observer.remove()
    (record,) = observer.records()
    assert record.path is None


class Wrapped(Tensor):
    """A tensor without memory of its own, as libraries make them."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> None:
        raise NotImplementedError


def test_a_tensor_without_memory_is_passed_over() -> None:
    observer = TransferObserver()
    observer.begin_step()
    x = torch.zeros(3)
    observer.note_batch([Wrapped(x), x])
    assert [path for path, *_ in observer._batches[-1].values()] == ["[1]"]


def test_a_fetching_thread_begins_no_step_of_its_own() -> None:
    """A loop whose thread copies ahead makes its calls once a step, whoever makes them."""
    observer = TransferObserver()
    observer.install()

    def fetch() -> None:
        observer.begin_step()
        torch.zeros(4).to("meta")

    for _ in range(6):
        observer.begin_step()
        thread = threading.Thread(target=fetch)
        thread.start()
        thread.join()
    observer.remove()
    assert len(observer.records()) == 1
    assert len(observer._steps) == 6


def test_a_step_that_copies_nothing_has_no_records() -> None:
    observer = TransferObserver()
    observer.install()
    for _ in range(4):
        observer.begin_step()
    observer.remove()
    assert observer.records() == ()


@pytest.mark.parametrize("wanted", [True, False])
def test_calls_are_made_with_the_other_non_blocking(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []
    original = H2DCall.make_with

    def watched(call: H2DCall, *, non_blocking: bool) -> Tensor:
        made.append(non_blocking)
        return original(call, non_blocking=non_blocking)

    monkeypatch.setattr(H2DCall, "make_with", watched)
    image = torch.zeros(1, 2, 3, 3)
    force = ForceTransfer(wanted)
    force.install()
    half = X.to("meta", torch.float16, non_blocking=not wanted)
    last = image.to("meta", non_blocking=not wanted, memory_format=torch.channels_last)
    buffer = torch.empty(6, device="meta")
    same = buffer.copy_(X, not wanted)
    force.remove()
    assert made == [wanted] * 3
    assert half.dtype == torch.float16
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert same is buffer
