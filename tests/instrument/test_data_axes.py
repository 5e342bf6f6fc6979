"""The data axes with real workers: the batches they must not change are the same bytes."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torchvision import transforms

from loaderdoctor.instrument import cached, disk_copies, page_cache
from loaderdoctor.instrument.augment import augmentations
from loaderdoctor.instrument.data_axes import release
from loaderdoctor.instrument.trials import Withheld, measure_boundary
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.axis_cases import (
    MEAN,
    SAME_DATA,
    SAME_LOADING,
    STD,
    InFolder,
    Listed,
    Pictures,
    Two,
    digests,
    opened,
    taken,
)
from tests.instrument.trial_cases import Squares

WORKERS = [Settings(), Settings(num_workers=2), Settings(num_workers=2, background="host")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = cases.children()
    yield
    gc.collect()
    assert cases.children() <= before
    assert cases.background_threads() == []


def reason(loader: DataLoader[Any], settings: Settings) -> str:
    with pytest.raises(Withheld) as withheld:
        opened(loader, settings)
    return withheld.value.reason


def plainly(loader: DataLoader[Any], n: int) -> list[str]:
    return digests(batch for batch, _ in zip(loader, range(n), strict=False))


# ------------------------------------------------------------------ content and order


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
@pytest.mark.parametrize("axis", SAME_DATA, ids=Settings.label)
def test_every_batch_is_the_plain_loaders_byte_for_byte_and_in_its_order(
    axis: Settings, workers: Settings, tmp_path: Path
) -> None:
    loader = DataLoader(Listed(tmp_path), batch_size=3)
    expected = plainly(loader, 6)
    assert digests(taken(loader, axis.over(workers), 12)) == expected * 2
    release(loader)


@pytest.mark.parametrize(
    "axis",
    [
        # New interpreters import torch again, and their order is in test_trials.py already.
        pytest.param(one, marks=pytest.mark.slow if one.start_method else ())
        for one in SAME_LOADING
    ],
    ids=lambda one: one.label(),
)
def test_how_batches_are_loaded_changes_no_byte_and_no_order(
    axis: Settings, tmp_path: Path
) -> None:
    def loader() -> DataLoader[Any]:
        mixed = RandomSampler(range(16), generator=torch.Generator().manual_seed(5))
        return DataLoader(Listed(tmp_path), batch_size=3, sampler=mixed)

    once = loader()
    expected = [digest for _ in range(2) for digest in plainly(once, 6)]
    assert len(set(expected)) == 12  # the second epoch is in another order
    assert digests(taken(loader(), axis, 12)) == expected


def test_a_shuffled_order_stays_the_samplers(tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        shuffle = RandomSampler(range(16), generator=torch.Generator().manual_seed(3))
        return DataLoader(Listed(tmp_path), batch_size=4, sampler=shuffle)

    expected = plainly(loader(), 4)
    for axis in (Settings(cache=True), Settings(storage="tmpfs"), Settings(storage="cold")):
        once = loader()
        assert digests(taken(once, axis, 4)) == expected
        release(once)


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
def test_the_first_part_of_the_dataset_is_an_epoch(workers: Settings) -> None:
    loader = DataLoader(Squares(32), batch_size=4)
    batches = taken(loader, Settings(portion=0.4).over(workers), 8)
    ids = [batch[1].tolist() for batch in batches]
    assert [i for batch in ids for i in batch] == [*range(13), *range(13)]


def test_shuffling_and_samplers_of_ones_own_stay_within_the_first_part() -> None:
    class Backwards(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(31, -1, -1))

        def __len__(self) -> int:
            return 32

    batches = taken(
        DataLoader(Squares(32), batch_size=4, sampler=Backwards()), Settings(portion=0.25), 2
    )
    assert [i for batch in batches for i in batch[1].tolist()] == [7, 6, 5, 4, 3, 2, 1, 0]
    batches = taken(DataLoader(Squares(32), batch_size=4, shuffle=True), Settings(portion=0.25), 2)
    assert sorted(i for batch in batches for i in batch[1].tolist()) == list(range(8))


def test_another_batch_size_gives_the_same_samples_in_other_batches() -> None:
    loader = DataLoader(Squares(32), batch_size=4)
    batches = taken(loader, Settings(batch_size=16, num_workers=2), 2)
    assert [len(batch[1]) for batch in batches] == [16, 16]
    assert [i for batch in batches for i in batch[1].tolist()] == list(range(32))


def test_what_has_no_first_part_or_batch_size_is_withheld() -> None:
    iterable = DataLoader(cases.Unsharded(), batch_size=2)
    assert "iterable" in reason(iterable, Settings(portion=0.5))
    assert "iterable" in reason(iterable, Settings(cache=True))
    own = DataLoader(Squares(), batch_sampler=[[0, 1], [2, 3]])
    assert "batch_sampler" in reason(own, Settings(portion=0.5))
    assert "by the script" in reason(own, Settings(batch_size=8))


# ------------------------------------------------------------------ cached samples


def test_cached_samples_are_made_once_and_shared_by_forked_workers() -> None:
    dataset = Pictures(16)
    loader = DataLoader(dataset, batch_size=4)
    batches = taken(loader, Settings(cache=True), 12)
    assert dataset.counted == 16
    assert digests(batches[:4]) == digests(batches[4:8]) == digests(batches[8:])
    dataset.counted = 0
    taken(loader, Settings(cache=True, num_workers=2), 8)
    assert dataset.counted == 16


def test_only_the_part_in_use_is_cached() -> None:
    dataset = Pictures(32)
    taken(DataLoader(dataset, batch_size=4), Settings(cache=True, portion=0.25), 4)
    assert dataset.counted == 8


def test_a_cache_that_does_not_fit_or_takes_too_long_is_withheld(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cached, "available_bytes", lambda: 10_000)
        assert "may be used" in reason(DataLoader(Pictures(32)), Settings(cache=True))
    monkeypatch.setattr(cached, "FILL_LIMIT_S", 1.0)
    slow = DataLoader(Squares(4000, sleep_s=0.02))
    assert "would take about" in reason(slow, Settings(cache=True))
    spawned = Settings(cache=True, num_workers=1, start_method="spawn")
    assert "not forked" in reason(DataLoader(Pictures(8)), spawned)


# ------------------------------------------------------------------ storage


def test_cold_files_are_out_of_memory_when_an_epoch_begins(tmp_path: Path) -> None:
    dataset = Listed(tmp_path)
    files = [Path(path) for path, _ in dataset.samples]
    assert page_cache.in_memory(files).share == 1.0
    source = opened(DataLoader(dataset, batch_size=4), Settings(storage="cold"))
    assert page_cache.in_memory(files[4:]).n_in_memory == 0
    source.drop(4)
    assert page_cache.in_memory(files).share == 1.0
    source.drop(1)  # the next epoch has begun
    assert page_cache.in_memory(files[4:]).n_in_memory == 0
    source.close()


def test_pages_that_stay_in_memory_are_counted_and_the_trial_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = page_cache.Cached(n_pages=40, n_in_memory=30)
    monkeypatch.setattr(page_cache, "drop", lambda paths: stuck)
    loader = DataLoader(Listed(tmp_path))
    assert "30 of 40 pages" in reason(loader, Settings(storage="cold"))


def test_a_dataset_in_memory_has_no_storage() -> None:
    assert "in memory" in reason(DataLoader(Pictures(8)), Settings(storage="cold"))
    assert "in memory" in reason(DataLoader(Pictures(8)), Settings(storage="tmpfs"))


def copies(place: Path) -> list[Path]:
    return list(place.glob("loaderdoctor-*"))


def test_the_copy_is_read_instead_of_the_original_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "other"
    place.mkdir()
    dataset = InFolder(tmp_path / "data")
    loader = DataLoader(dataset, batch_size=2)
    expected = plainly(loader, 4)
    settings = Settings(storage=str(place))
    source = opened(loader, settings)
    (copy,) = copies(place)
    assert len(list(copy.glob("*.npy"))) == 8
    for path in dataset.folder.glob("*.npy"):
        path.rename(path.with_suffix(".gone"))
    assert digests(source.next_batch() for _ in range(4)) == expected
    source.close()
    assert digests(taken(loader, settings, 4)) == expected  # copied once only
    assert copies(place) == [copy]
    assert dataset.folder == tmp_path / "data"
    del loader, dataset, source
    gc.collect()
    assert copies(place) == []


def test_no_room_and_no_folder_withhold_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(Listed(tmp_path))
    assert "no such folder" in reason(loader, Settings(storage=str(tmp_path / "nowhere")))
    monkeypatch.setattr(disk_copies, "available_bytes", lambda: 1000)
    before = copies(Path("/dev/shm"))
    assert "may be used" in reason(loader, Settings(storage="tmpfs"))
    assert copies(Path("/dev/shm")) == before


def test_a_copy_is_removed_even_if_the_run_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "other"
    place.mkdir()
    script = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from loaderdoctor.instrument.dataset_files import DatasetFiles\n"
        "from loaderdoctor.instrument.disk_copies import DiskCopy\n"
        "data = Path(sys.argv[1]) / 'x.bin'\n"
        "data.write_bytes(b'1' * 1000)\n"
        "copy = DiskCopy(DatasetFiles(data.parent, (data,)), Path(sys.argv[2]))\n"
        "assert copy.files[0].read_bytes() == data.read_bytes()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(place)], check=False)
    assert done.returncode == -9
    deadline = time.monotonic() + 20
    while copies(place) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert copies(place) == []


# ------------------------------------------------------------------ ready batches, one input


def test_synthetic_batches_are_real_ones_and_cost_no_loading() -> None:
    dataset = Pictures(64)
    loader = DataLoader(dataset, batch_size=4)
    source = opened(loader, Settings(synthetic=True))
    made = dataset.counted
    batches = [source.next_batch() for _ in range(20)]
    assert dataset.counted == made
    assert set(digests(batches)) <= set(plainly(loader, 16))
    assert measure_boundary(source) == 0
    source.close()
    assert "ready" in reason(loader, Settings(synthetic=True, num_workers=2))


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
def test_one_input_is_loaded_and_the_others_are_ready(workers: Settings) -> None:
    loader = DataLoader(Two(), batch_size=4)
    batches = taken(loader, Settings(fields="sound").over(workers), 8)
    for i, batch in enumerate(batches):
        n = 2 if i == 7 else 4
        assert list(batch) == ["image", "sound", "label"]
        assert batch["sound"][:, 0].tolist() == list(range(4 * i, 4 * i + n))
        assert batch["image"][:, 0, 0].tolist() == [0, 1, 2, 3][:n]
        assert batch["label"].tolist() == [0, 1, 2, 3][:n]


def test_inputs_of_pairs_go_by_number_and_an_unknown_one_is_named() -> None:
    loader = DataLoader(Squares(), batch_size=4)
    (_, second) = taken(loader, Settings(fields="1"), 2)
    assert second[1].tolist() == [4, 5, 6, 7]
    assert second[0][:, 0].tolist() == [0.0, 1.0, 4.0, 9.0]
    assert "it has 0, 1" in reason(loader, Settings(fields="image"))


# ------------------------------------------------------------------ augmentation


def augmented(n: int = 16) -> Pictures:
    return Pictures(
        n,
        transforms.RandomCrop(16, padding=2),
        transforms.RandomHorizontalFlip(1.0),
        transforms.ColorJitter(0.4),
    )


def test_augmentation_off_leaves_conversion_and_shape() -> None:
    dataset = augmented()
    assert augmentations(dataset) == ("RandomCrop", "RandomHorizontalFlip", "ColorJitter")
    plain = Pictures(16, transforms.CenterCrop(16))
    expected = plainly(DataLoader(plain, batch_size=4), 4)
    for workers in (Settings(), Settings(num_workers=2)):
        loader = DataLoader(dataset, batch_size=4)
        assert digests(taken(loader, Settings(augment="off").over(workers), 4)) == expected
    assert len(dataset.transform.transforms) == 5


def test_one_transform_is_left_out_by_name() -> None:
    dataset = Pictures(16, transforms.RandomHorizontalFlip(1.0), transforms.RandomVerticalFlip(1.0))
    loader = DataLoader(dataset, batch_size=4)
    kept = Pictures(16, transforms.RandomHorizontalFlip(1.0))
    expected = plainly(DataLoader(kept, batch_size=4), 4)
    settings = Settings(augment="no-RandomVerticalFlip")
    assert digests(taken(loader, settings, 4)) == expected


def test_what_cannot_be_left_out_says_why() -> None:
    loader = DataLoader(augmented(), batch_size=4)
    assert "no Rotate among" in reason(loader, Settings(augment="no-Rotate"))
    assert "can't be left out" in reason(loader, Settings(augment="no-ToTensor"))
    assert "no Compose" in reason(DataLoader(Squares()), Settings(augment="off"))


# ------------------------------------------------------------------ uint8


@pytest.mark.parametrize("workers", WORKERS, ids=Settings.label)
@pytest.mark.parametrize("normalise", [True, False])
def test_bytes_become_the_same_floats(normalise: bool, workers: Settings) -> None:
    loader = DataLoader(Pictures(16, normalise=normalise), batch_size=4)
    batches = taken(loader, Settings(uint8=True).over(workers), 4)
    for (images, ids), (expected, own_ids) in zip(batches, loader, strict=True):
        assert images.dtype == expected.dtype
        assert torch.equal(ids, own_ids)
        assert (images - expected).abs().max() <= 1e-6


def test_workers_send_a_quarter_of_the_bytes() -> None:
    source: Any = opened(DataLoader(Pictures(16), batch_size=4), Settings(uint8=True))
    images, _ = source.inner.next_batch()
    assert images.dtype == torch.uint8
    assert source.next_batch()[0].dtype == torch.float32
    source.close()


def test_the_second_generation_of_transforms_is_understood() -> None:
    from torchvision.transforms import v2

    dataset = Pictures(16)
    dataset.transform = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )
    loader = DataLoader(dataset, batch_size=4)
    for (images, _), (expected, _) in zip(
        taken(loader, Settings(uint8=True), 4), loader, strict=True
    ):
        assert (images - expected).abs().max() <= 1e-6


def test_floats_that_are_not_made_last_stay_floats() -> None:
    dataset = Pictures(16)
    dataset.transform.transforms.append(transforms.RandomErasing())
    assert "ends in ToTensor" in reason(DataLoader(dataset), Settings(uint8=True))
    assert "ends in ToTensor" in reason(DataLoader(Squares()), Settings(uint8=True))


# ------------------------------------------------------------------ the user's own objects


def test_nothing_of_the_users_own_is_changed(tmp_path: Path) -> None:
    dataset = Listed(tmp_path)
    pairs, transform = list(dataset.samples), dataset.transform
    before = dict(vars(dataset))
    loader = DataLoader(dataset, batch_size=4)
    for axis in (Settings(storage="tmpfs"), Settings(cache=True), Settings(portion=0.5)):
        taken(loader, axis, 2)
    assert vars(dataset) == before
    assert dataset.samples is dataset.imgs
    assert (dataset.samples, dataset.transform) == (pairs, transform)
    release(loader)


class Branches(Dataset[dict[str, Any]]):
    """Counts how often each input was made."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample."""
        scale = 2.0
        picture = self.picture(index) * scale
        sound = torch.zeros(3)
        sound[:2] = self.sound(index)
        sound += 1
        return {"picture": picture, "sound": sound, "label": index}

    def picture(self, index: int) -> Tensor:
        self.made.append("picture")
        return torch.full((2,), float(index))

    def sound(self, index: int) -> Tensor:
        self.made.append("sound")
        return torch.full((2,), float(index))


