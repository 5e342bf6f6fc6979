"""Advice of a run as changes of the user's files: read from the report, laid over the files.

The report holds each change as it is printed: `train.py:34`, then lines `- old`, `+ new` and
unchanged ones. That, and a hash of every file as it ran, is all that is needed to write it.
"""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from loaderdoctor.errors import UsageError
from loaderdoctor.report.run_model import text_hash

_LINE_END = re.compile(r"(\r\n|\r|\n)")
_MARK = "\ufeff"  # of a file that begins with a byte order mark; no text that was read holds it
_PLACE = re.compile(r"^(?P<name>[^\s:][^:]*\.py):(?P<line>\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """Lines of one file that follow one another, and what they become."""

    name: str  # of the file, without its folder
    line: int  # the first, from 1
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def end(self) -> int:
        """The line behind the last."""
        return self.line + len(self.old)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """One file as it is and as it shall be, byte by byte."""

    path: Path
    before: bytes
    after: bytes

    def diff(self, root: Path) -> str:
        """Unified, with paths relative to `root`, as `patch` and git read it."""
        a, b = str(self.path), str(self.path)
        if self.path.is_relative_to(root):
            a, b = (f"{side}/{self.path.relative_to(root)}" for side in "ab")
        old, new = (_lines(_text(x)[0]) for x in (self.before, self.after))
        lines = difflib.unified_diff(old, new, a, b)
        return "".join(
            x if x.endswith(("\n", "\r")) else f"{x}\n\\ No newline at end of file\n" for x in lines
        )


def hunks(code: str) -> tuple[Hunk, ...]:
    """The changes that a piece of advice prints; () where it prints none that have a place."""
    found: list[Hunk] = []
    place: re.Match[str] | None = None
    old: list[str] = []
    new: list[str] = []

    def close() -> None:
        if place is not None and old != new:
            found.append(
                Hunk(name=place["name"], line=int(place["line"]), old=tuple(old), new=tuple(new))
            )

    for line in code.split("\n"):
        at = _PLACE.match(line)
        if at is not None:
            close()
            place, old, new = at, [], []
        elif line[:1] == "-":
            old.append(line[2:])
        elif line[:1] == "+":
            new.append(line[2:])
        else:
            old.append(line[2:])
            new.append(line[2:])
    close()
    return tuple(found)


def file_edits(
    changes: Sequence[Hunk], sources: Mapping[str, str], as_it_ran: Mapping[Path, bytes]
) -> tuple[FileEdit, ...]:
    """All changes together. `sources`: sha256 of each file's text as it ran, by path.

    `as_it_ran` stands for files that were written since.

    Raises UsageError, in one line that says what to do, for a file that is gone or has changed
    since the run, and for changes that meet in one line.
    """
    by_path: dict[str, list[Hunk]] = {}
    for hunk in dict.fromkeys(changes):
        by_path.setdefault(_path_of(hunk, sources, as_it_ran), []).append(hunk)
    return tuple(
        _edited(Path(path), sources[path], each, as_it_ran.get(Path(path)))
        for path, each in by_path.items()
    )


def _text(content: bytes) -> tuple[str, str]:
    """A file's text, with its mark where it has one, and the encoding that it declares."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    encoding = "utf-8" if encoding == "utf-8-sig" else encoding  # the mark stays part of the text
    return content.decode(encoding), encoding


def _lines(text: str) -> list[str]:
    """With their ends; str.splitlines also breaks at form feeds."""
    parts = _LINE_END.split(text)
    return [x for pair in zip(parts[::2], [*parts[1::2], ""], strict=True) if (x := "".join(pair))]


def _has(path: Path, hunk: Hunk, as_it_ran: bytes | None) -> bool:
    try:
        text, _ = _text(path.read_bytes() if as_it_ran is None else as_it_ran)
    except (OSError, UnicodeDecodeError, SyntaxError):
        return False
    there = _LINE_END.split(text.removeprefix(_MARK))[::2][hunk.line - 1 : hunk.end - 1]
    return [x.rstrip() for x in there] == [x.rstrip() for x in hunk.old]


def _path_of(hunk: Hunk, sources: Mapping[str, str], as_it_ran: Mapping[Path, bytes]) -> str:
    named = [x for x in sources if PurePath(x.replace("\\", "/")).name == hunk.name]
    if len(named) > 1:  # the one that has these lines there
        named = [x for x in named if _has(Path(x), hunk, as_it_ran.get(Path(x)))] or named
    if len(named) != 1:
        raise UsageError(
            f"{hunk.name}: the run read {len(named)} files of that name of yours; write this "
            "change by hand."
        )
    return named[0]


def _edited(path: Path, wanted: str, changes: Sequence[Hunk], as_it_ran: bytes | None) -> FileEdit:
    try:
        before = path.read_bytes() if as_it_ran is None else as_it_ran
        text, encoding = _text(before)
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise UsageError(f"{path}: can't be read ({error}).") from None
    mark = _MARK if text.startswith(_MARK) else ""
    parts = _LINE_END.split(text.removeprefix(_MARK))
    lines, ends = parts[::2], [*parts[1::2], ""]
    if text_hash("\n".join(lines)) != wanted:
        raise UsageError(
            f"{path} has changed since the run: its lines may be others. Run the diagnosis again."
        )
    usual = max(set(ends[:-1]), key=ends.count, default="\n")
    cores: list[tuple[int, int, tuple[str, ...]]] = []
    for hunk in changes:
        start = hunk.line - 1
        there = [line.rstrip() for line in lines[start : start + len(hunk.old)]]
        if there != [line.rstrip() for line in hunk.old]:
            raise UsageError(f"{path}:{hunk.line}: not the lines that the run read.")
        cores += (core for core in _cores(hunk) if core not in cores)
    reached = 0
    for start, end, _ in sorted(cores, key=lambda core: core[:2]):
        if start < reached:
            raise UsageError(
                f"{path.name}:{start + 1}: two of these changes meet there; apply one, then run "
                "the diagnosis again."
            )
        reached = end
    # From the end on; what is inserted in one place stays in the order in which it is listed.
    for _, (start, end, new) in sorted(
        enumerate(cores), key=lambda item: (*item[1][:2], item[0]), reverse=True
    ):
        kept = ends[start:end] if len(new) == end - start else [usual] * len(new)
        lines[start:end], ends[start:end] = new, kept
    ends = [x or usual for x in ends[:-1]] + [""]
    after = "".join(line + end for line, end in zip(lines, ends, strict=True))
    try:
        return FileEdit(path=path, before=before, after=(mark + after).encode(encoding))
    except UnicodeEncodeError as error:
        raise UsageError(f"{path}: {encoding} can't hold the change ({error}).") from None


def _cores(hunk: Hunk) -> list[tuple[int, int, tuple[str, ...]]]:
    """What is replaced, as first and last index, and by what: lines that stay are no part of it.

    They keep their ends, and blanks before them, which no report prints. Lines may stand for where
    new ones go, as two changes may say of one place.
    """
    start = hunk.line - 1
    matcher = difflib.SequenceMatcher(None, hunk.old, hunk.new, autojunk=False)
    return [
        (start + a, start + b, hunk.new[c:d])
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]
