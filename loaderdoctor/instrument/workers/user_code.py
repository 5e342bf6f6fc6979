"""The user's code that makes a batch: its lines on a stack, each transform of a `Compose`, timed.

Transforms are timed on one sample in eight. The `transforms` list is swapped for a list of the very
same objects whose iteration takes the time between one item and the next: that is the time the
transform took. No transform is wrapped, nothing draws random numbers, and the old list is back
before the next sample.
"""

from __future__ import annotations

import functools
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch

import loaderdoctor

EVERY_N_SAMPLES = 8
MAX_DEPTH = 3  # Subset -> dataset -> transform -> Compose within it
MAX_COMPOSES = 8
MAX_ITEMS = 16  # of a list of datasets (ConcatDataset) or dict of transforms that is looked into
_PLAIN = (str, bytes, int, float, bool, type(None), type)


class TransformTotals:
    """Time and number of calls of each transform of one Compose, since last taken."""

    __slots__ = ("names", "ns", "runs")

    def __init__(self, transforms: list[Any]) -> None:
        self.names = _distinct([_name(t) for t in transforms])
        self.ns = [0] * len(transforms)
        self.runs = [0] * len(transforms)


class _TimedTransforms(list[Any]):
    """A `transforms` list that adds the time between its items to `totals`."""

    totals: TransformTotals

    def __iter__(self) -> Iterator[Any]:
        totals, now = self.totals, time.perf_counter_ns
        for i, transform in enumerate(list.__iter__(self)):
            began = now()
            yield transform
            if i < len(totals.ns):
                totals.ns[i] += now() - began
                totals.runs[i] += 1

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(list.__iter__(self)),))


class TransformProbe:
    """The Compose objects of one dataset; `arm` before a sample, `disarm` after it."""

    __slots__ = ("_armed", "_composes", "_totals", "samples_until_next")

    def __init__(self, composes: list[Any]) -> None:
        self._composes = composes
        self._totals = [TransformTotals(vars(c)["transforms"]) for c in composes]
        self._armed: list[tuple[Any, list[Any], _TimedTransforms]] = []
        self.samples_until_next = 0

    @staticmethod
    def of(dataset: object) -> TransformProbe | None:
        """A probe of what `dataset` holds; None where it holds no Compose."""
        composes = find_composes(dataset)
        return TransformProbe(composes) if composes else None

    def arm(self) -> None:
        """Swaps the timed lists in. The next `disarm` puts the old ones back."""
        for i, compose in enumerate(self._composes):
            old = vars(compose).get("transforms")
            if type(old) is not list:
                continue
            if len(old) != len(self._totals[i].ns):
                self._totals[i] = TransformTotals(old)
            timed = _TimedTransforms(old)
            timed.totals = self._totals[i]
            vars(compose)["transforms"] = timed
            self._armed.append((compose, old, timed))

    def disarm(self) -> None:
        """Undoes `arm`; keeps what the sample itself changed."""
        while self._armed:
            compose, old, timed = self._armed.pop()
            if vars(compose).get("transforms") is not timed:
                continue  # the user's code replaced the list
            items = list(list.__iter__(timed))
            if len(items) != len(old) or any(a is not b for a, b in zip(items, old, strict=True)):
                old[:] = items
            vars(compose)["transforms"] = old

    def take(self) -> dict[str, tuple[int, int]]:
        """Name -> (ns, samples) since the last call, and starts again from zero."""
        taken: dict[str, tuple[int, int]] = {}
        for totals in self._totals:
            for i, name in enumerate(totals.names):
                runs, ns = totals.runs[i], totals.ns[i]
                if runs:
                    had_ns, had_runs = taken.get(name, (0, 0))
                    taken[name] = (had_ns + ns, had_runs + runs)
                    totals.ns[i] -= ns
                    totals.runs[i] -= runs
        return taken


