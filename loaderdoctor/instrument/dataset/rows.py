"""`batched`: a batch in one indexing operation, where samples are rows of arrays in memory.

What a dataset's code does to a row is not read: batches made of rows are compared with the
loader's own, bit for bit, and a dataset is refused whose batches come out otherwise.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import digest, rebuild, tensors
from loaderdoctor.instrument.dataset import put_back, states
from loaderdoctor.instrument.dataset.cached import CachedDataset
from loaderdoctor.instrument.dataset.safety import all_open_handles, own_copy

Collate = Callable[[Any], Any]

# Batches that are compared: the first and last samples, others from all over the dataset, a short
# batch. As many, or as that time makes, but no fewer samples: a row that is changed for one in 20
# goes unseen in 200 with a chance of 0.004 %.
N_COMPARED = 8
MIN_SAMPLES = 200
COMPARE_LIMIT_S = 0.5
# Rows are looked up in microseconds: what takes longer for so few samples is made.
GIVE_UP_S = 10.0
# A list of numbers is made an array once: 10 million take half a second.
MAX_LIST = 10_000_000


class RowBatches(Dataset[Any]):
    """Whole batches of `n` samples, whose tensors are rows of `columns`, by their paths in a batch.

    `like` is a batch that has the structure of all. `rows` tells which row a sample is, where not
    its own number. Its loader collates with `as_it_is`.
    """

    def __init__(
        self, n: int, columns: Mapping[str, Tensor], like: Any, *, rows: Tensor | None = None
    ) -> None:
        self._n = n
        self._columns = dict(columns)
        self._kinds = {path: tensor.dtype for path, tensor in tensors(like)}
        # Its content is of no use, and would be pickled for workers that are not forked.
        self._like = rebuild(like, lambda _, t: torch.empty(0, dtype=t.dtype))
        self._rows = rows

    def __len__(self) -> int:
        return self._n

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """The batch of these samples, in memory of its own."""
        at: Any = list(indices)
        if self._rows is not None:
            at = self._rows[at]

        def taken(path: str, _: Tensor) -> Tensor:
            return self._columns[path][at].to(self._kinds[path]).contiguous()

        return rebuild(self._like, taken)


def as_it_is(batch: Any) -> Any:
    """The collate function of whole batches."""
    return batch


def row_batches(
    dataset: Any, collate: Collate, batch_size: int, *, on_copy: bool = False
) -> RowBatches:
    """The dataset as whole batches of rows, equal to what its loader makes.

    `on_copy`: samples to compare are made by a copy, for a dataset that lives in workers.
    Raises TrialRefused, with the reason, where its samples are no rows of arrays that it holds,
    where they are drawn at random, or where batches hold what is no tensor.
    """
    if isinstance(dataset, IterableDataset):
        raise TrialRefused("the dataset is an iterable one: its samples have no numbers to index")
    base, chosen = _base(dataset)
    if getattr(base, "__getitems__", None) is not None:
        raise TrialRefused(f"{type(base).__name__} has __getitems__, which makes whole batches")
    held = dict(_held(base))
    if not held:
        raise TrialRefused(
            f"{type(base).__name__} holds no array or tensor with a row for each sample: samples "
            "are made, not looked up"
        )
    rows = None if chosen is None else torch.as_tensor(chosen, dtype=torch.int64)
    made_by, made_with = own_copy(dataset, collate) if on_copy else (dataset, collate)
    before = all_open_handles(made_by)
    with put_back():
        batches = _reference(made_by, made_with, batch_size)
        if opened := [x for x in all_open_handles(made_by) if x not in before]:
            raise TrialRefused(
                f"the dataset opens files ({', '.join(opened[:3])}) for its samples: they are "
                "made, not looked up"
            )
        columns = _matched(base, held, rows, batches)
        found = RowBatches(len(dataset), columns, batches[0][1], rows=rows)
        _require_equal(found, batches)
    return found


def kept_batches(samples: CachedDataset, collate: Collate, batch_size: int) -> RowBatches:
    """Samples that are in memory, all collated once, and indexed from then on.

    Raises TrialRefused where they don't make one batch of tensors with a row each.
    """
    n = samples.n_kept
    with put_back():
        try:
            columns = dict(tensors(collate([samples[i] for i in range(n)])))
        except Exception as error:  # the user's collate function, or samples of several shapes
            raise TrialRefused(f"all samples don't make one batch: {error}") from error
        if not columns or any(t.ndim == 0 or len(t) != n for t in columns.values()):
            raise TrialRefused("not every tensor of a batch has a row for each sample")
        batches = _reference(samples, collate, batch_size)
        rows = torch.arange(len(samples)) % n if n < len(samples) else None  # others stand in
        found = RowBatches(len(samples), columns, batches[0][1], rows=rows)
        _require_equal(found, batches)
    return found


def _base(dataset: Any) -> tuple[Any, list[int] | None]:
    """What torch's own Subsets are parts of, and which of its samples; None: all."""
    chosen: list[int] | None = None
    while type(dataset) is Subset:
        own = dataset.indices
        chosen = [int(own[i]) for i in (range(len(own)) if chosen is None else chosen)]
        dataset = dataset.dataset
    return dataset, chosen


