"""Examples in the user's own names make the batches that the user's dataset makes."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from msgspec import structs
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from loaderdoctor.advice import dataset_snippets, worked
from loaderdoctor.advice.worked import dataset_name, dataset_source, with_dataset
from loaderdoctor.instrument.dataset.dataset_code import normalisation, stores
from loaderdoctor.instrument.wire.records import LoaderRecord, TensorRecord
from loaderdoctor.settings import Settings
from tests.findings import format_cases as cases

LINE = "loader = DataLoader(train_set, batch_size=16, shuffle=True)"


def record(dataset: object = None, code: str | None = LINE, **more: Any) -> LoaderRecord:
    return LoaderRecord(
        id="train.py:41",
        role="train",
        code=code,
        stores=stores(dataset),
        normalisation=normalisation(dataset),
        **more,
    )


def sliced(loader: LoaderRecord) -> str | None:
    wrapping = worked.sliced(loader)
    assert wrapping is not None
    return worked.over_own_line(loader, wrapping)


def cached(loader: LoaderRecord) -> str | None:
    return worked.over_own_line(loader, worked.CACHED)


def written(example: str | None, **names: Any) -> dict[str, Any]:
    """What the example makes, its diff applied."""
    assert example is not None
    lines = [x for x in example.splitlines() if not x.startswith("- ")]
    code = "\n".join(x.removeprefix("+ ") for x in lines)
    scope: dict[str, Any] = {
        "torch": torch, "numpy": numpy, "Image": Image, "transforms": transforms,
        "DataLoader": DataLoader, "device": "cpu", **names,
    }  # fmt: skip
    exec(code, scope)  # ours, from the package
    return scope


def same_batches(new: DataLoader[Any], old: Any) -> None:
    """The same batches, in order; the new loader's own sampler shuffles."""
    assert type(new.sampler).__name__ == "RandomSampler"
    in_order = DataLoader(new.dataset, batch_size=16, collate_fn=new.collate_fn)
    n = 0
    for a, b in zip(in_order, DataLoader(old, batch_size=16), strict=True):
        torch.testing.assert_close(a, b)
        n += 1
    assert n == 4


class Named(Dataset[dict[str, Any]]):
    """Samples that are dicts."""

    def __len__(self) -> int:
        return cases.N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "y": index}


@pytest.mark.parametrize("make", [sliced, cached])
def test_samples_kept_in_memory_are_those_of_the_dataset(make: Any) -> None:
    for old, path in ((cases.OfImages(), "[0]"), (Named(), "['x']")):
        batch = (TensorRecord(path=path, shape=(16, 3), dtype="float32", n_bytes=192),)
        example = make(record(old, batch=batch))
        assert f"- {LINE}" in (example or "")
        same_batches(written(example, train_set=old)["loader"], old)


def test_batches_that_are_slices_need_no_workers() -> None:
    old = cases.OfImages()
    line = (
        "loader = DataLoader(train_set, batch_size=16, shuffle=True, num_workers=n,\n"
        "    prefetch_factor=4, persistent_workers=True)"
    )
    example = sliced(record(old, line, settings=Settings(num_workers=4)))
    assert example is not None and "num_workers=0" in example
    same_batches(written(example, train_set=old)["loader"], old)
    kept = cached(record(old, line, settings=Settings(num_workers=4)))
    assert kept is not None and "num_workers=n" in kept


@pytest.mark.parametrize("make", [cases.OfImages, cases.OfColours])
def test_scaling_whole_batches_gives_the_same_floats(make: Any) -> None:
    old, new = make(), make()
    idea = worked.batchwise(record(new), ("ToTensor", "Normalize"), scaled=True)
    assert "ToTensor() and Normalize() out of train_set's transform (PILToTensor()" in idea
    expression = idea.partition("`")[2].partition("`")[0]
    steps = new.transform.transforms[:-2]
    new.transform = transforms.Compose([*steps, transforms.PILToTensor()])
    for (images, _), (expected, _) in zip(
        DataLoader(new, batch_size=16), DataLoader(old, batch_size=16), strict=True
    ):
        assert images.dtype == torch.uint8
        scaled = eval(expression, {"torch": torch, "images": images, "device": "cpu"})
        torch.testing.assert_close(scaled, expected)


def test_scaling_alone_is_taken_out_where_samples_are_tensors_already() -> None:
    idea = worked.batchwise(record(), ("Normalize",), scaled=False)
    assert idea.startswith("Leave Normalize() out of train_set's transform, and")
    assert ".sub_(" not in idea  # none was recorded: nothing is made up
    assert "`images.to(device).float()`, and give that to Normalize()." in idea


