"""Recorded batches are clones of the same kind, and come out the same however they are used."""

from __future__ import annotations

import collections
import gc
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from loaderdoctor.instrument.batches import UnsupportedBatch, rebuild, tensors
from loaderdoctor.instrument.batches import replay_buffer as module
from loaderdoctor.instrument.batches.replay_buffer import ReplayBuffer
from loaderdoctor.instrument.batches.tensor_pool import (
    FIRST_COPIES,
    Budget,
    TensorPool,
    clone,
    held_bytes,
)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    name: str


class Slotted:
    __slots__ = ("__weakref__", "never_set", "x")

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Child:
    def __init__(self, parent: Graph, x: Tensor) -> None:
        self.parent = weakref.ref(parent)
        self.x = x


class Graph:
    """A batch whose part knows its parent, as graph batches do."""

    def __init__(self, x: Tensor) -> None:
        self.store = Child(self, x)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Encoding(collections.UserDict[str, Any]):
    """What tokenizers return."""


X = torch.arange(6.0).reshape(2, 3)
BATCHES: dict[str, Any] = {
    "tensor": X,
    "list": [X, X + 1],
    "tuple": (X, {"deep": [X * 2, "text", 3]}),
    "dict": {"x": X, 5: X + 1},
    "ordered dict": collections.OrderedDict(x=X),
    "default dict": collections.defaultdict(list, x=X),
    "named tuple": Pair(X, X + 1),
    "frozen dataclass": Frozen(X, "name"),
    "slots": Slotted(X),
    "user dict": Encoding({"ids": X, "mask": X > 2}),
    "graph": Graph(X),
    "packed": pack_sequence([torch.ones(3), torch.ones(2)]),
    "array": {"a": np.arange(4), "x": X},
    "the same tensor twice": [X, X],
}


def record(batch: Any, n: int = 3) -> ReplayBuffer:
    replay_buffer = ReplayBuffer()
    for _ in range(n):
        replay_buffer.record(batch)
    return replay_buffer


@pytest.mark.parametrize("name", BATCHES)
def test_a_handed_out_batch_equals_the_recorded_one(name: str) -> None:
    batch = BATCHES[name]
    out = record(batch).next_batch()
    assert type(out) is type(batch)
    before, after = tensors(batch), tensors(out)
    assert [path for path, _ in before] == [path for path, _ in after]
    assert before
    for (_, old), (_, new) in zip(before, after, strict=True):
        assert torch.equal(old, new)
        assert (old.dtype, old.stride()) == (new.dtype, new.stride())
        assert old.data_ptr() != new.data_ptr()


def test_what_a_part_knows_of_its_parent_points_to_the_new_parent() -> None:
    out = record(BATCHES["graph"]).next_batch()
    assert out.store.parent() is out


def test_a_packed_sequence_can_be_used_after_recording() -> None:
    out = record(BATCHES["packed"]).next_batch()
    assert isinstance(out, PackedSequence)
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(out)
    assert padded.shape == (3, 2)
    assert lengths.tolist() == [3, 2]


def test_other_leaves_are_the_same_objects() -> None:
    text = ["a", "b"]
    out = record({"x": X, "path": text[0], "n": 7}).next_batch()
    assert out["path"] is text[0]
    assert out["n"] == 7


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(4, 6).t(),
        torch.arange(12).reshape(3, 4)[:, ::2],
        torch.arange(3.0).expand(5, 3),
        torch.zeros(0, 4),
        torch.tensor(3),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.complex64),
        torch.tensor([True, False]),
    ],
)
def test_clones_keep_dtype_and_strides(tensor: Tensor) -> None:
    made = clone(tensor, pinned=False)
    assert torch.equal(made, tensor)
    assert (made.shape, made.stride(), made.dtype) == (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )


def test_an_expanded_tensor_is_held_once() -> None:
    assert held_bytes(torch.zeros(1, 1000).expand(64, 1000)) == 4000
    assert clone(torch.zeros(1).expand(64), pinned=False).untyped_storage().nbytes() == 4