def find_composes(dataset: object) -> list[Any]:
    """Objects with a `transforms` list of callables, in the dataset's attributes."""
    found: list[Any] = []
    seen: set[int] = set()
    level: list[object] = [dataset]
    for _ in range(MAX_DEPTH + 1):
        below: list[object] = []
        for holder in level:
            if id(holder) in seen or isinstance(holder, _PLAIN):
                continue
            seen.add(id(holder))
            attributes = getattr(holder, "__dict__", None)
            if not isinstance(attributes, dict):
                continue
            transforms = attributes.get("transforms")
            if holder is not dataset and _is_pipeline(transforms):
                found.append(holder)
                if len(found) == MAX_COMPOSES:
                    return found
                continue  # transforms within transforms belong to the outer one
            for value in attributes.values():
                if isinstance(value, (list, tuple)):
                    below.extend(value if len(value) <= MAX_ITEMS else ())
                elif isinstance(value, dict):
                    below.extend(value.values() if len(value) <= MAX_ITEMS else ())
                else:
                    below.append(value)
        level = below
    return found


def _is_pipeline(value: object) -> bool:
    return type(value) is list and bool(value) and all(callable(item) for item in value)


def _name(transform: Any) -> str:
    if isinstance(transform, functools.partial):
        return _name(transform.func)
    own = getattr(transform, "__qualname__", None)
    return own if isinstance(own, str) else type(transform).__name__


def _distinct(names: list[str]) -> list[str]:
    """Names with their number appended where one occurs several times."""
    return [
        name if names.count(name) == 1 else f"{name} #{names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]


MAX_FRAMES: Final = 200
# Folders end with the separator: torchvision is not torch's.
_STDLIB: Final = tuple({sysconfig.get_path(x) + os.sep for x in ("stdlib", "platstdlib")})
_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_OURS: Final = str(Path(loaderdoctor.__file__).parent) + os.sep
_RECIPES: Final = _OURS + "_recipes" + os.sep  # shipped with us, but a user's code in kind
_WORKER_LOOP: Final = str(Path(_TORCH) / "utils/data/_utils/worker.py")
_FETCHING: Final = (
    str(Path(_TORCH) / "utils/data/_utils/fetch.py"),
    _WORKER_LOOP,
    str(Path(_TORCH) / "utils/data/dataloader.py"),
)
Place = tuple[str, int, str]  # file, line, function
USER, PACKAGE, INNER, OWN, FETCHER = range(5)


def locate(frame: FrameType) -> tuple[Place, Place] | None:
    """The user's line and the leaf, looking from `frame` outward to torch's fetcher.

    None where the stack is between batches: nothing of a dataset, sampler or collate function.
    """
    leaf: FrameType | None = None
    package: FrameType | None = None
    at: FrameType | None = frame
    for _ in range(MAX_FRAMES):
        if at is None:
            return None  # not below a fetcher: the thread is elsewhere by now
        kind = kind_of(at.f_code)
        if kind == FETCHER:
            break
        if kind != OWN:
            leaf = leaf or at
        if kind == USER:
            return place_of(at), place_of(leaf or at)
        if kind == PACKAGE and package is None:
            package = at
        at = at.f_back
    if leaf is None or at is None:
        return None
    if package is None and at.f_code.co_filename == _WORKER_LOOP:
        return None  # torch's own queue, between batches
    return place_of(package or leaf), place_of(leaf)


def place_of(frame: FrameType) -> Place:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # co_qualname: Python >= 3.11
    return code.co_filename, frame.f_lineno or code.co_firstlineno, name


_kinds: dict[str, int] = {}


def kind_of(code: CodeType) -> int:
    file = code.co_filename
    kind = _kinds.get(file)
    if kind is None:
        kind = _kinds[file] = _classify(file)
    return kind


def _classify(file: str) -> int:
    if file in _FETCHING:
        return FETCHER
    if file.startswith(_RECIPES):
        return USER
    if file.startswith(_OURS):
        return OWN
    if file.startswith((_TORCH, "<frozen")):
        return INNER
    if "site-packages" in file or "dist-packages" in file:
        return PACKAGE
    if file.startswith(_STDLIB):
        return INNER
    return USER
