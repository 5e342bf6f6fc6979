"""A few samples of a dataset, and what kind of thing a sample is: to try a changed dataset on."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

Kind = Any  # nested tuples of names, shapes and dtypes; equal kinds collate alike


def some_samples(dataset: Any) -> list[Any]:
    """The first, the middle and the last sample; of an iterable dataset the first.

    Raises whatever the dataset raises.
    """
    if isinstance(dataset, IterableDataset):
        return [sample for sample, _ in zip(iter(dataset), range(1), strict=False)]
    n = len(dataset)
    return [dataset[i] for i in sorted({0, n // 2, n - 1} if n else ())]


def kind_of(sample: Any) -> Kind:
    """Structure, types, shapes and dtypes of a sample, without its values."""
    if isinstance(sample, Tensor):
        return ("tensor", tuple(sample.shape), str(sample.dtype))
    if isinstance(sample, dict):
        return tuple((key, kind_of(value)) for key, value in sample.items())
    if isinstance(sample, (list, tuple)):
        return (type(sample).__name__, *(kind_of(item) for item in sample))
    shape = getattr(sample, "shape", None) or getattr(sample, "size", None)
    if isinstance(shape, tuple):  # an array or a picture
        return (type(sample).__name__, shape, str(getattr(sample, "dtype", "")))
    return type(sample).__name__


def shapes_in(kind: Kind) -> str:
    """The shapes of a kind in words, for a reason: `(3, 32, 32)`."""
    if isinstance(kind, tuple) and len(kind) > 1 and kind[0] == "tensor":
        return str(kind[1])
    if isinstance(kind, tuple):
        return ", ".join(text for part in kind if (text := shapes_in(part)))
    return ""
