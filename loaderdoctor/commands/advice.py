"""`loaderdoctor apply` and `prove`: a run's advice as a diff, written, and tried in turns.

`prove` takes a changed script of the user's own too. It tells what was got, and what was kept.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loaderdoctor.commands.output import check_target, console_stream, write_file, write_json
from loaderdoctor.errors import EXIT_THRESHOLD, UsageError
from loaderdoctor.instrument.system.machine import gpus, usable_cpus
from loaderdoctor.proving import Promise, Proof
from loaderdoctor.proving.copies import Tree, copied, root_of
from loaderdoctor.proving.edits import Advised, advised, script_of, words_of
from loaderdoctor.proving.record import (
    headline,
    journal_of,
    keep,
    markdown,
    note,
    read_journal,
    record,
    rows,
    standing,
    write_journal,
)
from loaderdoctor.proving.turns import Side, Turns, in_turns
from loaderdoctor.report import read_report
from loaderdoctor.report.model import Report


def apply(
    run: Path, numbers: tuple[int, ...] = (), *, write: bool = False, undo: bool = False
) -> int:
    """Print the diff of these changes of a run; write or take it back where asked to.

    `numbers` empty: the first change. Returns the exit code. Raises UsageError where the report or
    the files do not allow it; nothing is written then.
    """
    if undo:
        return _undo(run)
    report, wanted = read_report(run), numbers or (1,)
    plan = _on_top(report, run, wanted) or advised(report, numbers)
    root = Path(script_of(report).cwd or ".")
    for edit in plan.edits:
        click.echo(edit.diff(root), nl=False)
    if plan.expected is not None:
        click.echo(f"training does not stay the same: {plan.expected}", err=True)
    if write and plan.edits:
        note(run, plan.titles, wanted, plan.edits)
        for edit in plan.edits:
            replace_file(edit.path, edit.after)
        click.echo(f"written: {', '.join(str(e.path) for e in plan.edits)}", err=True)
        click.echo(
            f"These lines have not run yet: loaderdoctor prove {run} runs both forms, "
            f"loaderdoctor apply --undo {run} takes it back",
            err=True,
        )
    if plan.command is not None:
        click.echo(f"{'then run' if plan.edits else 'No file changes. Run'} it as:", err=True)
        click.echo(plan.command)
    if not write:
        named = " ".join([str(run), *map(str, numbers)])
        writes = f"loaderdoctor apply --write {named} writes it; " if plan.edits else ""
        click.echo(f"{writes}loaderdoctor prove {named} tests it in a copy", err=True)
    return 0


def _on_top(report: Report, run: Path, wanted: Sequence[int]) -> Advised | None:
    """The changes together with those that are written already; None where none are.

    Raises UsageError where there is nothing left to write.
    """
    applied, before = standing(run)
    new = [number for number in wanted if number not in applied]
    if not applied or not before:
        return None
    if not new:
        raise UsageError(
            f"Change {', '.join(str(n) for n in wanted)} is written already; "
            f"loaderdoctor apply --undo {run} takes it back."
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
        if there == file.before:
            continue  # it was never written, or is taken back already
        if there != file.after:
            raise UsageError(
                f"{path} was changed since the advice was written; nothing was taken back. "
                f"Its text of before is in {journal_of(run)}."
            )
        todo.append((path, file.before))
    for path, before in todo:
        replace_file(path, before)
    write_journal(run, applied[:-1])
    click.echo(f"taken back: {last.changes}", err=True)
    return 0


# What torch's launcher tells a job of one process. Port 0: any that is free.
_ONE_RANK = {
    "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0",
    "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveOptions:
    """A script with its arguments beside `changed`; without it, a run folder and change numbers."""

    target: Path
    changed: Path | None = None
    words: tuple[str, ...] = ()
    share: tuple[Path, ...] = ()
    how: Turns = field(default_factory=Turns)
    markdown: Path | None = None
    json_target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What is run, and what becomes of one of its two copies."""

    title: str
    script: Path  # the main script of the user's
    module: str | None  # with -m
    cwd: Path
    args: tuple[str, ...]
    change: Callable[[Tree, Side], Side]
    as_it_ran: Mapping[Path, bytes] = field(default_factory=dict)  # files that were written since
    promise: Promise | None = None
    expected: str | None = None  # what the advice says of what is trained
    environment: Mapping[str, str] = field(default_factory=dict)  # of both
    command: str