@pytest.mark.parametrize(("field", "other"), [("picture", "sound"), ("sound", "picture")])
def test_what_only_the_other_inputs_need_is_not_run(field: str, other: str) -> None:
    dataset = Branches()
    for workers in (Settings(), Settings(num_workers=2)):
        loader = DataLoader(dataset, batch_size=4)
        expected = [batch[field] for batch in loader]
        source = opened(loader, Settings(fields=field).over(workers))
        dataset.made.clear()
        batches = [source.next_batch() for _ in range(4)]
        source.close()
        assert all(torch.equal(b[field], e) for b, e in zip(batches, expected, strict=True))
        assert other not in dataset.made
    assert type(dataset) is Branches


def test_samples_that_cannot_be_cut_down_are_made_whole_and_the_report_says_so() -> None:
    class Indirect(Branches):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return super().__getitem__(index)

    notes: list[str] = []
    source = opened(
        DataLoader(Indirect(), batch_size=4),
        Settings(fields="sound"),
        note=lambda kind, text: notes.append(kind),
    )
    assert source.next_batch()["sound"][0].tolist() == [1.0, 1.0, 1.0]
    source.close()
    assert notes == ["other-inputs-made"]


@pytest.mark.slow
def test_spawned_workers_get_whole_samples() -> None:
    settings = Settings(fields="sound", num_workers=1, start_method="spawn")
    batches = taken(DataLoader(Two(), batch_size=4), settings, 2)
    assert batches[1]["sound"][:, 0].tolist() == [4.0, 5.0, 6.0, 7.0]
