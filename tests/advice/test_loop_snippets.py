"""Classes that are printed for a loop give the loader's own batches, in its order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert

from loaderdoctor.advice import loop_snippets
from loaderdoctor.instrument.batches import digest


class Records(Dataset[Any]):
    def __init__(self, *, as_dict: bool) -> None:
        self.as_dict = as_dict

    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> Any:
        made = {"x": torch.full((3,), float(i)), "y": i, "ok": i % 2 == 0, "name": str(i)}
        return made if self.as_dict else tuple(made.values())


def classes(code: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch}
    exec(f"import concurrent.futures\n{code}", scope)  # ours, from the package
    return scope


@pytest.mark.parametrize("as_dict", [True, False])
def test_packed_batches_are_the_batches(as_dict: bool) -> None:
    made, dataset = classes(loop_snippets.packed(as_dict=as_dict)), Records(as_dict=as_dict)
    packing = made["Packing"](default_collate)
    loader = made["OneCopy"](DataLoader(dataset, batch_size=8, collate_fn=packing), "cpu")
    own = DataLoader(dataset, batch_size=8)
    assert len(loader) == len(own) and loader.dataset is dataset
    for a, b in zip(loader, own, strict=True):
        assert digest(a) == digest(b)


class Slices(Dataset[Any]):
    """Whole batches, whose tensors are slices of larger ones."""

    def __init__(self) -> None:
        self.values = torch.randn(5, 8, 3, 4)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> Any:
        return {f"x{k}": self.values[i][:, k] for k in range(3)}


def test_batches_that_the_dataset_makes_are_packed_as_well() -> None:
    made, dataset = classes(loop_snippets.packed(as_dict=True)), Slices()
    packing = made["Packing"](default_convert)
    loader = made["OneCopy"](DataLoader(dataset, batch_size=None, collate_fn=packing), "cpu")
    for a, b in zip(loader, DataLoader(dataset, batch_size=None), strict=True):
        assert digest(a) == digest(b) and all(t.is_contiguous() for t in a.values())


def test_threads_give_the_loaders_batches_and_draw_what_it_draws() -> None:
    threads, dataset = classes(loop_snippets.THREADS)["Threads"], Records(as_dict=True)

    def loader() -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=8, shuffle=True)

    torch.manual_seed(1)
    own = [digest(batch) for one in [loader()] for _ in range(2) for batch in one]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    ours = [digest(batch) for one in [threads(loader(), 3)] for _ in range(2) for batch in one]
    assert ours == own and torch.equal(torch.get_rng_state(), after)
    batches = iter(threads(loader(), 2))
    next(batches)
    batches.close()  # a loop that breaks off


def test_threads_pin_only_where_there_is_an_accelerator() -> None:
    loader = DataLoader(Records(as_dict=True), batch_size=8, pin_memory=True)
    found = list(classes(loop_snippets.THREADS)["Threads"](loader, 2))
    assert len(found) == 7
    assert found[0]["x"].is_pinned() is torch.cuda.is_available()
