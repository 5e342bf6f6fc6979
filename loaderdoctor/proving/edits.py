"""Advice of a run as changes of the user's files: chosen by number, laid over the files.

The report holds each change as it is printed: `train.py:34`, then lines `- old`, `+ new` and
unchanged ones. That, and a hash of every file as it ran, is all that is needed to write it.
"""

from __future__ import annotations

import difflib
import io
import re
import shlex
import tokenize
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import UsageError
from loaderdoctor.proving import Promise
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import Script, text_hash
from loaderdoctor.report.words.changes import Change, changes_of
from loaderdoctor.secrets import MASK
from loaderdoctor.settings import AXES_BY_NAME, Settings

_LINE_END = re.compile(r"(\r\n|\r|\n)")
_MARK = "\ufeff"  # of a file that begins with a byte order mark; no text that was read holds it
# No line of code: those begin with `- `, `+ ` or blanks, whatever they end in.
_PLACE = re.compile(r"^(?![-+] )(?P<name>[^\s:][^:]*\.py):(?P<line>\d+)$")
_ENVIRONMENT = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$", re.DOTALL)


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
    _check_syntax(path, after)
    try:
        return FileEdit(path=path, before=before, after=(mark + after).encode(encoding))
    except UnicodeEncodeError as error:
        raise UsageError(f"{path}: {encoding} can't hold the change ({error}).") from None


def _check_syntax(path: Path, text: str) -> None:
    """Each change was compiled in its place; several of them together were not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the script's own lines deserve
        try:
            # Not only parsed: a `from __future__` that is no longer first is known here alone.
            compile(text, str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{path.name}: not Python any more with these changes together ({error}): apply "
                "one of them, then run the diagnosis again."
            ) from None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """What to write, and how to start the script then."""

    changes: tuple[Change, ...]
    edits: tuple[FileEdit, ...]
    command: str | None  # for a shell; None: as it was started
    promise: Promise | None  # None: not known, or of several changes together
    expected: str | None = None  # what the advice says of what is trained; None: it stays the same

    @property
    def titles(self) -> str:
        """The changes as the report calls them."""
        return "; ".join(change.title() for change in self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A command line, as far as the script sees it."""

    args: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def script_of(report: Report) -> Script:
    """How the report's script was run. Raises UsageError where it is not known."""
    if report.script is None:
        raise UsageError(
            f"The report of {report.target} does not say which files it read: only `diagnose` and "
            "`sweep` of a script do, from this version on. Run it again."
        )
    return report.script


def advised(
    report: Report, numbers: Sequence[int], *, as_it_ran: Mapping[Path, bytes] | None = None
) -> Advised:
    """The changes of these numbers, as "What to change" counts them; without any, the first.

    `as_it_ran`: files that advice was written into since, as they were before.

    Raises UsageError for a number that is not there, a change of which a part names no line of the
    script, and files that are no longer as they were.
    """
    script = script_of(report)
    listed = [change for change in changes_of(report.recommendations) if not change.is_idea]
    if not listed:
        raise UsageError("This report advises no change that can be written.")
    wanted = tuple(dict.fromkeys(numbers)) or (1,)
    for number in wanted:
        if not 1 <= number <= len(listed):
            raise UsageError(f"There is no change {number}: the report lists 1 to {len(listed)}.")
    chosen = tuple(listed[number - 1] for number in wanted)
    written = [_hunks_of(change) for change in chosen]
    commands = {row.command for change in chosen for row in change.rows if row.command}
    for change, found in zip(chosen, written, strict=True):
        if not found and not any(row.command for row in change.rows):
            raise UsageError(
                f"{change.title()}: the report knows no line of yours for it, or it belongs to an "
                f"installed package. Write it by hand.{_others(listed)}"
            )
        # Where all of it was measured together, a part of it is another change.
        left = [row for row in change.rows if not row.code and not row.command]
        if left:
            raise UsageError(
                f"{change.title()}: the report knows no line of yours for a part of it "
                f"({', '.join(row.setting for row in left)}). Write it by hand.{_others(listed)}"
            )
        if idea := _by_hand(change):
            raise UsageError(
                f"{change.title()}: the lines that the report knows are a part of it. {idea} "
                f"Write it by hand.{_others(listed)}"
            )
    if len(commands) > 1:
        raise UsageError("These changes set options of the script apart: apply one at a time.")
    if len(chosen) > 1:
        _check_together(chosen)
    return Advised(
        changes=chosen,
        edits=file_edits(
            [hunk for found in written for hunk in found], script.sources, as_it_ran or {}
        ),
        command=next(iter(commands), None),
        promise=_promise(chosen[0], report) if len(chosen) == 1 else None,
        expected="; ".join(dict.fromkeys(x.trains for x in chosen if x.trains)) or None,
    )


