"""The run folder: one run of ours on disk, laid out for people, programs and TensorBoard.

    loaderdoctor-runs/.gitignore                      keeps the user's `git status` clean
    loaderdoctor-runs/<time>-<name>/
        report.json   console.txt   report.html
        perfetto/*.json.gz                            the full traces
        tensorboard/baseline/, tensorboard/trial-NN/  the plugin's dialect, scalars and HParams

Files appear whole or not at all: each is written next to its place and renamed into it. Modes are
those of any file the user creates (umask). A folder with something in it is never written into.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import time
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.report.model import SCHEMA, Report
from loaderdoctor.settings import Value

RUNS = "loaderdoctor-runs"
NAME_A_RUN = "Name a run folder of loaderdoctor or its report.json."
# Runs are no part of the user's repository. Written with the folder, never into one that is there:
# who wants runs in git deletes or changes it.
IGNORED = "# Made by loaderdoctor: git leaves the runs out.\n*\n"
# Symlinks at the end of a path are not followed where the system can promise it.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder of this process; make it with `create`."""

    path: Path
    made: tuple[Path, ...] = ()  # folders that were not there before, innermost first

    @staticmethod
    def create(
        target: str, *, output: Path | None = None, parent: Path | None = None, at: float
    ) -> RunFolder:
        """A new, empty run folder: `output`, else one named after `target` and the time `at`.

        Made before anything is measured, so that a folder that can't be written fails at once.
        Raises UsageError where `output` holds something, RunError where it can't be made.
        """
        runs = (parent or Path.cwd()) / RUNS
        wanted = (runs,) if output is None else (output, *output.absolute().parents)
        missing = tuple(path.absolute() for path in wanted if not path.exists())
        folder = _fresh(runs, target, at) if output is None else _claim(output)
        run = RunFolder(folder, missing if output is not None else (folder, *missing))
        for name in ("perfetto", "tensorboard"):
            make_folder(folder / name)
        with atomic_writer(folder / "console.txt"):
            pass  # proves, before the long part, that files can be made here
        return run

    def discard_if_empty(self) -> None:
        """Leave nothing behind where nothing was written: neither files nor folders made here."""
        files = [path for path in self.path.rglob("*") if path.is_symlink() or not path.is_dir()]
        if any(path.is_symlink() or path.lstat().st_size for path in files):
            return
        with suppress(OSError):  # what can't be removed, or is in use by now, stays
            for path in files:
                path.unlink()
            for path in sorted(self.path.rglob("*"), reverse=True):
                path.rmdir()
            for path in self.made:
                if path.name == RUNS:
                    _unlink_ours(path / ".gitignore")
                path.rmdir()

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def write_report(self, report: Report, console_text: str) -> None:
        """Write report.json and console.txt; called after every trial, so partial results stay."""
        write_bytes(self.report, encode_report(report))
        write_bytes(self.path / "console.txt", console_text.encode("utf-8", "replace"))

    def perfetto_trace(self, name: str) -> Path:
        """Where the full trace of one capture goes: `baseline`, `trial-03`, `rank-1`."""
        return self.path / "perfetto" / f"{plain_name(name)}.json.gz"

    def plugin_trace(self, run: str, *, worker: str, at_ns: int) -> Path:
        """Where the plugin's trace of one capture goes; its folder is one run in TensorBoard.

        `at_ns` is the capture's time since the epoch: the plugin's span, digits only. A worker
        named `<host>_<number>` is grouped by host in the plugin's distributed view.
        """
        folder = self.tensorboard / plain_name(run)
        make_folder(folder)
        return folder / f"{plain_name(worker).replace('.', '-')}.{at_ns}.pt.trace.json.gz"


def trial_run(index: int) -> str:
    """The TensorBoard run of a trial."""
    return f"trial-{index:02d}"


def plain_name(text: str) -> str:
    """A file name out of any text: letters, digits, `-`, `_` and inner dots."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip(".-")[:_NAME_LENGTH] or "run"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file at once, replacing one of ours. Raises RunError."""
    with atomic_writer(path) as out:
        out.write(data)


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when the block ends, and leaves nothing where it fails.

    A symlink at `path` is replaced, not followed. Raises RunError with what to do about it.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if not stat.S_ISDIR(path.parent.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder of this run")
        with suppress(FileNotFoundError):
            partial.unlink()  # left by a killed process of the same number
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666)
        try:
            with open(descriptor, "wb") as out:  # noqa: PTH123 - a descriptor, not a path
                yield out
                out.flush()
                os.fsync(descriptor)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
    except OSError as error:
        raise RunError(_explain(path, error)) from error


def _claim(output: Path) -> Path:
    """`output` as an empty folder of ours; made where it is missing."""
    try:
        if output.is_symlink() and not output.is_dir():
            raise UsageError(f"{output}: is a link to no folder. Choose another --output.")
        if output.exists():
            if not output.is_dir():
                raise UsageError(f"{output}: is a file. Choose another --output.")
            if any(output.iterdir()):
                raise UsageError(
                    f"{output}: is not empty, and nothing is overwritten. "
                    "Choose another --output, or empty it."
                )
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(_explain(output, error)) from error
    return output.resolve()


