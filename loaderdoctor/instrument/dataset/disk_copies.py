"""Copies of a dataset's files on another disk or in memory, for the length of the run.

A small shell outside the process group of the run waits for the run's end on a pipe and removes
the copy then, however the run ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.dataset_files import DatasetFiles
from loaderdoctor.instrument.system.memory import available_bytes

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
        raise TrialRefused(f"{TMPFS} is no tmpfs that can be written")
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