def test_sparse_tensors_are_handled() -> None:
    sparse = torch.eye(4).to_sparse()
    replay_buffer = record([sparse])
    out = replay_buffer.next_batch()[0]
    assert out.layout == torch.sparse_coo
    assert torch.equal(out.to_dense(), torch.eye(4))
    out.mul_(0)
    again = replay_buffer.next_batch()[0]
    assert torch.equal(again.to_dense(), torch.eye(4))


def test_subclasses_keep_their_type() -> None:
    vision = pytest.importorskip("torchvision.tv_tensors")
    boxes = vision.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(8, 8))
    out = record([boxes]).next_batch()[0]
    assert type(out) is type(boxes)
    assert out.canvas_size == (8, 8)


def test_nothing_of_the_users_is_kept_alive() -> None:
    batch = [torch.ones(5), {"a": torch.ones(3), "array": np.ones(3)}]
    gone = [weakref.ref(tensor) for _, tensor in tensors(batch)]
    array = weakref.ref(batch[1]["array"])  # type: ignore[index]
    replay_buffer = record(batch)
    del batch
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert array() is None
    assert replay_buffer.ready
    held = [weakref.ref(pool._copies[0].tensor) for pool in replay_buffer._recorded[0].pools]
    replay_buffer.release()
    assert [ref() for ref in held] == [None, None]


def test_one_batch_stands_for_all_of_constant_shape() -> None:
    replay_buffer = ReplayBuffer()
    replay_buffer.record([X])
    assert not replay_buffer.ready
    for i in range(5):
        replay_buffer.record([X + i])
    assert replay_buffer.ready
    assert replay_buffer.n_batches == 1
    assert not replay_buffer.shapes_vary


def test_up_to_eight_batches_are_kept_where_shapes_vary_and_come_in_order() -> None:
    replay_buffer = ReplayBuffer()
    for n in range(1, 20):
        assert replay_buffer.ready is (replay_buffer.n_batches == 8)
        replay_buffer.record(torch.full((n,), float(n)))
    assert replay_buffer.n_batches == 8
    source = replay_buffer.as_source()
    sizes = [source.next_batch().numel() for _ in range(16)]
    assert sizes == [*range(1, 9), *range(1, 9)]
    assert replay_buffer.position == 7


def test_a_batch_that_does_not_fit_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    replay_buffer = record(torch.zeros(100, dtype=torch.uint8))
    assert not replay_buffer.ready
    assert replay_buffer.reason is not None
    assert "10%" in replay_buffer.reason
    with pytest.raises(StopIteration):
        replay_buffer.next_batch()


def test_memory_ends_the_recording_not_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 10_000)
    replay_buffer = ReplayBuffer()
    for n in range(100, 120):
        replay_buffer.record(torch.zeros(n, dtype=torch.uint8))
    assert replay_buffer.ready
    assert 2 <= replay_buffer.n_batches < 8


def test_a_batch_that_leads_to_everything_is_refused() -> None:
    deep: list[Any] = [X]
    for _ in range(30):
        deep = [deep]
    replay_buffer = record(deep)
    assert replay_buffer.reason is not None
    with pytest.raises(UnsupportedBatch):
        tensors(deep)


def test_an_object_that_cannot_be_copied_is_refused() -> None:
    class Failed(Exception):  # noqa: N818
        def __init__(self) -> None:
            self.x = X

        def __reduce_ex__(self, protocol: object) -> Any:
            raise TypeError("not this one")

    with pytest.raises(UnsupportedBatch, match="Failed can't be copied: not this one"):
        rebuild([Failed()], lambda path, tensor: tensor)


def test_changes_in_place_never_reach_the_next_hand_out() -> None:
    """Labels shifted each step would run out of range, and images fade into denormals."""
    replay_buffer = record([X, torch.tensor([1, 2])])
    for _ in range(30):
        x, labels = replay_buffer.next_batch()
        x.div_(255)
        labels -= 1
        assert labels.tolist() == [0, 1]
        assert torch.equal(x, X / 255)
    assert replay_buffer.inline_ns > 0


