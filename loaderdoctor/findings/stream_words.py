"""What to do about a stream's shards, in the words of the library that reads them."""

from __future__ import annotations

from loaderdoctor.instrument.wire.records import StreamRecord

_OF_ITER = "in __iter__ by get_worker_info()"


def split_by_worker(stream: StreamRecord | None) -> str:
    """So that each worker reads its own part."""
    if stream is not None and stream.library == "webdataset":
        return (
            "Put wds.split_by_worker behind the list of shards, as WebDataset(urls) does by itself "
            "(and nodesplitter=wds.split_by_node where there are several ranks), or use one worker."
        )
    return f"Split the stream {_OF_ITER}, or use one worker."


def even_shards(stream: StreamRecord | None, num_workers: int) -> str:
    """So that workers end at about the same time."""
    if stream is None:
        return (
            f"Deal out samples or small pieces in place of whole shards ({_OF_ITER}), or write "
            f"many shards of one size: several for each of {num_workers} workers."
        )
    several = 8 * num_workers
    return {
        "datasets": f"More shards: dataset.to_iterable_dataset(num_shards={several}) of a "
        f"map-style dataset, or as many files (save_to_disk(path, num_shards={several})); or as "
        "many workers as divide the shards.",
        "webdataset": "More and equal tar files (wds.ShardWriter(…, maxcount=…)), several for each "
        "worker; or shards drawn anew without an end (WebDataset(urls, resampled=True) with "
        ".with_epoch(n)).",
        "litdata": "Read it with litdata.StreamingDataLoader, which deals out samples, and write "
        "smaller chunks (optimize(…, chunk_bytes=…)).",
        "streaming": "Give StreamingDataset the loader's batch_size, by which it deals samples out "
        "to workers, and a predownload of several batches.",
    }[stream.library]


def more_shards(stream: StreamRecord | None, busy: int) -> str:
    """So that no worker is without one; `busy` had some."""
    as_many = f"or use as many workers as there are shards ({busy})."
    if stream is None:
        return f"Give every worker its own shards (get_worker_info() in __iter__), {as_many}"
    return {
        "datasets": "dataset.to_iterable_dataset(num_shards=64) of a map-style dataset, or more "
        f"files; {as_many}",
        "webdataset": f"More tar files (wds.ShardWriter(…, maxcount=…)); {as_many}",
        "litdata": "Read it with litdata.StreamingDataLoader, and write smaller chunks "
        f"(optimize(…, chunk_bytes=…)); {as_many}",
        "streaming": f"Give StreamingDataset the loader's batch_size; {as_many}",
    }[stream.library]
