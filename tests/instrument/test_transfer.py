"""The loop's own host-to-device calls. The meta device stands in for an accelerator on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loaderdoctor.errors import RunError
from loaderdoctor.instrument import h2d
from loaderdoctor.instrument.h2d import H2DCall, H2DHook
from loaderdoctor.instrument.transfer import ForceTransfer, FreeCopies, TransferObserver

META = torch.device("meta")
X = torch.arange(6.0)


class Counting(H2DHook):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[H2DCall] = []

    def on_call(self, call: H2DCall) -> Tensor:
        self.calls.append(call)
        return call.make()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    if h2d._Patch.hook is not None:
        h2d._Patch.hook.remove()
    for name in ("to", "cuda", "copy_"):
        assert name not in Tensor.__dict__


def seen(action: Any) -> list[H2DCall]:
    hook = Counting()
    hook.install()
    try:
        action()
    finally:
        hook.remove()
    return hook.calls


@pytest.mark.parametrize(
    ("action", "dtype", "non_blocking"),
    [
        (lambda: X.to("meta"), torch.float32, False),
        (lambda: X.to(META, non_blocking=True), torch.float32, True),
        (lambda: X.to(META, torch.float16), torch.float16, False),
        (lambda: X.to(META, torch.float16, True), torch.float16, True),
        (lambda: X.to(META, None, True), torch.float32, True),
        (lambda: X.to(device="meta", dtype=torch.float16), torch.float16, False),
        (lambda: X.to(X.to(torch.int8).to("meta"), True), torch.int8, True),
        (lambda: X.to(tensor=torch.empty(1, device="meta")), torch.float32, False),  # type: ignore[call-overload]  # torch says `other` in its stub
        (lambda: torch.empty(6, device="meta").copy_(X), torch.float32, False),
        (lambda: torch.empty(6, device="meta").copy_(X, non_blocking=True), torch.float32, True),
        (lambda: torch.empty(6, device="meta").copy_(other=X), torch.float32, False),
    ],
)
def test_every_form_of_a_copy_to_the_device_is_seen(
    action: Any, dtype: torch.dtype, non_blocking: bool
) -> None:
    call = seen(action)[-1]
    assert (call.dtype, call.non_blocking, call.device.type) == (dtype, non_blocking, "meta")


@pytest.mark.parametrize(
    "action",
    [
        lambda: X.to(torch.float16),
        lambda: X.to("cpu"),
        lambda: X.reshape(1, 1, 2, 3).to(memory_format=torch.channels_last),
        lambda: X.clone().copy_(X),
        lambda: torch.empty(6, device="meta").to(torch.float16),
        lambda: torch.empty(6, device="meta").copy_(torch.empty(6, device="meta")),
        lambda: X.to(X),
        lambda: X.float().half().double(),
        lambda: nn.Linear(2, 2).to(torch.float16),
    ],
)
def test_what_copies_nothing_to_the_device_is_not_seen(action: Any) -> None:
    assert seen(action) == []


def test_wrong_calls_fail_as_without_us() -> None:
    with pytest.raises((RuntimeError, TypeError)) as alone:
        X.to("no such device")
    hook = Counting()
    hook.install()
    with pytest.raises(type(alone.value)) as watched:
        X.to("no such device")
    hook.remove()
    assert str(watched.value).splitlines()[0] == str(alone.value).splitlines()[0]


def test_the_class_is_left_as_it_was() -> None:
    before = (Tensor.to, Tensor.cuda, Tensor.copy_)
    hook = Counting()
    hook.install()
    hook.install()
    assert hook.installed
    hook.remove()
    hook.remove()
    assert (Tensor.to, Tensor.cuda, Tensor.copy_) == before
    assert Tensor.to is torch._C.TensorBase.to


def test_a_patch_of_someone_elses_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return torch._C.TensorBase.to(tensor, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "to", theirs)
        assert len(seen(lambda: X.to("meta"))) == 1
        assert Tensor.__dict__["to"] is theirs


def test_one_hook_at_a_time() -> None:
    first = Counting()
    first.install()
    with pytest.raises(RunError):
        Counting().install()
    first.remove()


def test_subclasses_go_through_once_and_keep_their_type() -> None:
    vision = pytest.importorskip("torchvision.tv_tensors")
    image = vision.Image(torch.zeros(3, 2, 2))
    kept: list[Any] = []
    assert len(seen(lambda: kept.append(image.to("meta")))) == 1
    assert type(kept[0]) is type(image)


def test_compiled_code_runs_under_the_hook() -> None:
    def double(x: Tensor) -> Tensor:
        return x.to(torch.float64) * 2

    compiled = torch.compile(double, backend="eager")
    hook = Counting()
    hook.install()
    inside = compiled(X)
    hook.remove()
    assert torch.equal(inside, double(X))
    assert torch.equal(compiled(X), double(X))


# ------------------------------------------------------------------ TransferObserver


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
    assert images.site.startswith("test_transfer.py:")
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


# ------------------------------------------------------------------ ForceTransfer


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
    assert force.n_calls == 3


# ------------------------------------------------------------------ FreeCopies


class Copies:
    """How often torch itself was asked to copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        original = H2DCall.make

        def counted(call: H2DCall) -> Tensor:
            self.n += 1
            return original(call)

        monkeypatch.setattr(H2DCall, "make", counted)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def test_known_calls_are_answered_without_a_copy(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    for step in range(5):
        if step == 1:
            free.start_counting()
        free.begin_step()
        x = torch.zeros(4, 3).to(META, torch.float16, non_blocking=True)
        y = torch.zeros(4, 3).to(META)
        assert (x.dtype, y.dtype, x.device.type) == (torch.float16, torch.float32, "meta")
        stays = torch.zeros(4).to(torch.int64)
        assert stays.device.type == "cpu"
    free.remove()
    assert copies.n == 2
    assert (free.hits, free.misses, free.reason) == (8, 0, None)


def test_shapes_that_always_change_give_a_reason(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    free.start_counting()
    for step in range(5):
        free.begin_step()
        torch.zeros(step + 1).to(META)
    free.remove()
    assert free.hits == 0
    assert free.reason is not None
    assert free.reason.startswith("5 of 5")


def test_each_recorded_batch_has_its_own_answers_and_others_stand_in(copies: Copies) -> None:
    position = 0
    free = FreeCopies(META, position=lambda: position)
    free.install()
    for step in range(8):
        if step == 4:
            free.start_counting()
        position = step % 4
        free.begin_step()
        torch.zeros(3).to(META)
    assert copies.n == 4
    position = 99
    free.begin_step()
    torch.zeros(3).to(META)
    free.remove()
    assert copies.n == 4
    assert (free.hits, free.misses) == (5, 0)


def test_parameters_gradients_and_modules_are_let_through(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    weight = nn.Parameter(torch.ones(3))
    embedded = weight * 2
    norm = nn.BatchNorm1d(3)
    for step in range(4):
        if step == 2:
            free.start_counting()
        free.begin_step()
        weight.to(META)
        assert embedded.to(META).grad_fn is not None
        norm._buffers["running_mean"] = torch.zeros(3)
        norm.to("meta")
    free.remove()
    assert free.hits == 0
    assert free.reason is not None


def test_copies_into_the_loops_buffer_return_that_buffer(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    buffer = torch.empty(2, 3, device="meta")
    for step in range(4):
        if step == 1:
            free.start_counting()
        free.begin_step()
        before = buffer._version
        assert buffer.copy_(torch.zeros(2, 3), non_blocking=True) is buffer
        assert (buffer._version == before) is (step > 0)
    free.remove()
    assert copies.n == 1
    assert free.hits == 3


def test_a_buffer_that_changed_or_is_new_is_filled_on_the_device(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    buffer = torch.empty(3, device="meta")
    for step in range(4):
        if step == 1:
            free.start_counting()
        free.begin_step()
        before = buffer._version
        buffer.copy_(torch.zeros(3))
        assert buffer._version > before
        buffer.div_(255)
        fresh = torch.empty(4, device="meta")
        fresh.copy_(torch.zeros(4))
        assert fresh._version == 1
    free.remove()
    assert copies.n == 2


def test_two_halves_of_one_buffer_stay_filled(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    buffer = torch.empty(2, 3, device="meta")
    for step in range(4):
        if step == 1:
            free.start_counting()
            before = buffer._version
        free.begin_step()
        buffer[0].copy_(torch.zeros(3))
        buffer[1].copy_(torch.zeros(3))
    free.remove()
    assert copies.n == 2
    assert buffer._version == before


def test_each_threads_calls_are_counted_on_their_own(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()

    def prefetcher() -> None:
        for _ in range(5):
            free.begin_step()
            torch.zeros(7).to(META)
            torch.zeros(7, dtype=torch.int64).to(META)

    def copier() -> None:
        for _ in range(5):
            torch.zeros(9).to(META)

    for _ in range(2):
        threads = [threading.Thread(target=prefetcher), threading.Thread(target=copier)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        free.start_counting()
    free.remove()
    assert copies.n == 3


def test_answers_are_freed() -> None:
    free = FreeCopies(META)
    free.install()
    free.begin_step()
    X.to(META)
    free.remove()
    assert len(free._pools()) == 1
    free.release()
    assert free._pools() == []
