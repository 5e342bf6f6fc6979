"""Datasets of libraries that stream shards, recognised by their classes and where these lie.

A module of the user's own that bears a library's name is none of it.

Nothing of them is imported or iterated: attributes are looked at, and a property or two is asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from loaderdoctor.instrument.wire.records import StreamRecord

Library = Literal["datasets", "webdataset", "litdata", "streaming"]
# Of what splits the shards of WebDataset's pipelines; resampled ones are drawn by each worker.
_WDS_RESAMPLED = frozenset({"ResampledShards", "ResampledShardList"})
_WDS_SPLITS = _WDS_RESAMPLED | {"split_by_worker"}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
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
        library = _defined_by(kind.__module__, kind.__name__)
        if library is not None and _is_installed(kind.__module__):
            return library
    return None


def _defined_by(module: str, name: str) -> Library | None:
    if (module, name) == ("datasets.iterable_dataset", "IterableDataset"):
        return "datasets"
    if (module, name) == ("streaming.base.dataset", "StreamingDataset"):
        return "streaming"
    if module.startswith("litdata.streaming."):
        return "litdata"
    return "webdataset" if module.startswith("webdataset.") else None


def _is_installed(module: str) -> bool:
    """Whether its file is a package's: not of the script's folder or the one it is run in."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(path, str):
        return False
    file = Path(os.path.abspath(path))  # noqa: PTH100  # links stay: packages may be links
    if not _INSTALLED.isdisjoint(file.parts):
        return True
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = {Path.cwd()} | ({Path(script).absolute().parent} if script else set())
    return not any(file.is_relative_to(folder) for folder in folders)


def _n_shards(dataset: Any, library: Library) -> int | None:
    try:
        if library == "datasets":
            return int(dataset.num_shards)
        if library == "webdataset":
            stages = list(_stages(dataset, 0))
            if any(_name(stage) in _WDS_RESAMPLED for stage in stages):
                return None  # drawn without an end, by every worker for itself
            lists = [getattr(stage, "urls", None) for stage in stages]
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
