"""`loaderdoctor apply RUN [N…]`: a run's advice as a diff of the user's files, and written."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from loaderdoctor.errors import UsageError
from loaderdoctor.proving.advised import Advised, advised, script_of
from loaderdoctor.report.files import read_report, write_bytes

# Next to report.json: what was written, so that it can be taken back.
JOURNAL = "applied.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """A run folder and which of its changes; none: the first."""

    run: Path
    numbers: tuple[int, ...] = ()
    write: bool = False
    undo: bool = False


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """One file, before and after."""

    path: str
    before: str  # base64
    after: str


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """One `apply --write`."""

    when: float  # seconds since 1970
    changes: str
    files: tuple[Replaced, ...]


def apply(options: ApplyOptions) -> int:
    """Print the diff; write or take it back where asked to. The exit code.

    Raises UsageError where the report or the files do not allow it; nothing is written then.
    """
    if options.undo:
        return _undo(options.run)
    report = read_report(options.run)
    plan = advised(report, options.numbers)
    root = Path(script_of(report).cwd or ".")
    for edit in plan.edits:
        click.echo(edit.diff(root), nl=False)
    if options.write and plan.edits:
        _journal(options.run, plan)
        for edit in plan.edits:
            replace_file(edit.path, edit.after)
        click.echo(f"written: {', '.join(str(e.path) for e in plan.edits)}", err=True)
        click.echo(f"loaderdoctor apply --undo {options.run} takes it back", err=True)
    if plan.command is not None:
        click.echo(f"{'then run' if plan.edits else 'No file changes. Run'} it as:", err=True)
        click.echo(plan.command)
    if not options.write:
        more = f"loaderdoctor apply --write {options.run}{_numbers(options.numbers)} writes it; "
        proves = f"loaderdoctor prove {options.run}{_numbers(options.numbers)} tests it in a copy"
        click.echo(f"{more if plan.edits else ''}{proves}", err=True)
    return 0


def replace_file(path: Path, content: bytes) -> None:
    """The file with other content: whole or as it was, its mode kept, through links."""
    real = path.resolve()
    descriptor, part = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        shutil.copymode(real, part)
        Path(part).replace(real)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _numbers(numbers: Sequence[int]) -> str:
    return "".join(f" {n}" for n in numbers)


def _folder(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _read_journal(run: Path) -> list[Applied]:
    try:
        text = (_folder(run) / JOURNAL).read_bytes()
        return msgspec.json.decode(text, type=list[Applied])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{_folder(run) / JOURNAL}: can't be read ({error}).") from None


def _write_journal(run: Path, applied: Sequence[Applied]) -> None:
    write_bytes(_folder(run) / JOURNAL, msgspec.json.encode(applied))


def _journal(run: Path, plan: Advised) -> None:
    """Noted before anything is written: what is there can be had again, whatever happens."""
    files = tuple(
        Replaced(path=str(e.path), before=_text(e.before), after=_text(e.after)) for e in plan.edits
    )
    one = Applied(when=time.time(), changes=plan.titles, files=files)
    _write_journal(run, [*_read_journal(run), one])


def _undo(run: Path) -> int:
    """Take back what was written last; nothing of it where one of the files was changed since."""
    applied = _read_journal(run)
    if not applied:
        raise UsageError(f"{run}: nothing of this run was applied.")
    last = applied[-1]
    todo = []
    for file in last.files:
        path = Path(file.path)
        there = path.read_bytes() if path.exists() else None
        if there == base64.b64decode(file.before):
            continue  # it was never written, or is taken back already
        if there != base64.b64decode(file.after):
            raise UsageError(
                f"{path} was changed since the advice was written; nothing was taken back. "
                f"Its text of before is in {_folder(run) / JOURNAL}."
            )
        todo.append((path, base64.b64decode(file.before)))
    for path, before in todo:
        replace_file(path, before)
    _write_journal(run, applied[:-1])
    click.echo(f"taken back: {last.changes}", err=True)
    return 0


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
