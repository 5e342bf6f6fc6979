"""The examples that run without an accelerator do what they promise."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets, transforms
from torchvision.transforms import v2

from loaderdoctor.advice import dataset_snippets, loop_snippets


def run(code: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch, "DataLoader": DataLoader, **names}
    exec(code, scope)  # ours, from the package
    return scope


def test_whole_batches_hold_every_row_once_and_as_the_loader_had_them() -> None:
    rows = TensorDataset(torch.arange(1000.0).view(1000, 1), torch.arange(1000))
    scope = run(dataset_snippets.WHOLE_BATCHES)
    whole = DataLoader(scope["WholeBatches"](rows), batch_size=256, collate_fn=scope["as_it_is"])
    for batch, expected in zip(whole, DataLoader(rows, batch_size=256), strict=True):
        torch.testing.assert_close(batch, expected)


def test_shared_buffers_yield_what_the_loader_did() -> None:
    dataset = TensorDataset(torch.rand(38, 3), torch.arange(38))
    plain = DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=2)
    reused = run(loop_snippets.SHARED_BUFFERS)["Reused"](plain)
    assert len(reused) == len(plain) == 10
    seen = [(x.clone(), y.clone()) for x, y in reused]
    assert [len(x) for x, _ in seen] == [4] * 9 + [2]
    for (x, y), (want_x, want_y) in zip(seen, plain, strict=True):
        assert torch.equal(x, want_x)
        assert torch.equal(y, want_y)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_kept_batches_come_in_another_order_and_each_once(n_workers: int) -> None:
    dataset = TensorDataset(torch.arange(64))
    loader = DataLoader(dataset, 4, num_workers=n_workers)
    kept = run(loop_snippets.KEPT, copy=copy)["Kept"](loader)
    assert kept.dataset is dataset and kept.sampler is loader.sampler
    assert not any(x.is_shared() for (x,) in kept)  # each would keep a file open
    orders = [[int(x[0]) for (x,) in kept] for _ in range(3)]
    assert len(kept) == 16 and len({tuple(x) for x in orders}) > 1
    assert all(sorted(x) == list(range(0, 64, 4)) for x in orders)


def test_one_iterator_goes_on_for_ever() -> None:
    batches = run(loop_snippets.FOREVER)["forever"]([1, 2])
    assert [next(batches) for _ in range(5)] == [1, 2, 1, 2, 1]


def test_the_vectorised_sampler_yields_a_permutation() -> None:
    sampler = run(dataset_snippets.SAMPLER)["Shuffled"](100)
    loader = DataLoader(TensorDataset(torch.arange(100)), batch_size=10, sampler=sampler)
    assert sorted(torch.cat([b[0] for b in loader]).tolist()) == list(range(100))


def test_batches_by_length_hold_every_sample_once_and_pad_little() -> None:
    lengths = [1 + (7 * i) % 50 for i in range(103)]
    sampler = run(dataset_snippets.BY_LENGTH.rpartition("lengths =")[0])["ByLength"](lengths, 4, 5)
    for _ in range(2):
        batches = list(sampler)
        assert len(batches) == len(sampler) == 26
        assert sorted(i for batch in batches for i in batch) == list(range(103))
    cells = sum(max(lengths[i] for i in batch) * len(batch) for batch in batches)
    plain = [list(range(i, min(i + 4, 103))) for i in range(0, 103, 4)]
    before = sum(max(lengths[i] for i in batch) * len(batch) for batch in plain)
    assert (cells - sum(lengths)) * 3 < before - sum(lengths)


def test_one_iterator_per_epoch_goes_through_all_batches_again_and_again() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=1)
    scope = run(loop_snippets.ITERATOR, loader=loader, n_epochs=1, n_steps=10)
    assert scope["batch"][0].tolist() == [1]  # the tenth of 0 1 2 3 0 1 2 3 0 1


def test_a_stream_split_by_worker_delivers_every_sample_once() -> None:
    scope = run(
        "class Stream(torch.utils.data.IterableDataset):\n" + _indented(dataset_snippets.SHARDS)
    )
    stream = scope["Stream"]()
    stream.shards, stream.read = [range(0, 5), range(5, 9), range(9, 12)], iter
    assert sorted(int(x) for x in DataLoader(stream, batch_size=None)) == list(range(12))


STEPS = (
    [transforms.Resize((16, 16)), transforms.ToTensor(), transforms.Normalize([0.5], [0.2])],
    [transforms.PILToTensor(), transforms.Resize(16), transforms.ConvertImageDtype(torch.float32)],
    [v2.ToImage(), v2.Resize((16, 16)), v2.ToDtype(torch.float32, scale=True)],
)


@pytest.mark.parametrize("steps", STEPS, ids=["first", "tensors first", "second set"])
def test_decoded_batches_are_the_loaders_within_a_few_levels(
    tmp_path: Path, steps: list[Any]
) -> None:
    (tmp_path / "a").mkdir()
    for i in range(3):
        noise = numpy.random.default_rng(i).integers(0, 256, (5, 5, 3), dtype="uint8")
        Image.fromarray(noise).resize((40, 30)).save(tmp_path / "a" / f"{i}.jpg")
    images = datasets.ImageFolder(str(tmp_path), transforms.Compose(steps), target_transform=str)
    made = run(f"import torchvision\n{dataset_snippets.DECODED}")
    inner = DataLoader(made["Encoded"](images), batch_size=2, collate_fn=made["joined"])
    ours = made["Decoded"](inner, images.transform, "cpu")
    assert len(ours) == 2 and ours.dataset.images is images
    for (x, y), (own, labels) in zip(ours, DataLoader(images, batch_size=2), strict=True):
        assert x.shape == own.shape and (x - own).abs().mean() < 0.1 and [*y] == [*labels]


def test_other_files_and_a_transform_that_is_no_compose_are_decoded_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i, kind in enumerate(("jpeg", "png", "jpeg", "png")):  # whatever their names say
        picture = Image.new("RGB", (20, 10), (200, 100, 50 * i))
        picture.save(tmp_path / "a" / f"{i}.jpg", format=kind)
    images = datasets.ImageFolder(str(tmp_path), transforms.ToTensor())
    made = run(f"import torchvision\n{dataset_snippets.DECODED}")
    inner = DataLoader(made["Encoded"](images), batch_size=4, collate_fn=made["joined"])
    ((x, _),) = made["Decoded"](inner, images.transform, "cpu")
    ((own, _),) = DataLoader(images, batch_size=4)
    assert x.dtype == own.dtype and x.shape == own.shape and (x - own).abs().max() < 0.02


def test_packed_tensors_come_apart_as_they_were() -> None:
    small = [torch.arange(6.0).view(2, 3), torch.tensor([7.0])]
    shapes, sizes = [t.shape for t in small], [t.numel() for t in small]
    scope = run(loop_snippets.PACKED, small=small, shapes=shapes, sizes=sizes, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(scope["small"], small, strict=True))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_resident_batches_are_the_loaders_and_draw_what_it_draws(
    drop_last: bool, own: bool
) -> None:
    dataset = TensorDataset(torch.arange(10.0), torch.arange(10))

    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5) if own else None
        return DataLoader(dataset, 4, shuffle=True, drop_last=drop_last, generator=generator)

    on_device = run(loop_snippets.ON_DEVICE)["OnDevice"]
    torch.manual_seed(1)
    expected = [batch for one in [loader()] for _ in range(3) for batch in one]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    ours = [batch for one in [on_device(loader(), "cpu")] for _ in range(3) for batch in one]
    assert torch.equal(torch.get_rng_state(), after)
    assert len(ours) == len(expected) == 3 * len(on_device(loader(), "cpu"))
    for batch, plain in zip(ours, expected, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(batch, plain, strict=True))


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


def test_entries_in_one_array_read_as_they_were() -> None:
    entries: list[Any] = [("a.jpg", 1), {"box": [2.5]}, "words", None]
    dataset = SimpleNamespace(samples=list(entries))
    run(dataset_snippets.SHARED_ENTRIES, dataset=dataset, pickle=pickle, numpy=numpy)
    assert len(dataset.samples) == 4
    assert [dataset.samples[i] for i in range(4)] == entries
    assert list(dataset.samples) == entries  # it ends where the list did
    assert [dataset.samples[-i] for i in range(1, 5)] == entries[::-1]