def words_of(script: Script, command: str | None) -> Words:
    """What to start the script with. Raises UsageError where an argument was not kept."""
    if command is None:
        words = Words(args=script.args)
    else:
        split = shlex.split(command)
        environment = {}
        while split and (match := _ENVIRONMENT.match(split[0])):
            environment[match["name"]] = match["value"]
            split.pop(0)
        n_before = 3 if script.module is not None else 2  # `python -m pkg.train`, `python train.py`
        # As long as it ran when it was measured: what the user is told to type ends sooner.
        added = script.args[: script.n_added_args]
        words = Words(args=(*added, *split[n_before:]), environment=environment)
    if any(MASK in arg for arg in words.args):
        raise UsageError(
            "The script had arguments that look like secrets, which no report keeps: run both "
            "forms by hand, with `loaderdoctor prove --changed`."
        )
    return words


def _others(listed: Sequence[Change]) -> str:
    """Which of the report's changes can be written, where any can."""
    can = [str(number) for number, change in enumerate(listed, 1) if _can_be_written(change)]
    if not can:
        return ""
    return f" Of this report's changes, {', '.join(can)} can be written."


def _by_hand(change: Change) -> str | None:
    """What is left to do beside its lines, which may gain nothing without it."""
    ideas = (row.idea for row in change.rows if row.code and row.to is not None and row.idea)
    return next(ideas, None)


def _can_be_written(change: Change) -> bool:
    """All of it: what no line or option is known for was measured with the rest."""
    if not all(row.code or row.command for row in change.rows) or _by_hand(change):
        return False
    return bool(_hunks_of(change)) or any(row.command for row in change.rows)


def _check_together(changes: Sequence[Change]) -> None:
    """Raise UsageError for settings of several changes that mean nothing, or break, together."""
    asked: dict[str, object] = {}
    for row in (row for change in changes for row in change.rows):
        if row.setting in AXES_BY_NAME and asked.setdefault(row.setting, row.to) != row.to:
            raise UsageError(f"These changes set {row.setting} to two values: apply one of them.")
    settings = Settings(**asked).over(Settings(num_workers=0))  # type: ignore[arg-type]
    # Workers may be what the script has; what needs them was measured with them.
    if not asked.get("num_workers"):
        settings = Settings(
            **{k: v for k, v in settings.changed().items() if not AXES_BY_NAME[k].needs_workers}  # type: ignore[arg-type]
        )
    reason = invalid_reason(settings, has_accelerator=True)
    if reason is not None:
        raise UsageError(f"These changes do not go together ({reason}): apply one of them.")


def _hunks_of(change: Change) -> list[Hunk]:
    codes = dict.fromkeys(row.code for row in change.rows if row.code)
    return [hunk for code in codes for hunk in hunks(code)]


def _promise(change: Change, report: Report) -> Promise | None:
    now_ms, predicted_ms = report.step.wall_ms, change.first.predicted_step_ms
    times = change.times_as_fast(now_ms)
    if times is not None:
        if (in_new_runs := change.first.speed_up_ci) is not None:
            return Promise(times=times, low=in_new_runs[0], high=in_new_runs[1])
        own_ms, between = change.own_ms(now_ms), change.first.measured_ci_ms  # of older reports
        if own_ms is None or between is None or between[0] <= 0.0:
            return Promise(times=times)
        return Promise(times=times, low=own_ms / between[1], high=own_ms / between[0])
    if not change.predicted_only or not now_ms or not predicted_ms:
        return None
    return Promise(times=now_ms / predicted_ms, at_best=change.is_bound)