def test_what_the_loop_still_holds_of_earlier_steps_stays_as_it_made_it() -> None:
    replay_buffer = record([X])
    weight = torch.ones((), requires_grad=True)
    held, losses = [], []
    for step in range(20):
        (x,) = replay_buffer.next_batch()
        assert torch.equal(x, X)
        x.mul_(step)
        held.append(x[1:] if step % 2 else x.detach())
        losses.append((weight * x).sum())
        if step == 10:
            replay_buffer.restore()
        del x
    for step, x in enumerate(held):
        assert torch.equal(x, (X[1:] if step % 2 else X) * step)
    # Not "modified by an inplace operation".
    (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), weight)
    assert torch.equal(gradient, X.sum() * sum(range(20)))


def test_memory_that_the_loop_let_go_is_used_again() -> None:
    replay_buffer = record([X])
    places = set()
    for _ in range(20):
        (x,) = replay_buffer.next_batch()
        places.add(x.data_ptr())
        x.mul_(2)
        del x
    replay_buffer.restore()
    pool = replay_buffer._recorded[0].pools[0]
    assert len(places) <= FIRST_COPIES and pool.n_copies == 20


def test_after_restore_a_window_as_long_as_the_last_undoes_nothing_inside() -> None:
    replay_buffer = record([X])

    def window() -> int:
        before = replay_buffer.inline_ns
        for _ in range(20):
            replay_buffer.next_batch()[0].mul_(2)
        spent = replay_buffer.inline_ns - before
        replay_buffer.restore()
        return spent

    assert window() > 0
    assert window() == 0
    assert torch.equal(replay_buffer.next_batch()[0], X)


def test_a_loop_that_changes_nothing_gets_one_copy_of_memory() -> None:
    replay_buffer = record([X])
    for _ in range(20):
        replay_buffer.next_batch()
    replay_buffer.restore()
    assert replay_buffer._recorded[0].pools[0].n_copies == 1
    assert replay_buffer.inline_ns == 0


def test_changes_past_the_version_counter_are_undone_between_windows() -> None:
    replay_buffer = record([X])
    replay_buffer.next_batch()[0].numpy()[:] = 9
    replay_buffer.next_batch()[0].data.zero_()
    replay_buffer.restore()
    assert torch.equal(replay_buffer.next_batch()[0], X)


def test_gradients_and_containers_are_the_steps_own() -> None:
    replay_buffer = record({"x": X, "drop": "me", "t": [X + 1]})
    first = replay_buffer.next_batch()
    first["x"].requires_grad_()
    first["x"].sum().backward()
    first.pop("drop")
    first["t"].clear()
    first["x"] = None
    second = replay_buffer.next_batch()
    assert second["drop"] == "me"
    assert len(second["t"]) == 1
    assert not second["x"].requires_grad
    assert second["x"].grad is None


def test_hand_outs_in_inference_mode_are_ordinary_tensors() -> None:
    with torch.inference_mode():
        replay_buffer = record([X + 1])
        out = replay_buffer.next_batch()[0]
        out.add_(1)
        again = replay_buffer.next_batch()[0]
    assert torch.equal(again, X + 1)
    assert not again.is_inference()


def test_a_pool_puts_back_within_the_window_when_memory_is_short() -> None:
    pool = TensorPool(X, Budget(2 * held_bytes(X)))
    for _ in range(5):
        out = pool.hand_out()
        assert torch.equal(out, X)
        out.zero_()
    assert pool.n_copies == 1
    with pytest.raises(MemoryError):
        TensorPool(X, Budget(2 * held_bytes(X) - 1))


def test_long_plain_lists_are_copied_without_a_look_at_each_element() -> None:
    words = ["w"] * 50_000
    replay_buffer = record({"x": X, "words": words})
    out = replay_buffer.next_batch()
    out["words"].clear()
    assert len(replay_buffer.next_batch()["words"]) == 50_000
    assert len(words) == 50_000


def test_the_users_container_is_never_written_to() -> None:
    batch = Encoding({"ids": X})
    out = rebuild(batch, lambda _, t: t + 1)
    assert torch.equal(batch["ids"], X)
    assert torch.equal(out["ids"], X + 1)


def test_a_closed_ring_source_ends_and_the_ring_stays() -> None:
    replay_buffer = record([X])
    source = replay_buffer.as_source()
    assert source.drop(5) == 0
    assert source.startup_ns is None
    source.close()
    source.close()
    with pytest.raises(StopIteration):
        source.next_batch()
    assert torch.equal(replay_buffer.as_source().next_batch()[0], X)
