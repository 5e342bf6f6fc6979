"""`loaderdoctor apply RUN [N…]`: a run's advice as a diff of the user's files, and written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from loaderdoctor.errors import UsageError
from loaderdoctor.proving.advised import Advised, advised, script_of
from loaderdoctor.proving.journal import journal_of, note, read_journal, standing, write_journal
from loaderdoctor.report.files import read_report
from loaderdoctor.report.model import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """A run folder and which of its changes; none: the first."""

    run: Path
    numbers: tuple[int, ...] = ()
    write: bool = False
    undo: bool = False


def apply(options: ApplyOptions) -> int:
    """Print the diff; write or take it back where asked to. The exit code.

    Raises UsageError where the report or the files do not allow it; nothing is written then.
    """
    if options.undo:
        return _undo(options.run)
    report = read_report(options.run)
    plan = _on_top(report, options) or advised(report, options.numbers)
    root = Path(script_of(report).cwd or ".")
    for edit in plan.edits:
        click.echo(edit.diff(root), nl=False)
    if plan.expected is not None:
        click.echo(f"training does not stay the same: {plan.expected}", err=True)
    if options.write and plan.edits:
        note(options.run, plan.titles, options.numbers or (1,), plan.edits)
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


def _on_top(report: Report, options: ApplyOptions) -> Advised | None:
    """The changes together with those that are written already; None where none are.

    Raises UsageError where there is nothing left to write.
    """
    applied, before = standing(options.run)
    wanted = options.numbers or (1,)
    new = [number for number in wanted if number not in applied]
    if not applied or not before:
        return None
    if not new:
        raise UsageError(
            f"Change {', '.join(str(n) for n in wanted)} is written already; "
            f"loaderdoctor apply --undo {options.run} takes it back."
        )
    plan = advised(report, new, as_it_ran=before)
    both = advised(report, [*applied, *new], as_it_ran=before)
    edits = (replace(edit, before=edit.path.read_bytes()) for edit in both.edits)
    return replace(plan, edits=tuple(edit for edit in edits if edit.before != edit.after))


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


def _undo(run: Path) -> int:
    """Take back what was written last; nothing of it where one of the files was changed since."""
    applied = read_journal(run)
    if not applied:
        raise UsageError(f"{run}: nothing of this run was applied.")
    last = applied[-1]
    todo = []
    for file in last.files:
        path = Path(file.path)
        there = path.read_bytes() if path.exists() else None
        if there == file.content_before:
            continue  # it was never written, or is taken back already
        if there != file.content_after:
            raise UsageError(
                f"{path} was changed since the advice was written; nothing was taken back. "
                f"Its text of before is in {journal_of(run)}."
            )
        todo.append((path, file.content_before))
    for path, before in todo:
        replace_file(path, before)
    write_journal(run, applied[:-1])
    click.echo(f"taken back: {last.changes}", err=True)
    return 0