def prove(options: ProveOptions) -> int:
    """Run both in turns and print the proof; exit code 3 where it is slower or trains otherwise.

    What the advice says that it does to training is no reason, unless losses are no numbers then.

    Raises UsageError for scripts that are not there or not in one folder and for changes that can't
    be written or lie in a shared folder, RunError for runs that fail.
    """
    check_target("--markdown", options.markdown)
    check_target("--json", options.json_target)
    task = _of_scripts(options) if options.changed is not None else _of_run(options)
    root = root_of(task.script, task.cwd)
    # A folder to share lies within the copied one, or in a working folder apart from it.
    shared = [x for x in options.share if not _only_in_cwd(x, root, task.cwd)]
    apart = [x for x in options.share if x not in shared]
    with tempfile.TemporaryDirectory(prefix="loaderdoctor-tree-") as folder:
        trees = [copied(root, Path(folder, name), shared=shared) for name in ("a", "b")]
        for tree in trees:
            for path, content in task.as_it_ran.items():
                tree.write(path, content)
        sides = [_side(tree, task, apart) for tree in trees]
        proof = in_turns(
            sides[0],
            replace(task.change(trees[1], sides[1]), name="changed"),
            options.how,
            started=Console(stderr=True, markup=False).print,
        )
    _show(proof, task, options)
    unexpected = proof.as_expected(task.expected) is False
    return EXIT_THRESHOLD if proof.faster() is False or unexpected else 0


def _only_in_cwd(path: Path, root: Path, cwd: Path) -> bool:
    full, folder = path.absolute(), cwd.resolve()
    return full.resolve().is_relative_to(folder) and not full.is_relative_to(root.resolve())


def _of_scripts(options: ProveOptions) -> _Task:
    script, changed = options.target, options.changed
    assert changed is not None
    for path in (script, changed):
        if not path.is_file():
            raise UsageError(f"{path}: no such script.")
    root = root_of(script, Path.cwd())
    if not changed.resolve().is_relative_to(root):
        raise UsageError(
            f"{changed} lies outside {root}, where {script} and what it imports are: put it there."
        )

    def under_its_name(tree: Tree, side: Side) -> Side:
        """Scripts look at their own name and neighbours."""
        tree.write(script, changed.read_bytes())
        return side

    return _Task(
        title=f"{script.name} → {changed.name}",
        script=script,
        module=None,
        cwd=Path.cwd(),
        args=options.words,
        change=under_its_name,
        command=f"loaderdoctor prove --changed {changed} {script}",
    )


def _of_run(options: ProveOptions) -> _Task:
    """The changes that a run advised, written into a copy."""
    report = read_report(options.target)
    script = script_of(report)
    if script.n_ranks > 1:
        raise UsageError("The run had several ranks; scripts of one process can be proven.")
    wrong = [word for word in options.words if not word.isdecimal()]
    if wrong:
        raise UsageError(
            f"{wrong[0]!r} is no number of a change. With a script, name the changed one: "
            f"loaderdoctor prove --changed FILE {options.target}"
        )
    applied, before = standing(options.target)
    plan = advised(report, [int(word) for word in options.words] or applied, as_it_ran=before)
    again = words_of(script, plan.command)

    def written(tree: Tree, side: Side) -> Side:
        for edit in plan.edits:
            tree.write(edit.path, edit.after)
        return replace(side, args=again.args, environment={**side.environment, **again.environment})

    return _Task(
        title=plan.titles,
        script=Path(next(iter(script.sources))),
        module=script.module,
        cwd=Path(script.cwd or "."),
        args=words_of(script, None).args,
        change=written,
        as_it_ran=before,
        environment=_ONE_RANK if script.launched else {},
        promise=plan.promise,
        expected=plan.expected,
        command=" ".join(["loaderdoctor prove", str(options.target), *options.words]),
    )


def _side(tree: Tree, task: _Task, shared: Sequence[Path]) -> Side:
    if task.cwd.resolve().is_relative_to(tree.root):
        where = tree.here(task.cwd)
    else:  # where relative paths of its arguments and data begin
        where = tree.copy.with_name(f"{tree.copy.name}-cwd")
        try:
            copied(task.cwd, where, shared=shared)
        except UsageError:
            if shared or where.exists():  # begun: it is not its size
                raise
            where.mkdir()
            Console(stderr=True, markup=False).print(
                f"{task.cwd} is too large to copy: the runs begin in an empty working folder. With "
                "--share FOLDER it is copied, and that folder is read where it is."
            )
    script = os.path.relpath(tree.here(task.script), where)
    return Side(
        name="original",
        kind="script" if task.module is None else "module",
        target=script if task.module is None else task.module,
        args=task.args,
        cwd=where,
        environment=task.environment,
        moved=(tree.root, tree.copy),
    )


def _show(proof: Proof, task: _Task, options: ProveOptions) -> None:
    """Print it, and write it where it was asked for, and into the run that advised it."""
    console = Console(file=console_stream(options.json_target), markup=False, highlight=False)
    console.print(Text(task.title))
    console.print(Text(headline(proof, promise=task.promise), style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows(proof, expected=task.expected):
        table.add_row(*row)
    console.print(table)
    if options.markdown is not None:
        devices = ", ".join(gpu.name for gpu in gpus()) or "no GPU"
        page = markdown(
            proof,
            title=task.title,
            machine=f"{usable_cpus():g} usable CPUs, {devices}.",
            command=task.command,
            promise=task.promise,
            expected=task.expected,
        )
        write_file(options.markdown, page.encode())
    found = record(proof, changes=task.title, promise=task.promise, expected=task.expected)
    write_json(options.json_target, msgspec.json.encode(found))
    if options.changed is None and options.target.is_dir():
        keep(options.target, found)
