"""What the labels of a loader's first batches are: one in each batch tells of data unshuffled."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, tensors
from loaderdoctor.instrument.wire.records import LabelsRecord

MIN_SAMPLES: Final = 8  # fewer are alike by chance
_NAMED = re.compile(r"label|target|class|\bcls\b|category", re.IGNORECASE)
_FIRST, _SECOND = "[0]", "[1]"  # of (inputs, labels)


class Labels:
    """Of batches as they come; nothing of them is kept but one number each."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._n = 0
        self._single: list[int] = []
        # Dimensions of the inputs that were the largest number in every batch: then it is a length.
        self._padded_to: set[int] | None = None

    def add(self, batch: Any) -> None:
        """Look at one."""
        try:
            found = dict(tensors(batch))
        except UnsupportedBatch:
            return
        if self._path is None:
            self._path = _labels_path(found)
        labels = found.get(self._path or "")
        if labels is None or not _is_labels(labels):
            return
        self._n += 1
        if self._path == _SECOND:
            padded = _dimensions_of(found.get(_FIRST), int(labels.max()))
            self._padded_to = padded if self._padded_to is None else self._padded_to & padded
        first = int(labels.reshape(-1)[0])
        if bool((labels == first).all()):
            self._single.append(first)

    def record(self) -> LabelsRecord | None:
        """None where no batch had any, or they were the lengths that inputs are padded to."""
        if self._path is None or not self._n or self._padded_to:
            return None
        return LabelsRecord(
            path=self._path,
            n_batches=self._n,
            n_of_one_label=len(self._single),
            n_labels=len(set(self._single)),
        )


def _labels_path(found: dict[str, torch.Tensor]) -> str | None:
    named = [path for path, tensor in found.items() if _NAMED.search(path) and _is_labels(tensor)]
    if len(named) == 1:
        return named[0]
    return _SECOND if len(found) == 2 and _is_labels(found.get(_SECOND)) else None


def _dimensions_of(inputs: torch.Tensor | None, size: int) -> set[int]:
    shape = () if inputs is None else inputs.shape
    return {i for i, n in enumerate(shape) if n == size}


def _is_labels(tensor: torch.Tensor | None) -> bool:
    return (
        tensor is not None
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.int64, torch.int32, torch.uint8)
        and (tensor.ndim == 1 or (tensor.ndim == 2 and tensor.shape[1] == 1))
        and tensor.shape[0] >= MIN_SAMPLES
    )
