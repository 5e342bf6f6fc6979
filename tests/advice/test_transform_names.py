"""What is said of a dataset's transforms by their names holds of the transforms themselves."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import v2

from loaderdoctor.advice import dataset_snippets
from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.advice.routes import routes
from loaderdoctor.advice.transform_names import random_transforms
from loaderdoctor.findings.rules import find
from loaderdoctor.instrument.dataset.transforms import transform_name
from loaderdoctor.instrument.wire.records import ScriptRecord
from tests.advice.test_from_array import LINE, of_colours, recorded
from tests.findings.format_cases import OfColours

TO_TENSOR, RESIZE = transforms.ToTensor(), v2.Resize(6, antialias=True)
NORMALIZE = transforms.Normalize((0.49, 0.48, 0.44), (0.2, 0.3, 0.4))
TO_FLOATS = v2.ToDtype(torch.float32, scale=True)
SCALING = ScriptRecord(
    given="train.py", sources={"/train.py": f"x = v2.ToDtype(torch.float32, scale=True)\n{LINE}\n"}
)


def for_the_batch(steps: tuple[Any, ...], script: ScriptRecord | None = None) -> str | None:
    """What is advised to be done for the whole batch."""
    ways = routes(recorded(of_colours(*steps), script=script))
    return next((way.idea for way in ways if "for the whole batch" in way.title), None)


@pytest.mark.parametrize(
    ("steps", "n_last"),
    [
        ((RESIZE, TO_TENSOR, NORMALIZE), 2),
        ((TO_TENSOR, RESIZE, NORMALIZE), 1),  # floats already: 255 times too small
        ((TO_TENSOR, RESIZE, v2.ConvertImageDtype(torch.float32), NORMALIZE), 2),
        ((v2.PILToTensor(), RESIZE, v2.ConvertImageDtype(torch.float32), NORMALIZE), 2),
        ((v2.PILToTensor(), RESIZE, v2.ConvertImageDtype(torch.float32)), 1),
        ((v2.ToImage(), RESIZE, TO_FLOATS, NORMALIZE), 2),
        ((RESIZE, v2.ToImage(), TO_FLOATS, NORMALIZE), 3),
    ],
)
def test_what_is_done_for_the_batch_makes_what_the_last_transforms_made(
    steps: tuple[Any, ...], n_last: int
) -> None:
    idea = for_the_batch(steps, SCALING)
    assert idea is not None
    instead = (v2.PILToTensor(),) if "PILToTensor() in their place" in idea else ()
    old, new = of_colours(*steps), of_colours(*steps[:-n_last], *instead)
    expression = idea.partition("`")[2].partition("`")[0]
    for (images, _), (expected, _) in zip(
        DataLoader(new, batch_size=16), DataLoader(old, batch_size=16), strict=True
    ):
        scaled = eval(expression, {"torch": torch, "images": images, "device": "cpu"})
        torch.testing.assert_close(scaled, expected)


class Normalize(torch.nn.Module):
    """Of another library: pictures in, and it scales them itself."""

    mean = std = (0.5,)

    def forward(self, picture: Any) -> torch.Tensor:
        scaled: torch.Tensor = transforms.functional.to_tensor(picture)
        return (scaled - 0.5) / 0.5


def test_nothing_is_said_of_scaling_that_is_not_known() -> None:
    assert for_the_batch((RESIZE, v2.ToImage(), TO_FLOATS, NORMALIZE)) is None  # of no script
    assert for_the_batch((RESIZE, Normalize())) is None
    assert for_the_batch((RESIZE, TO_TENSOR, NORMALIZE)) is not None


class Blotted:
    """The user's own, which draws: no word of its name says so."""

    def __call__(self, picture: Any) -> Any:
        return picture.rotate(random.random() * 90)


def speckled(picture: Any) -> Any:
    """A function that draws."""
    return picture.rotate(random.random() * 90)


def kept_before(dataset: Any) -> str | None:
    """The transform before which samples are to be kept."""
    ways = routes(recorded(dataset))
    kept = [x.title for x in ways if x.title.startswith("Keep what comes before")]
    return kept[0].split()[4] if kept else None


FLIP = transforms.RandomHorizontalFlip()


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ((RESIZE, FLIP, TO_TENSOR), "RandomHorizontalFlip"),
        ((RESIZE, v2.RandomHorizontalFlip(), TO_TENSOR), "RandomHorizontalFlip"),
        ((v2.RandAugment(), FLIP, TO_TENSOR), "RandAugment"),
        ((transforms.RandAugment(), FLIP, TO_TENSOR), "RandAugment"),
        ((RESIZE, v2.GaussianBlur(3), FLIP, TO_TENSOR), "GaussianBlur"),
        ((RESIZE, Blotted(), FLIP, TO_TENSOR), "Blotted"),
        ((RESIZE, speckled, FLIP, TO_TENSOR), "speckled"),
        ((RESIZE, partial(speckled), FLIP, TO_TENSOR), "speckled"),
        ((RESIZE, transforms.Lambda(lambda x: x), FLIP, TO_TENSOR), "Lambda"),  # for all we know
        ((RESIZE, TO_TENSOR, v2.RandomErasing()), "RandomErasing"),
    ],
)
def test_samples_are_kept_as_they_are_before_the_first_that_may_draw(
    steps: tuple[Any, ...], first: str
) -> None:
    dataset = of_colours(*steps)
    assert kept_before(dataset) == first
    scope: dict[str, Any] = {"torch": torch}
    exec(dataset_snippets.CACHED_BEFORE, scope)  # ours, from the package
    before, drawn = scope["split_at"](dataset.transform, first)
    at = next(i for i, step in enumerate(steps) if transform_name(step) == first)
    same = [*before.transforms[-at:], *drawn.transforms] if at else drawn.transforms
    assert list(same) == list(steps)


@pytest.mark.parametrize(
    "step", [Blotted(), v2.GaussianBlur(3), v2.RandAugment(), v2.ColorJitter(1)]
)
def test_what_draws_is_drawn_again_whatever_its_name(step: Any) -> None:
    facts = recorded(of_colours(step, TO_TENSOR))
    assert random_transforms(facts) == (type(step).__name__,)
    result = prescribe(facts, find(facts))
    assert not any(c.settings.cache for c in result.candidates)
    reasons = {x.setting: x.reason for x in result.not_advised}
    assert "must be drawn again in each epoch" in reasons["cache"]


def test_samples_that_are_drawn_before_their_transforms_are_not_kept() -> None:
    class Drawn(OfColours):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(random.randrange(len(self)))

    dataset = Drawn()
    dataset.transform = transforms.Compose([RESIZE, FLIP, TO_TENSOR])
    assert kept_before(dataset) is None