def test_random_transforms_stay_behind_the_cache_and_are_drawn_again() -> None:
    class Counting(cases.OfImages):
        n_made = 0

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            type(self).n_made += 1
            return super().__getitem__(index)

    steps = [transforms.Resize(20), transforms.RandomCrop(12), transforms.ToTensor()]
    dataset: Any = Counting(transforms.Compose(steps))
    scope = written(dataset_snippets.CACHED_BEFORE)
    dataset.transform, drawn = scope["split_at"](dataset.transform, "RandomCrop")
    cached = scope["CachedBefore"](dataset, drawn)
    crops = {tuple(cached[3][0].flatten().tolist()) for _ in range(20)}
    assert len(crops) > 1
    assert Counting.n_made == cases.N == len(cached)
    assert cached[3][0].shape == (1, 12, 12) and cached[3][1] == 3


CALLS = [
    ("loader = DataLoader(ds, batch_size=4)", "ds"),
    ("loader = DataLoader(self.train_set, 4)", "self.train_set"),
    ("loader = DataLoader(batch_size=4, dataset=ds)", "ds"),
    ("loader = torch.utils.data.DataLoader(\n    ds,\n    batch_size=4,  # small\n)", "ds"),
    ("loader = DataLoader(\n    ds, batch_size=4\n)", "ds"),
    ("loader = torch.utils.data.DataLoader(ds, **options)", "ds"),
]


@pytest.mark.parametrize(("code", "name"), CALLS)
def test_the_users_line_gets_the_new_dataset_and_keeps_the_rest(code: str, name: str) -> None:
    loader = record(code=code, collate="default_collate")
    assert dataset_name(loader) == name
    edit = with_dataset(loader, f"Sliced({name})", collate="as_it_is")
    assert edit is not None
    compile(edit.after, "edited", "exec")
    # What is unpacked may hold one: None.
    after = edit.after.replace(
        '{**options, "collate_fn": as_it_is}', "options, collate_fn=as_it_is"
    )
    assert f"Sliced({name})" in after and "collate_fn=as_it_is" in after
    assert edit.before == code
    kept = after.replace(f"Sliced({name})", name).replace("collate_fn=as_it_is", "")
    assert sorted(filter(str.isalnum, kept)) == sorted(filter(str.isalnum, code))


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("loader = DataLoader(Photos(root), 4, collate_fn=mine)", "Photos(root)"),
        ("x = DataLoader(\n    Photos(\n        root,\n    ),\n    num_workers=2,\n)", "Photos("),
        ("a, b = DataLoader(parts[0], 4), DataLoader(parts[1])", "parts[0]"),
    ],
)
def test_a_dataset_that_the_line_makes_is_wrapped_where_it_stands(code: str, made: str) -> None:
    """The general example has another batch size, and none of the loader's other arguments."""
    loader = record(code=code)
    assert dataset_name(loader) == "dataset"
    assert f"Cached({made}" in (cached(loader) or "")
    edit = with_dataset(loader, f"Cached({dataset_source(loader)})")
    assert edit is not None
    compile(edit.after, "edited", "exec")
    kept = edit.after.replace("Cached(", "", 1)
    assert sorted(filter(str.isalnum, kept)) == sorted(filter(str.isalnum, code))


@pytest.mark.parametrize(
    "code",
    [
        None,
        "loader = make(root)",
        "loader = DataLoader(*args)",
        "loader = DataLoader(ds, collate_fn=mine)",
        "loader = DataLoader(ds, **options)",
        "for x in DataLoader(ds",
    ],
)
def test_a_line_that_cannot_be_changed_safely_gives_no_example(code: str | None) -> None:
    loader = record(code=code)
    assert with_dataset(loader, "Sliced(ds)", collate="as_it_is") is None
    assert sliced(loader) is None


def test_a_framework_s_own_loader_has_no_line_to_change() -> None:
    assert with_dataset(record(library="lightning"), "Sliced(x)") is None


def test_whatever_the_samples_two_runs_of_an_example_agree() -> None:
    chance = random.Random(1)
    old: Any = [(torch.full((2,), chance.random()), k) for k in range(cases.N)]
    same_batches(written(sliced(record()), train_set=old)["loader"], old)


