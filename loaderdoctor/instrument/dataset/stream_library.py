"""Datasets of libraries that stream shards, recognised by the modules of their classes.

Nothing of them is imported or iterated: attributes are looked at, and a property or two is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from loaderdoctor.instrument.wire.records import StreamRecord

Library = Literal["datasets", "webdataset", "litdata", "streaming"]
# Of what splits the shards of WebDataset's pipelines; resampled ones are drawn by each worker.
_WDS_SPLITS = frozenset({"split_by_worker", "ResampledShards", "ResampledShardList"})
MAX_STAGES = 256


def stream_of(dataset: object) -> StreamRecord | None:
    """What is known of a streaming library's dataset; None for any other.

    A user's subclass counts as its library's. `n_shards` only where a worker's work is whole
    shards: litdata and MosaicML Streaming deal samples out, whatever shard they lie in.
    """
    library = _library(dataset)
    if library is None:
        return None
    return StreamRecord(
        library=library,
        n_shards=_n_shards(dataset, library),
        splits=splits_itself(dataset) is not False,
    )


def splits_itself(dataset: object) -> bool | None:
    """Whether its workers share the data; None where that is for its code to tell."""
    library = _library(dataset)
    if library in ("litdata", "streaming", "datasets"):
        return True
    if library == "webdataset":
        return any(_name(stage) in _WDS_SPLITS for stage in _stages(dataset, 0))
    return None


def _library(dataset: object) -> Library | None:
    for kind in type(dataset).__mro__:
        root, _, rest = kind.__module__.partition(".")
        if root in ("webdataset", "litdata", "streaming"):
            return root  # type: ignore[return-value]  # one of the three
        if root == "datasets" and rest == "iterable_dataset":
            return "datasets"
    return None


def _n_shards(dataset: Any, library: Library) -> int | None:
    try:
        if library == "datasets":
            return int(dataset.num_shards)
        if library == "webdataset":
            lists = [getattr(stage, "urls", None) for stage in _stages(dataset, 0)]
            return next((len(x) for x in lists if isinstance(x, (list, tuple))), None)
    except Exception:  # the library's own code, of whatever version
        return None
    return None


def _stages(pipeline: Any, depth: int) -> Iterator[Any]:
    """Stages of a WebDataset pipeline, those of pipelines within it too."""
    stages = getattr(pipeline, "pipeline", None)
    if not isinstance(stages, (list, tuple)) or depth > 3:
        return
    for stage in stages[:MAX_STAGES]:
        yield stage
        yield from _stages(stage, depth + 1)


def _name(stage: object) -> str:
    stage = getattr(stage, "func", stage)  # functools.partial
    return getattr(stage, "__name__", type(stage).__name__)
