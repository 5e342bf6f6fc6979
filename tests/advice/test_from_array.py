"""Batches straight from a dataset's array are its own, or no such code is written."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from msgspec import structs
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.transforms import v2

from loaderdoctor.advice import worked
from loaderdoctor.advice.fit_code import fitted
from loaderdoctor.advice.routes import routes
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.instrument.dataset.dataset_code import (
    normalisation,
    randomness_of_dataset,
    stores,
)
from loaderdoctor.instrument.dataset.transforms import augmentations, transform_name
from loaderdoctor.instrument.wire.records import ScriptRecord
from tests.findings.format_cases import OfColours, OfImages
from tests.findings.routes_facts import THROUGH_PIL, starved
from tests.findings.test_line_names_formats import in_batch

LINE = "loader = DataLoader(train_set, batch_size=64, shuffle=True)"
PIL = Finding(
    kind=Kind.DATASET_FORMAT_BOUND,
    severity=Severity.HIGH,
    share=0.5,
    summary="",
    evidence={"format": "pil-round-trip"},
)


def recorded(dataset: Any, code: str = LINE, **script: Any) -> Facts:
    """A loop that waits for this dataset, as it is recorded."""
    steps = getattr(getattr(dataset, "transform", None), "transforms", ())
    names = [transform_name(step) for step in steps]
    return starved(
        loader_={
            "batch": in_batch(dataset),
            "n_samples": len(dataset),
            "dataset": type(dataset).__name__,
            "code": code,
            "normalisation": normalisation(dataset),
            "stores": stores(dataset),
            "augmentations": augmentations(dataset),
            "randomness": randomness_of_dataset(dataset),
        },
        workers_={
            "transforms": tuple((name, 0.07 / len(names)) for name in names),
            "lines": (THROUGH_PIL,),
        },
        **script,
    )


def sliced(facts: Facts) -> bool:
    """Whether the finding's code, or a route, takes batches from the array."""
    titles = [way.title for way in routes(facts)]
    told = any("Slice whole batches out of" in title for title in titles)
    code = fitted(facts, PIL)
    assert (code is not None) == told
    assert (code is None) == (worked.from_array(facts) is None)
    return told


def same(code: str | None, dataset: Any) -> None:
    """The code, run, makes the batches that the dataset's loader makes, in the same order."""
    assert code is not None
    text = "\n".join(x.removeprefix("+ ") for x in code.splitlines() if not x.startswith("- "))
    scope = {"torch": torch, "DataLoader": DataLoader, "train_set": dataset}
    exec(text, scope)  # ours, from the package
    made: Any = scope["loader"]
    new = DataLoader(made.dataset, batch_size=16, collate_fn=made.collate_fn)
    for batch, own in zip(new, DataLoader(dataset, batch_size=16), strict=True):
        assert type(batch) is type(own)
        torch.testing.assert_close(batch, own)


def of_colours(*steps: Any) -> Any:
    dataset = OfColours()
    dataset.transform = transforms.Compose(list(steps))
    return dataset


TO_TENSOR, NORMALIZE = transforms.ToTensor(), transforms.Normalize((0.5,), (0.25,))


@pytest.mark.parametrize(
    ("steps", "whole"),
    [
        ((TO_TENSOR,), True),
        ((v2.PILToTensor(),), True),
        ((v2.PILToTensor(), v2.ConvertImageDtype(torch.float32), v2.Normalize([0.5], [0.2])), True),
        ((transforms.RandomHorizontalFlip(), TO_TENSOR, NORMALIZE), False),
        ((v2.GaussianBlur(3), TO_TENSOR, NORMALIZE), False),
        ((transforms.Lambda(lambda image: image.rotate(90)), TO_TENSOR), False),
        ((transforms.Resize(8), TO_TENSOR), False),  # of their own size: nothing to see in a batch
        ((TO_TENSOR, torch.nn.Dropout()), False),
        ((v2.ToImage(), v2.ToDtype(torch.float32), NORMALIZE), False),  # 0 … 255, for all we know
    ],
)
def test_batches_come_from_the_array_only_where_it_is_converted_and_no_more(
    steps: tuple[Any, ...], whole: bool
) -> None:
    dataset = of_colours(*steps)
    facts = recorded(dataset)
    assert sliced(facts) == whole
    if whole:
        same(fitted(facts, PIL), dataset)


@pytest.mark.parametrize("arguments", ["torch.float32, scale=True", "torch.float32, True"])
def test_a_conversion_that_the_script_tells_to_scale_is_written(arguments: str) -> None:
    dataset = of_colours(v2.ToImage(), v2.ToDtype(torch.float32, scale=True), NORMALIZE)
    text = f"steps = [v2.ToImage(), v2.ToDtype({arguments})]\n{LINE}\n"
    script = ScriptRecord(given="train.py", sources={"/train.py": text})
    assert worked.from_array(recorded(dataset, script=script)) is not None
    other = f"{text}others = v2.ToDtype(torch.float32)\n"
    script = ScriptRecord(given="train.py", sources={"/train.py": other})
    assert worked.from_array(recorded(dataset, script=script)) is None


class Numbered(OfImages):
    """With another number for each sample, in front of its class."""

    def __init__(self) -> None:
        super().__init__()
        data, targets = self.data, self.targets
        self.__dict__ = {"ids": numpy.arange(64), "transform": self.transform}
        self.data, self.targets = data, targets.flip(0)


def test_which_numbers_are_its_labels_is_not_guessed() -> None:
    assert not sliced(recorded(Numbered()))
    dataset = Numbered()
    dataset.ids = dataset.ids.astype("float32")  # type: ignore[attr-defined]  # set above
    same(fitted(recorded(dataset), PIL), dataset)


def test_labels_are_of_the_type_that_samples_have() -> None:
    dataset: Any = OfImages()
    dataset.targets = dataset.targets.to(torch.uint8)
    same(fitted(recorded(dataset), PIL), dataset)


def test_the_array_below_a_part_of_its_samples_is_not_taken_whole() -> None:
    facts = recorded(OfImages())
    part = recorded(Subset(OfImages(), range(0, 64, 2)))
    (loader,) = facts.loaders
    below = tuple(structs.replace(x, path=f"dataset.{x.path}") for x in loader.stores)
    assert [x.path for x in part.loaders[0].stores if x.kind == "tensor"] == [x.path for x in below]
    assert not sliced(part)


def test_the_array_of_a_dataset_that_the_line_makes_is_taken_where_it_stands() -> None:
    facts = recorded(OfImages(), "loader = DataLoader(OfImages(), batch_size=64)")
    code = fitted(facts, PIL)
    assert code is not None and "DataLoader(Batches(OfImages()), batch_size=64" in code


def test_what_no_record_tells_of_ends_the_script_at_once() -> None:
    """Labels or images that are changed in __getitem__ itself: better no training than another."""
    dataset: Any = OfImages()
    code = fitted(recorded(dataset), PIL)
    dataset.targets = dataset.targets.flip(0)
    same(code, dataset)  # looked up as they are
    whole = type(dataset).__getitem__

    class Shifted(OfImages):
        def __getitem__(self, index: int) -> Any:
            image, label = whole(self, index)
            return image, label + 1

    with pytest.raises(AssertionError, match="Tensor-likes are not equal"):
        same(code, Shifted())