def _held(base: Any) -> Iterator[tuple[str, Tensor]]:
    """Arrays with a row for each sample: attributes, and what tuples, lists and dicts hold."""
    n = len(base)
    for name, value in list(getattr(base, "__dict__", {}).items()):
        found = _column(value, n)
        if found is not None:
            yield name, found
            continue
        if isinstance(value, (tuple, list)):
            inner: Iterator[tuple[Any, Any]] = iter(list(enumerate(value[:64])))
        elif isinstance(value, dict):
            inner = iter(list(value.items())[:64])
        else:
            continue
        for key, one in inner:
            if (found := _column(one, n)) is not None:
                yield f"{name}[{key!r}]", found


def _column(value: Any, n: int) -> Tensor | None:
    """As a tensor, over the same memory where it is an array; None where it has no `n` rows."""
    if type(value) is Tensor:
        usable = value.is_cpu and value.layout is torch.strided and not value.requires_grad
        return value if usable and value.ndim and len(value) == n else None
    if isinstance(value, np.ndarray) and value.ndim and len(value) == n:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an array that can't be written: nobody does
            try:
                return torch.as_tensor(value)
            except (TypeError, ValueError):  # text, objects, a dtype or strides that torch lacks
                return None
    if isinstance(value, list) and len(value) == n and 0 < n <= MAX_LIST:
        kind = type(value[0])
        if kind in (int, float, bool) and all(type(x) is kind for x in value):
            try:
                return torch.tensor(value, dtype=torch.float64 if kind is float else None)
            except (OverflowError, RuntimeError):
                return None
    return None


def _reference(dataset: Any, collate: Collate, batch_size: int) -> list[tuple[list[int], Any]]:
    """Batches as the loader makes them, with their samples' numbers; the last is shorter."""
    n = len(dataset)
    if n == 0:
        raise TrialRefused("the dataset is empty")
    wanted = max(MIN_SAMPLES, N_COMPARED * batch_size)
    order = [0, n - 1, *random.Random(0).sample(range(n), min(n, wanted))]
    began, before = time.monotonic(), states()
    made: list[tuple[list[int], Any]] = []
    try:
        for at in range(0, len(order), batch_size):
            part = order[at : at + batch_size]
            made.append((part, _whole(dataset, collate, part)))
            passed, n_made = time.monotonic() - began, at + len(part)
            if n_made >= MIN_SAMPLES and passed > COMPARE_LIMIT_S:
                break
            if passed > GIVE_UP_S and n_made < len(order):
                raise TrialRefused(
                    f"making {n_made} samples took {passed:.0f} s: too few to compare, and too "
                    "slow to be rows that are looked up"
                )
        short = order[: max(1, batch_size // 2)]
        made.append((short, _whole(dataset, collate, short)))
        again = digest(_whole(dataset, collate, made[0][0]))
    except (KeyError, TypeError) as error:
        raise TrialRefused(f"samples are not numbered 0, 1, 2, …: {error!r}") from error
    if states() != before:
        raise TrialRefused("its samples are drawn at random: each is made anew, not looked up")
    if again != digest(made[0][1]):
        raise TrialRefused("a batch came out differently when it was made twice")
    return made


def _whole(dataset: Any, collate: Collate, indices: Sequence[int]) -> Any:
    return collate([dataset[i] for i in indices])


def _matched(
    base: Any, held: Mapping[str, Tensor], rows: Tensor | None, batches: list[tuple[list[int], Any]]
) -> dict[str, Tensor]:
    """For each tensor of a batch the array that its rows come from. Raises TrialRefused."""
    columns: dict[str, Tensor] = {}
    leaves = [(indices, dict(tensors(batch))) for indices, batch in batches]
    for path, first in leaves[0][1].items():
        alike = sorted(
            (t for t in held.values() if t.shape[1:] == first.shape[1:]),
            key=lambda t: t.dtype != first.dtype,
        )
        column = next((t for t in alike if _gives(t, rows, path, leaves)), None)
        if column is None:
            where = f"{path} of a batch" if path else "a batch"
            raise TrialRefused(
                f"{where} has no rows of an array that {type(base).__name__} holds: its samples "
                "are made, not looked up"
            )
        columns[path] = column
    if not columns:
        raise TrialRefused("its batches hold no tensor")
    return columns


def _gives(
    column: Tensor,
    rows: Tensor | None,
    path: str,
    leaves: list[tuple[list[int], dict[str, Tensor]]],
) -> bool:
    for indices, found in leaves:
        leaf = found.get(path)
        if leaf is None or not leaf.ndim or len(leaf) != len(indices):
            return False
        at: Any = indices if rows is None else rows[indices]
        if digest(column[at].to(leaf.dtype)) != digest(leaf):
            return False
    return True


def _require_equal(found: RowBatches, batches: list[tuple[list[int], Any]]) -> None:
    """Whole batches: structure, plain values, types, shapes, memory layout and bytes."""
    for indices, own in batches:
        ours = found.__getitems__(indices)
        same_layout = [t.stride() for _, t in tensors(ours)] == [
            t.stride() for _, t in tensors(own)
        ]
        if not same_layout or digest(ours) != digest(own):
            raise TrialRefused("batches made of whole rows differ from the loader's own")
