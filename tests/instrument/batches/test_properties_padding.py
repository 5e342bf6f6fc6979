"""Padding is counted by a mask or by how rows end, and never where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from loaderdoctor.instrument.batches.properties import MIN_LENGTH, Lengths, cells
from loaderdoctor.instrument.wire.records import PaddingRecord


def padded(lengths: list[int], *, value: float = 0.0, width: int | None = None) -> Tensor:
    rows = [torch.arange(1.0, n + 1) for n in lengths]
    if width is not None:
        rows = [row.unsqueeze(1).expand(-1, width) for row in rows]
    return pad_sequence(rows, batch_first=True, padding_value=value)


def seen(*batches: Any) -> PaddingRecord | None:
    lengths = Lengths()
    for batch in batches:
        lengths.add(batch)
    return lengths.record()


@pytest.mark.parametrize("value", [0.0, -100.0, 1.0])
@pytest.mark.parametrize("width", [None, 3])
def test_rows_that_end_in_one_value_are_padded(value: float, width: int | None) -> None:
    a, b = [20, 10, 8], [30, 12, 11]
    batches = [[padded(x, value=value, width=width), torch.zeros(3)] for x in (a, b)]
    record = seen(*batches)
    assert record is not None and record.path == "[0]"
    assert record.share == pytest.approx((60 + 90 - sum(a) - sum(b)) / 150)
    assert (record.n_batches, record.one_length) == (2, False)


def test_a_mask_tells_exactly_even_at_a_fixed_length() -> None:
    ids = torch.randint(5, 100, (4, 16))
    mask = (torch.arange(16) < torch.tensor([16, 3, 9, 1]).unsqueeze(1)).long()
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    record = seen(batch, batch)
    assert record == PaddingRecord(
        path="['attention_mask']", share=(64 - 29) / 64, n_batches=2, one_length=True
    )
    left = {"input_ids": ids, "attention_mask": mask.flip(1)}
    assert seen(left) == PaddingRecord(path="['attention_mask']", share=(64 - 29) / 64, n_batches=1)


HEALTHY: dict[str, list[Any]] = {
    "images of one size with black borders": [torch.zeros(4, 16, 16), torch.zeros(4, 16, 16)],
    "one-hot labels": [torch.eye(8, 12), torch.eye(8, 12)],
    "noise of varying size": [torch.rand(4, 16), torch.rand(4, 20)],
    "short rows": [torch.zeros(4, 3), torch.zeros(4, 4)],
    "all rows end alike": [torch.zeros(4, 16), torch.zeros(4, 20)],
    "a mask without padding": [{"mask": torch.ones(4, 16)}, {"mask": torch.ones(4, 20)}],
    "a mask with holes": [{"mask": torch.tensor([[1, 0] * 8, [0, 1] * 8])}],
    "weights": [{"mask": torch.rand(4, 16)}],
    "one sample": [torch.zeros(1, 16), torch.zeros(1, 20)],
    "no tensors": ["text", {"a": 1}],
    "packed": [torch.nn.utils.rnn.pack_sequence([torch.rand(9), torch.rand(8)])],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_no_padding_is_none(name: str) -> None:
    assert seen(*HEALTHY[name]) is None


@given(
    lengths=st.lists(st.integers(MIN_LENGTH, 40), min_size=2, max_size=6, unique=True),
    width=st.sampled_from([None, 2]),
)
def test_the_count_is_that_of_the_lengths(lengths: list[int], width: int | None) -> None:
    found = next(iter(cells(padded(lengths, width=width))), None)
    gaps = [max(lengths) - n for n in lengths]
    n_seen = sum(g for g in gaps if g >= 2)  # a single cell at a row's end may be its own
    if found is None:
        assert sum(g >= 2 for g in gaps) < 0.25 * len(lengths)
        return
    assert found.n_padding == n_seen * (width or 1)
    assert found.n == max(lengths) * len(lengths) * (width or 1)


def test_a_batch_is_looked_at_and_left_as_it_was() -> None:
    tensor = padded([20, 10]).requires_grad_()
    before, version = tensor.clone(), tensor._version
    assert cells(tensor)
    assert torch.equal(tensor, before)
    assert (tensor.grad, tensor._version) == (None, version)
