"""A stream of a library's, read by three workers: python library_streams.py LIBRARY HOW.

webdataset: whole, each worker reads all of it, or split. datasets: whole, one shard for three
workers, or split, three. litdata and streaming (MosaicML's): split, as they always do. The data is
made in the working folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

N, N_SHARDS = 3000, 6


def slow(sample: Any) -> Any:
    time.sleep(0.001)
    return sample


def webdataset(folder: Path, how: str) -> Any:
    import webdataset as wds  # type: ignore[import-not-found,unused-ignore]

    urls = [str(folder / f"{shard}.tar") for shard in range(N_SHARDS)]
    for shard, url in enumerate(urls):
        with wds.TarWriter(url) as writer:
            for i in range(shard, N, N_SHARDS):
                writer.write({"__key__": f"{i}", "x.pth": torch.full((64,), i / N)})
    split = [wds.split_by_worker] if how == "split" else []
    read = [wds.tarfile_to_samples(), wds.decode(), wds.to_tuple("x.pth"), wds.map(slow)]
    return wds.DataPipeline(wds.SimpleShardList(urls), *split, *read)


def datasets(folder: Path, how: str) -> Any:
    import datasets as hf  # type: ignore[import-not-found,unused-ignore]

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(N):
            yield {"x": [i / N] * 64}

    table = hf.Dataset.from_generator(rows, cache_dir=str(folder))
    stream = table.to_iterable_dataset(num_shards=1 if how == "whole" else 3)
    return stream.map(slow).with_format("torch")


def litdata(folder: Path, _how: str) -> Any:
    from litdata import StreamingDataset  # type: ignore[import-not-found,unused-ignore]
    from litdata.streaming.writer import BinaryWriter  # type: ignore[import-not-found,unused-ignore]

    writer = BinaryWriter(str(folder), chunk_bytes="64KB")
    for i in range(N):
        writer[i] = torch.full((64,), i / N)
    writer.done()
    writer.merge()
    return StreamingDataset(str(folder), transform=slow)


def streaming(folder: Path, _how: str) -> Any:
    from streaming import MDSWriter, StreamingDataset  # type: ignore[import-not-found,unused-ignore]

    with MDSWriter(out=str(folder), columns={"x": "ndarray:float32:64"}, size_limit=65536) as out:
        for i in range(N):
            out.write({"x": np.full((64,), i / N, np.float32)})

    class Slow(StreamingDataset):  # type: ignore[misc,unused-ignore]
        def __getitem__(self, at: int) -> Any:
            return slow(super().__getitem__(at))

    return Slow(local=str(folder), batch_size=8)


def main(library: str, how: str) -> None:
    folder = Path.cwd() / "made"
    folder.mkdir()
    make = {f.__name__: f for f in (webdataset, datasets, litdata, streaming)}
    dataset = make[library](folder, how)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, batch_size=8, num_workers=3, persistent_workers=True)
    for _epoch in range(1_000):
        for batch in loader:
            x = batch["x"] if isinstance(batch, dict) else batch
            x = x[0] if isinstance(x, (list, tuple)) else x
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
