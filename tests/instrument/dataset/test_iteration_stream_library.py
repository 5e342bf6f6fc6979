"""Streaming libraries are known by their classes' modules, and whether they split by worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.instrument.dataset import shards_itself, splits_itself, stream_of
from loaderdoctor.instrument.wire.records import StreamRecord


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries' modules, as if they were installed."""
    for name in (
        "datasets.iterable_dataset", "datasets.arrow_dataset", "litdata.streaming.dataset",
        "streaming.base.dataset", "webdataset.compat", "webdataset.pipeline",
    ):  # fmt: skip
        if name not in sys.modules:
            module_at(monkeypatch, name, f"/venv/lib/python3/site-packages/{name}.py")


def module_at(monkeypatch: pytest.MonkeyPatch, name: str, file: str | None) -> None:
    made = ModuleType(name)
    made.__file__ = file
    monkeypatch.setitem(sys.modules, name, made)


def of_module(module: str, **attributes: Any) -> IterableDataset[int]:
    """A dataset whose class says that it is of this module."""

    def samples(self: object) -> Iterator[int]:
        raise AssertionError("nothing is iterated")

    name = "IterableDataset" if module.startswith("datasets") else "StreamingDataset"
    kind: Any = type(name, (IterableDataset,), {"__module__": module, "__iter__": samples})
    made: IterableDataset[int] = kind()
    made.__dict__.update(attributes)
    return made


class SimpleShardList:
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls


class ResampledShards:
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls


def split_by_worker(source: Iterator[Any]) -> Iterator[Any]:
    yield from source


def single_node_only(source: Iterator[Any]) -> Iterator[Any]:
    """As the library's own, it asks which worker it is in and splits nothing."""
    from torch.utils.data import get_worker_info

    assert get_worker_info is not None
    yield from source


SHARDS = SimpleShardList(["a.tar", "b.tar", "c.tar"])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (
            of_module("datasets.iterable_dataset", num_shards=5),
            StreamRecord(library="datasets", n_shards=5),
        ),
        (of_module("litdata.streaming.dataset"), StreamRecord(library="litdata")),
        (of_module("streaming.base.dataset", num_shards=9), StreamRecord(library="streaming")),
        (
            of_module("webdataset.compat", pipeline=[SHARDS, single_node_only, split_by_worker]),
            StreamRecord(library="webdataset", n_shards=3),
        ),
        (
            of_module("webdataset.pipeline", pipeline=[SHARDS, single_node_only]),
            StreamRecord(library="webdataset", n_shards=3, splits=False),
        ),
        (
            of_module("webdataset.compat", pipeline=[ResampledShards(["a.tar"]), single_node_only]),
            StreamRecord(library="webdataset"),
        ),
        (of_module("my.streaming"), None),
        (of_module("datasets.arrow_dataset"), None),
    ],
)
def test_what_is_known_of_a_librarys_dataset(
    dataset: IterableDataset[int], expected: StreamRecord | None
) -> None:
    assert stream_of(dataset) == expected
    loader = DataLoader(dataset, batch_size=2)
    assert shards_itself(loader) is bool(expected is not None and expected.splits)


@pytest.mark.usefixtures("installed")
def test_a_users_subclass_is_its_librarys_and_a_property_that_fails_is_not_known() -> None:
    base = type(of_module("datasets.iterable_dataset"))

    class Mine(base):  # type: ignore[misc, valid-type]
        @property
        def num_shards(self) -> int:
            raise RuntimeError("not prepared")

    assert stream_of(Mine()) == StreamRecord(library="datasets")
    assert splits_itself(object()) is None


@pytest.mark.parametrize(
    "name", ["streaming", "streaming.base.dataset", "datasets.iterable_dataset", "webdataset.mine"]
)
def test_a_users_module_of_a_librarys_name_is_none_of_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (str(tmp_path / "src" / f"{name}.py"), None):
        module_at(monkeypatch, name, file)
        assert stream_of(of_module(name)) is None
        assert splits_itself(of_module(name)) is None
    # A package may lie elsewhere, as one that is worked on does.
    module_at(monkeypatch, name, "/elsewhere/library.py")
    assert (stream_of(of_module(name)) is None) is (name == "streaming")
    assert stream_of(of_module("streaming.loader")) is None


@pytest.mark.frameworks
def test_webdataset_for_real(tmp_path: Any) -> None:
    wds = pytest.importorskip("webdataset", exc_type=ImportError)
    import torch

    urls = [str(tmp_path / f"{k}.tar") for k in range(3)]
    for k, url in enumerate(urls):
        with wds.TarWriter(url) as shard:
            for i in range(20):
                shard.write({"__key__": f"{k}-{i}", "x.pth": torch.ones(2), "y.cls": i})
    by_itself = wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("x.pth", "y.cls")
    unsplit = wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.decode(),
        wds.to_tuple("x.pth", "y.cls"),
    )  # fmt: skip
    assert stream_of(by_itself) == StreamRecord(library="webdataset", n_shards=3)
    assert stream_of(unsplit) == StreamRecord(library="webdataset", n_shards=3, splits=False)
    for dataset, n_samples in ((by_itself, 60), (unsplit, 120)):
        loader = DataLoader(dataset, batch_size=10, num_workers=2)
        assert sum(len(y) for _, y in loader) == n_samples
        assert shards_itself(loader) is (n_samples == 60)


@pytest.mark.frameworks
def test_hugging_face_datasets_for_real() -> None:
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    whole = datasets.Dataset.from_dict({"x": list(range(60))}).with_format("torch")
    stream = whole.to_iterable_dataset(num_shards=3)
    assert stream_of(whole) is None
    assert stream_of(stream) == StreamRecord(library="datasets", n_shards=3)
    shuffled = stream.shuffle(buffer_size=10, seed=1)
    assert stream_of(shuffled) == StreamRecord(library="datasets", n_shards=3)
    loader = DataLoader(stream, batch_size=10, num_workers=2)
    assert shards_itself(loader)
    assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(60))


def write_row(i: int) -> dict[str, int]:
    return {"x": i}


@pytest.mark.frameworks
def test_mosaicml_streaming_for_real(tmp_path: Any) -> None:
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    with streaming.MDSWriter(out=str(tmp_path), columns={"x": "int"}, size_limit=200) as out:
        for i in range(60):
            out.write(write_row(i))
    dataset = streaming.StreamingDataset(local=str(tmp_path), batch_size=10)
    assert stream_of(dataset) == StreamRecord(library="streaming")
    loader = DataLoader(dataset, batch_size=10, num_workers=2)
    assert shards_itself(loader)
    assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(60))


@pytest.mark.frameworks
def test_litdata_for_real(tmp_path: Any) -> None:
    litdata = pytest.importorskip("litdata", exc_type=ImportError)
    litdata.optimize(
        fn=write_row, inputs=list(range(60)), output_dir=str(tmp_path), chunk_bytes="1KB",
        num_workers=1,
    )  # fmt: skip
    dataset = litdata.StreamingDataset(str(tmp_path))
    assert stream_of(dataset) == StreamRecord(library="litdata")
    loader = DataLoader(dataset, batch_size=10, num_workers=2)
    assert shards_itself(loader)
    assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(60))
