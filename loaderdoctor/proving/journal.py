"""What `apply` wrote for a run, kept next to its report, so that it can be taken back."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loaderdoctor.errors import UsageError
from loaderdoctor.proving.edits import FileEdit
from loaderdoctor.report.files import write_bytes

# Next to report.json.
JOURNAL = "applied.json"


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """One file, before and after."""

    path: str
    before: str  # base64
    after: str

    @property
    def content_before(self) -> bytes:
        """Byte by byte."""
        return base64.b64decode(self.before)

    @property
    def content_after(self) -> bytes:
        """Byte by byte."""
        return base64.b64decode(self.after)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """One `apply --write`."""

    when: float  # seconds since 1970
    changes: str
    files: tuple[Replaced, ...]
    numbers: tuple[int, ...] = ()  # of the changes; (): not noted, or the first


def journal_of(run: Path) -> Path:
    """Where it lies for a run folder, or for its report.json."""
    return (run if run.is_dir() else run.parent) / JOURNAL


def read_journal(run: Path) -> list[Applied]:
    """The oldest first; [] where nothing was applied. Raises UsageError for a torn file."""
    file = journal_of(run)
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Applied])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{file}: can't be read ({error}).") from None


def write_journal(run: Path, applied: Sequence[Applied]) -> None:
    """In place of what is there."""
    write_bytes(journal_of(run), msgspec.json.encode(applied))


def note(run: Path, changes: str, numbers: Sequence[int], edits: Sequence[FileEdit]) -> None:
    """Before anything is written: what is there can be had again, whatever happens."""
    files = tuple(
        Replaced(path=str(e.path), before=_text(e.before), after=_text(e.after)) for e in edits
    )
    one = Applied(when=time.time(), changes=changes, files=files, numbers=tuple(numbers))
    write_journal(run, [*read_journal(run), one])


def standing(run: Path) -> tuple[tuple[int, ...], dict[Path, bytes]]:
    """Numbers of the changes that are written and still stand; their files as they were before."""
    numbers: list[int] = []
    before: dict[Path, bytes] = {}
    for one in reversed(read_journal(run)):
        there = {Path(x.path): _content(Path(x.path), before) for x in one.files}
        if one.files and all(there[Path(x.path)] == x.content_after for x in one.files):
            before |= {Path(x.path): x.content_before for x in one.files}
            numbers += one.numbers
    return tuple(sorted(set(numbers))), before


def _content(path: Path, known: dict[Path, bytes]) -> bytes | None:
    if path in known:
        return known[path]
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