@pytest.mark.parametrize("form", ["list", "dict", "Tensor"])
def test_samples_of_any_form_are_sliced_as_they_are_collated(form: str) -> None:
    """Of samples that are one tensor the loader had no length, and gave no batch for ever."""
    x = [torch.full((2, 3), float(i)) for i in range(cases.N)]
    forms = {"dict": [{"x": x[i], "y": i} for i in range(cases.N)], "Tensor": x}
    old: Any = forms.get(form, list(zip(x, range(cases.N), strict=True)))
    paths = {"dict": ("['x']", "['y']"), "Tensor": ("",)}.get(form, ("[0]", "[1]"))
    batch = tuple(TensorRecord(path=p, shape=(16,), dtype="float32", n_bytes=4) for p in paths)
    loader = structs.replace(record(), batch=batch, batch_type=form)
    made = written(sliced(loader), train_set=old)["loader"]
    assert len(made.dataset) == cases.N
    same_batches(made, old)
    one, same = made.dataset[5], old[5]
    torch.testing.assert_close(one, same if form == "Tensor" else type(same)(one_of(same)))


def one_of(sample: Any) -> Any:
    """A sample with its number as a tensor, as slices have it."""
    if isinstance(sample, dict):
        return {**sample, "y": torch.tensor(sample["y"])}
    return (sample[0], torch.tensor(sample[1]))


@pytest.mark.parametrize("paths", [("[0][0]", "[0][1]", "[1]"), ("['x']['ids']",), ("[1]",)])
def test_batches_of_another_form_are_not_sliced(paths: tuple[str, ...]) -> None:
    batch = tuple(TensorRecord(path=p, shape=(16,), dtype="float32", n_bytes=4) for p in paths)
    assert worked.sliced(structs.replace(record(), batch=batch)) is None


class WithNames(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = torch.arange(64.0).view(16, 4), torch.arange(16)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i], f"sample {i}"


def test_samples_with_names_are_no_rows_and_no_slices() -> None:
    paths = (("[0]", (16, 4), "float32"), ("[1]", (16,), "int64"))
    batch = tuple(TensorRecord(path=p, shape=s, dtype=d, n_bytes=4) for p, s, d in paths)
    unseen = structs.replace(
        record(WithNames()), dataset="WithNames", collate="default_collate", batch=batch,
        batch_type="list",
    )  # fmt: skip
    wrapping = worked.rows(unseen)
    assert wrapping is not None and worked.sliced(unseen) is not None
    with pytest.raises(ValueError, match="zip"):  # not in the loop, where no name comes
        written(worked.over_own_line(unseen, wrapping), train_set=WithNames())
    known = structs.replace(unseen, holds_others=True)
    assert worked.rows(known) is None and worked.sliced(known) is None


@pytest.mark.parametrize("form", ["list", "dict", "Tensor"])
def test_rows_of_the_datasets_own_arrays_make_its_batches(form: str) -> None:
    class Held(Dataset[Any]):
        def __init__(self) -> None:
            self.images = numpy.random.default_rng(0).normal(size=(64, 3, 4))
            self.labels = [i * 7 % 10 for i in range(64)]

        def __len__(self) -> int:
            return 64

        def __getitem__(self, i: int) -> Any:
            x = torch.from_numpy(self.images[i]).float()
            made = {"dict": {"x": x, "y": self.labels[i]}, "Tensor": x}
            return made.get(form, (x, self.labels[i]))

    paths = {"dict": ("['x']", "['y']"), "Tensor": ("",)}.get(form, ("[0]", "[1]"))
    kinds = (((16, 3, 4), "float32"), ((16,), "int64"))
    batch = tuple(
        TensorRecord(path=path, shape=shape, dtype=dtype, n_bytes=4)
        for path, (shape, dtype) in zip(paths, kinds, strict=False)
    )
    held = Held()
    known = structs.replace(
        record(held), dataset="Held", collate="default_collate", batch=batch, batch_type=form
    )
    wrapping = worked.rows(known)
    assert wrapping is not None
    scope = written(worked.over_own_line(known, wrapping), train_set=held)
    same_batches(scope["loader"], held)
    held.images[7] += 1  # they are looked up as they are
    same_batches(scope["loader"], held)


def test_rows_are_not_guessed() -> None:
    x = TensorRecord(path="[0]", shape=(16, 4), dtype="float32", n_bytes=256)

    class Two(Dataset[Any]):
        def __init__(self) -> None:
            self.a, self.b = torch.zeros(9, 4), torch.ones(9, 4)

        def __len__(self) -> int:
            return 9

    two = structs.replace(
        record(Two()), dataset="Two", collate="default_collate", batch=(x,), batch_type="list"
    )
    assert worked.rows(two) is None  # either may be meant
    one = structs.replace(two, stores=two.stores[:1])
    assert worked.rows(one) is not None
    assert worked.rows(structs.replace(one, batch_type="Named")) is None
    assert worked.rows(structs.replace(one, collate="pad")) is None
