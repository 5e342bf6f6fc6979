"""Which files a dataset reads its samples from, and copies of them on another disk.

They are found by the dataset's attributes and by making a few samples.

A sample is made while Python's ways to open a file are watched; files that C code opens show in the
page cache: dropped before, there after.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.dataset_tree import replaced
from loaderdoctor.instrument.dataset.safety import looked_at, some_samples
from loaderdoctor.instrument.system import memory
from loaderdoctor.instrument.system.machine import available_bytes

# Folders with more files than this are not searched.
MAX_FILES = 2_000_000
# For the look at the page cache; a dataset of more files is believed what its attributes say.
MAX_LOOKED_AT = 50_000
_NO_DATA = (".py", ".pyc", ".so", ".pth")


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """Files of samples, all below `base`."""

    base: Path
    files: tuple[Path, ...]

    @property
    def n_bytes(self) -> int:
        """Their size."""
        return sum(path.stat().st_size for path in self.files if path.exists())


def dataset_files(dataset: Any, *, apart: bool) -> DatasetFiles:
    """Raises TrialRefused where no file can be found that samples are read from.

    Samples are made as `looked_at` says.
    """
    files, folders = _named(dataset)
    opened = opens_of(dataset, apart=apart)
    if opened and opened <= files:
        return _below(files, folders)
    if opened:
        for folder in sorted(folders, key=lambda f: -len(f.parts)):
            if all(folder in path.parents for path in opened):
                return DatasetFiles(folder, _walk(folder))
        raise TrialRefused(
            f"samples are read from {min(opened)}, which no attribute of the dataset names"
        )
    for found in (files, *({*_walk(f)} for f in sorted(folders, key=lambda f: -len(f.parts)))):
        if found and _read_by(dataset, found, apart=apart):
            return _below(found, folders)
    raise TrialRefused("no file is read while samples are made: the dataset is in memory")


def opens_of(dataset: Any, *, apart: bool) -> set[Path]:
    """Files that Python opens while a few samples are made; empty where that fails."""
    with looked_at(dataset, apart=apart) as made, watched_opens() as opened:
        try:
            some_samples(made)
        except Exception:  # a dataset that isn't numbered, say
            return set()
    return {path for path in opened if _is_data(path)}


@contextmanager
def watched_opens() -> Iterator[set[Path]]:
    """Paths given to `open` and `os.open` within the block, on any thread."""
    seen: set[Path] = set()

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, bytes, os.PathLike)):
                seen.add(_absolute(os.fsdecode(file)))
            return original(file, *args, **kwargs)

        return watched

    places: tuple[Any, ...] = (builtins, io, os)
    before = [place.open for place in places]
    for place in places:
        place.open = watching(place.open)
    try:
        yield seen
    finally:
        for place, original in zip(places, before, strict=True):
            place.open = original


def redirected(dataset: Any, found: DatasetFiles, target: Path, *, apart: bool) -> Any:
    """The dataset with every path to these files, or to a folder of them, below `target` instead.

    Samples to see that are made as `looked_at` says. Raises TrialRefused where it still reads from
    the old place.
    """
    known = set(found.files)
    for path in found.files:
        for parent in path.parents:
            known.add(parent)
            if parent == found.base:
                break

    def moved(value: Any) -> Any:
        if not isinstance(value, (str, Path)) or len(str(value)) > 4096:
            return value
        path = _absolute(str(value))
        if path not in known or not _looks_like_path(value):
            return value
        new = target / path.relative_to(found.base)
        return str(new) if isinstance(value, str) else type(value)(new)

    changed = replaced(dataset, moved)
    old = {path for path in opens_of(changed, apart=apart) if path in known}
    if changed is dataset or old:
        what = min(old) if old else found.base
        raise TrialRefused(f"the dataset can't be sent elsewhere: it still reads {what}")
    return changed


def _named(dataset: Any) -> tuple[set[Path], set[Path]]:
    """Existing files and folders that attributes of the dataset name."""
    texts: set[str] = set()

    def collect(value: Any) -> Any:
        if isinstance(value, (str, Path)) and _looks_like_path(value):
            texts.add(str(value))
        return value

    replaced(dataset, collect)
    files, folders = set(), set()
    for text in texts:
        path = _absolute(text)
        # Not by `Path`, which raises for a text that is too long to be a name, before Python 3.14.
        if os.path.isdir(path):  # noqa: PTH112
            folders.add(path)
        elif os.path.isfile(path) and _is_data(path):  # noqa: PTH113
            files.add(path)
    # The working directory and what is above it are in many objects and say nothing.
    here = Path.cwd()
    return files, {f for f in folders if f != here and f not in here.parents}


def _looks_like_path(value: str | Path) -> bool:
    text = str(value)
    return 1 < len(text) < 4096 and "\n" not in text and "\0" not in text


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111  # no symlinks resolved


def _is_data(path: Path) -> bool:
    if path.suffix in _NO_DATA or path.parts[:2] in (("/", "proc"), ("/", "sys"), ("/", "dev")):
        # /dev/shm may hold a dataset
        return path.parts[:3] == ("/", "dev", "shm") and path.suffix not in _NO_DATA
    return not any(
        path.is_relative_to(place) for place in {sys.prefix, sys.base_prefix} if place != "/usr"
    )


def _below(files: Iterable[Path], folders: set[Path]) -> DatasetFiles:
    """With a base that the dataset names itself, where one holds all the files."""
    listed = tuple(sorted(files))
    common = Path(os.path.commonpath([str(path.parent) for path in listed]))
    named = [f for f in folders if f == common or f in common.parents]
    return DatasetFiles(min(named, key=lambda f: len(f.parts), default=common), listed)


def _walk(folder: Path) -> tuple[Path, ...]:
    found: list[Path] = []
    for place, _, names in os.walk(folder):
        found += [Path(place, name) for name in names]
        if len(found) > MAX_FILES:
            raise TrialRefused(f"{folder} holds more than {MAX_FILES:,} files")
    return tuple(sorted(found))


def _read_by(dataset: Any, files: set[Path], *, apart: bool) -> bool:
    """Whether making samples brings pages of these files into memory."""
    if not memory.can_drop_pages() or len(files) > MAX_LOOKED_AT:
        return True
    with looked_at(dataset, apart=apart) as made:
        before = memory.drop_pages(files)
        try:
            some_samples(made)
        except Exception:  # nothing can be said
            return True
    if before.n_pages and before.share == 1.0:
        return True  # they can't be dropped, so nothing shows
    return memory.pages_in_memory(files).n_in_memory > before.n_in_memory


# Copies of a dataset's files on another disk or in memory, for the length of the run.
#
# A small shell outside the process group of the run waits for the run's end on a pipe and removes
# the copy then, however the run ends.

TMPFS = Path("/dev/shm")
# Of what is free where the copy goes; workers put their batches into /dev/shm too.
MAX_SHARE_OF_FREE = 0.50
COPY_LIMIT_S = 90.0
MIN_PROBED_S = 2.0
# Waits in the background, as nobody's child: the run's end kills the run's children.
_REAPER = 'exec 3<&0; (cat <&3 >/dev/null; rm -rf -- "$0") >/dev/null 2>&1 &'


class DiskCopy:
    """The files below `path`, placed as they are below `found.base`. `remove` it.

    Raises TrialRefused where there is no room, no such folder, or copying takes too long.
    """

    def __init__(self, found: DatasetFiles, place: Path) -> None:
        self.files: tuple[Path, ...] = ()
        _check_room(found.n_bytes, place)
        self.path = Path(tempfile.mkdtemp(prefix="loaderdoctor-", dir=place))
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", _REAPER, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._reaper.wait()  # the shell that waits has been let go by now
        try:
            self._copy(found)
        except OSError as error:
            self.remove()
            raise TrialRefused(f"{place}: the dataset can't be copied there: {error}") from error
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Delete the copy now. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._reaper.stdin is not None:
            self._reaper.stdin.close()

    def _copy(self, found: DatasetFiles) -> None:
        began = time.monotonic()
        total, done = found.n_bytes, 0
        made: list[Path] = []
        for path in found.files:
            target = self.path / path.relative_to(found.base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
            made.append(target)
            done += target.stat().st_size
            passed, share = time.monotonic() - began, done / max(1, total)
            if passed > COPY_LIMIT_S or (passed > MIN_PROBED_S and passed > COPY_LIMIT_S * share):
                raise TrialRefused(
                    f"copying {total} bytes would take about {passed / max(share, 1e-9):.0f} s, "
                    f"more than {COPY_LIMIT_S:.0f} s"
                )
        self.files = tuple(made)


def tmpfs_place() -> Path:
    """Where files in memory go. Raises TrialRefused where there is no tmpfs that can be written."""
    kinds = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    if kinds.get(str(TMPFS)) != "tmpfs" or not os.access(TMPFS, os.W_OK):
        raise TrialRefused(f"{TMPFS} is not a tmpfs that can be written")
    return TMPFS


def other_place(text: str) -> Path:
    """The folder a user named. Raises TrialRefused where there is none that can be written."""
    path = Path(text).expanduser()
    if not path.is_dir():
        raise TrialRefused(f"storage={text}: no such folder")
    if not os.access(path, os.W_OK):
        raise TrialRefused(f"storage={text}: the folder can't be written")
    return path


def _check_room(n_bytes: int, place: Path) -> None:
    free = shutil.disk_usage(place).free
    if place == TMPFS:
        memory = available_bytes()
        free = free if memory is None else min(free, memory)
    if n_bytes > MAX_SHARE_OF_FREE * free:
        raise TrialRefused(
            f"{place}: the dataset's files take {n_bytes} bytes, and half of the {free} free may "
            "be used"
        )
