"""Which calls copy to the device, and the hook on them: there, and gone again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.batches.h2d import H2DCall, H2DHook
from tests.instrument.on_meta import META, X

pytestmark = pytest.mark.usefixtures("no_hook_stays")


class Counting(H2DHook):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[H2DCall] = []

    def on_call(self, call: H2DCall) -> Tensor:
        self.calls.append(call)
        return call.make()


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
