"""What is said of a dataset's transforms by their names holds of the transforms themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import v2

from loaderdoctor.advice.routes import routes
from loaderdoctor.instrument.wire.records import ScriptRecord
from tests.advice.test_from_array import LINE, of_colours, recorded

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
        return (transforms.functional.to_tensor(picture) - 0.5) / 0.5


def test_nothing_is_said_of_scaling_that_is_not_known() -> None:
    assert for_the_batch((RESIZE, v2.ToImage(), TO_FLOATS, NORMALIZE)) is None  # of no script
    assert for_the_batch((RESIZE, Normalize())) is None
    assert for_the_batch((RESIZE, TO_TENSOR, NORMALIZE)) is not None