def _fresh(runs: Path, target: str, at: float) -> Path:
    """A folder that did not exist, below `runs`."""
    stem = Path(target).stem if target.endswith((".py", ".json", ".gz")) else target
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(at))}-{plain_name(stem)}"
    try:
        _refuse_planted(runs)
        with suppress(FileExistsError):
            runs.mkdir(parents=True)
            _ignore(runs)
        for suffix in ("", *(f"-{n}" for n in range(2, 100))):
            folder = runs / (name + suffix)
            with suppress(FileExistsError):
                folder.mkdir()
                return folder.resolve()
    except OSError as error:
        raise RunError(_explain(runs, error)) from error
    raise RunError(f"{runs / name}: a hundred runs of this name exist. Use --output DIR.")


def _ignore(runs: Path) -> None:
    """Tell git to leave this new folder out, unless another process has said something already."""
    with suppress(FileExistsError), (runs / ".gitignore").open("x", encoding="utf-8") as out:
        out.write(IGNORED)


def _unlink_ours(path: Path) -> None:
    """Remove a .gitignore in a folder of runs that goes, where nobody else wrote into either."""
    alone = [one.name for one in path.parent.iterdir()] == [path.name]
    if alone and not path.is_symlink() and path.read_text("utf-8", "replace") == IGNORED:
        path.unlink()


def _refuse_planted(runs: Path) -> None:
    """Raises RunError where `runs` is a link that someone else put there."""
    with suppress(FileNotFoundError):
        found = runs.lstat()
        if stat.S_ISLNK(found.st_mode) and hasattr(os, "getuid") and found.st_uid != os.getuid():
            raise RunError(f"{runs}: is another user's link. Use --output DIR.")


def make_folder(folder: Path) -> None:
    """Make a folder within the run folder; a link in its place, or its parent's, is refused.

    Raises RunError.
    """
    try:
        for path in (folder.parent, folder):
            if path == folder:
                with suppress(FileExistsError):
                    folder.mkdir()
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "something else is in its place")
    except OSError as error:
        raise RunError(_explain(folder, error)) from error


_REMEDIES = {
    errno.ENOSPC: "Free some space, or write elsewhere with --output DIR.",
    errno.EDQUOT: "Free some of your quota, or write elsewhere with --output DIR.",
    errno.EROFS: "Write elsewhere with --output DIR.",
    errno.EACCES: "Write elsewhere with --output DIR.",
    errno.EPERM: "Write elsewhere with --output DIR.",
}


def _explain(path: Path, error: OSError) -> str:
    remedy = _REMEDIES.get(error.errno or 0, "Check the path, or use --output DIR.")
    return f"{path}: can't be written ({error.strerror or error}). {remedy}"


MAX_BYTES = 64_000_000  # a sweep of a thousand trials writes 2 MB; decoded it takes ten times that
_REASON_LENGTH = 200  # it may quote what was found


def encode_report(report: Report) -> bytes:
    """Indented JSON. Numbers that JSON has no word for (nan, inf) become null.

    What stands in a path for bytes that are no UTF-8 becomes `?`, which no encoding refuses.
    """
    values = msgspec.to_builtins(report, enc_hook=plain_value)
    try:
        text = msgspec.json.encode(values)
    except UnicodeEncodeError:
        text = json.dumps(plain_value(values), ensure_ascii=False).encode("utf-8", "replace")
    text = msgspec.json.format(text, indent=2) + b"\n"
    return text if text.isascii() and b"\x7f" not in text else _escaped(text.decode()).encode()


def _escaped(text: str) -> str:
    """JSON with characters that steer a terminal or an editor written as escapes, all in strings.

    The encoder leaves C1 controls and direction overrides as they are; `--json -` may print them.
    """
    steering = {
        char
        for char in set(text) - {"\n"}
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")
    }
    return text.translate(
        {ord(char): json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f" for char in steering}
    )


def decode_report(text: bytes, *, source: Path) -> Report:
    """A report written by `encode_report`; fields that later versions add are skipped.

    Raises UsageError where it is not a report, or one of another schema.
    """
    try:
        head = msgspec.json.decode(text, type=_Head)
        if head.schema != SCHEMA:
            raise UsageError(
                f"{source}: has schema {head.schema[:40]!a}, and this version reads {SCHEMA!r}."
                if head.schema
                else f"{source}: not a loaderdoctor report (it names no schema). {NAME_A_RUN}"
            )
        msgspec.json.decode(text, type=_Closed)
        return msgspec.json.decode(text, type=Report)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = ascii(str(error))[1:-1][:_REASON_LENGTH]
        raise UsageError(f"{source}: not a loaderdoctor report ({reason}). {NAME_A_RUN}") from None


def read_report(run: Path) -> Report:
    """The report of a run folder, or of a report.json itself. Raises UsageError."""
    source = run / "report.json" if run.is_dir() else run
    try:
        with source.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise UsageError(
                f"{source}: not a loaderdoctor report (it is over {MAX_BYTES / 1e6:.0f} MB)."
            )
        return decode_report(text, source=source)
    except OSError as error:
        raise UsageError(
            f"{source}: can't be read ({error.strerror or error}). {NAME_A_RUN}"
        ) from None


def plain_value(value: object) -> Any:
    """A value that JSON knows: numpy scalars and arrays, enums, paths and mappings made plain."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


class _Head(msgspec.Struct):
    schema: str = ""


class _Settings(msgspec.Struct):
    settings: dict[str, Value] = {}


class _Closed(msgspec.Struct):
    """What the types of `Report` leave open, and its readers rely on."""

    loaders: tuple[_Settings, ...] = ()
    trials: tuple[_Settings, ...] = ()
