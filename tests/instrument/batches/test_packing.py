"""Small tensors as one: on the other side the same batch, bit for bit, in memory of its own."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import digest
from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.batches.packing import (
    ALIGNMENT,
    MAX_SMALL_BYTES,
    PackedBatch,
    PackedToDevice,
    PackingCollate,
    pack,
)
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.axis_cases import plainly
from tests.instrument.on_meta import META
from tests.instrument.opening import opened, reason

Pair = namedtuple("Pair", "left right")
N = 6


class Columns(Dataset[Any]):
    """Many inputs of several types and lengths."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> dict[str, Any]:
        made: dict[str, Any] = {f"x{k}": torch.full((k + 1,), float(i * k)) for k in range(N)}
        return made | {"flag": i % 3 == 0, "id": i, "name": f"sample {i}", "pair": (i, i / 3)}


def assorted() -> dict[str, Any]:
    x = torch.randn(5, 3)
    return {
        "floats": x,
        "again": x,
        "halves": torch.randn(7).half(),
        "bools": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 4),
        "number": torch.tensor(3, dtype=torch.int64),
        "complex": torch.randn(3, dtype=torch.complex64),
        "nested": [Pair(torch.arange(4), torch.zeros(2, 2, dtype=torch.uint8)), "text", None],
        "ordered": OrderedDict(a=torch.ones(1)),
        "large": torch.zeros(MAX_SMALL_BYTES + 1, dtype=torch.uint8),
        "turned": torch.randn(4, 5).T,
    }


def test_what_is_packed_is_the_batch_again() -> None:
    batch = assorted()
    made = pack(batch)
    assert digest(made.host()) == digest(batch)
    out = made.host()
    assert out["large"] is batch["large"] and out["turned"] is batch["turned"]  # travel alone
    assert out["floats"].data_ptr() % 16 == 0 and made.packed.numel() % ALIGNMENT == 0
    assert made.packed.numel() < 4096
    assert type(out["nested"][0]) is Pair and type(out["ordered"]) is OrderedDict


def test_slices_of_larger_tensors_are_packed_as_a_copy_of_each_would_be() -> None:
    whole = torch.randn(6, 4, 5)
    batch = {"a": whole[:, 1], "b": whole[:, 2, ::2], "c": whole[:1].expand(3, 4, 5)}
    batch |= {"turned": whole[0].T, "part": whole[:, :, 0].T}
    assert not any(tensor.is_contiguous() for tensor in batch.values())
    out = pack(batch).host()
    assert digest(out) == digest(batch) and out["turned"] is batch["turned"]
    for name in "abc":
        assert out[name].stride() == torch.empty_like(batch[name]).stride(), name
        assert out[name].is_contiguous()


class Slices(Dataset[Any]):
    """Whole batches, whose tensors are slices of one: nothing is collated."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        values = torch.full((8, 3, 2), float(i))
        return {f"x{k}": values[:, k] for k in range(3)}


def test_batches_that_the_dataset_makes_are_packed() -> None:
    loader = DataLoader(Slices(), batch_size=None, num_workers=1)
    moved = tuple(cases.moved(f"['x{k}']", (8, 2), "float32") for k in range(3))
    source = opened(loader, Settings(packed=True), device=META, transfers=moved)
    batch = source.next_batch()
    source.close()
    assert len({tensor.untyped_storage()._cdata for tensor in batch.values()}) == 1
    assert [tensor.shape for tensor in batch.values()] == [(8, 2)] * 3


def test_a_change_of_one_tensor_is_none_of_its_neighbours() -> None:
    out = pack(assorted()).host()
    weight = torch.ones(3, requires_grad=True)
    loss = (out["floats"] * weight).sum()
    out["halves"].zero_()  # would make autograd refuse, had they one version
    out["nested"][0].left.add_(1)
    loss.backward()
    assert weight.grad is not None


def test_all_that_the_loop_moves_goes_with_one_copy() -> None:
    batch = {"a": torch.zeros(4, 3), "b": torch.zeros(4), "n": torch.arange(4), "name": "x"}
    records = tuple(
        cases.moved(f"['{k}']", tuple(batch[k].shape), "float32")  # type: ignore[attr-defined]
        for k in "ab"
    )
    to_device = PackedToDevice(ToDevice(META, records, non_blocking=False))
    out, moved = to_device.move(pack(batch))
    assert [out[k].device.type for k in ("a", "b", "n")] == ["meta", "meta", "cpu"]
    assert out["a"].shape == (4, 3) and out["n"].tolist() == [0, 1, 2, 3] and out["name"] == "x"
    assert moved[0].dtype == torch.uint8 and len(moved) == 3
    assert moved[1].untyped_storage()._cdata == moved[0].untyped_storage()._cdata
    plain, _ = to_device.move(batch)  # of a batch that is not packed
    assert plain["a"].device.type == "meta"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trial_hands_out_the_loaders_own_batches(workers: int) -> None:
    loader = DataLoader(Columns(), batch_size=8)
    own = list(loader)
    moved = (cases.moved("['x1']", (8, 2), "float32"),)
    settings = Settings(packed=True, num_workers=workers)
    source = opened(loader, settings, device=META, transfers=moved)
    try:
        for expected in own * 2:
            batch = source.next_batch()
            assert batch.pop("x1").device.type == "meta"
            assert digest(batch) == digest({k: v for k, v in expected.items() if k != "x1"})
            assert list(batch) == [k for k in expected if k != "x1"]
    finally:
        source.close()
    assert plainly(loader, 3)


def test_what_can_not_be_packed_is_refused() -> None:
    class Custom:
        def __init__(self, tensors: list[Tensor]) -> None:
            self.tensors = tensors

    def custom(samples: list[Any]) -> Any:
        return Custom([torch.ones(3), torch.ones(2), torch.ones(1)])

    with pytest.raises(TrialRefused, match="nothing to pack"):
        PackingCollate(custom)([1])
    packed = Settings(packed=True)
    one: DataLoader[Any] = DataLoader(torch.zeros(8, 3), batch_size=4)  # type: ignore[arg-type]
    moved = (cases.moved("", (4, 3), "float32"),)
    assert "nothing to pack" in reason(one, packed, device=META, transfers=moved)
    assert "needs an accelerator" in reason(one, packed)
    assert "not seen to copy" in reason(one, packed, device=META)


def test_pinning_keeps_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self.clone())
    batch = assorted()
    pinned = pack(batch).pin_memory()
    assert isinstance(pinned, PackedBatch) and digest(pinned.host()) == digest(batch)
