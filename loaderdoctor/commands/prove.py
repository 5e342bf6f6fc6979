"""`loaderdoctor prove`: a script and its changed form in turns; what was got, and what was kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loaderdoctor.errors import EXIT_THRESHOLD, UsageError
from loaderdoctor.instrument.system.machine import gpus, usable_cpus
from loaderdoctor.proving.judge import Proof
from loaderdoctor.proving.page import headline, markdown, rows
from loaderdoctor.proving.trees import Tree, copied, root_of
from loaderdoctor.proving.turns import Side, Turns, in_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveOptions:
    """The changed script beside the script with its arguments."""

    script: Path
    changed: Path
    args: tuple[str, ...] = ()
    share: tuple[Path, ...] = ()
    how: Turns = field(default_factory=Turns)
    markdown: Path | None = None
    json_target: Path | None = None


def prove(options: ProveOptions) -> int:
    """Run both in turns and print the proof; exit code 3 where it is slower or trains otherwise.

    Raises UsageError for scripts that are not there or not in one folder, RunError for runs that
    fail.
    """
    for path in (options.script, options.changed):
        if not path.is_file():
            raise UsageError(f"{path}: no such script.")
    cwd = Path.cwd()
    root = root_of(options.script, cwd)
    if not options.changed.resolve().is_relative_to(root):
        raise UsageError(
            f"{options.changed} lies outside {root}, where {options.script} and what it imports "
            "are: put it there."
        )
    with tempfile.TemporaryDirectory(prefix="loaderdoctor-tree-") as folder:
        trees = [copied(root, Path(folder, name), shared=options.share) for name in ("a", "b")]
        proof = in_turns(
            _side(trees[0], options.script, options.args, cwd),
            _changed_side(trees[1], options, cwd),
            options.how,
            started=Console(stderr=True, markup=False).print,
        )
    show(proof, title=f"{options.script.name} → {options.changed.name}", options=options)
    return 0 if proof.faster() is not False and proof.numerics != "changed" else EXIT_THRESHOLD


def show(proof: Proof, *, title: str, options: ProveOptions, promised: float | None = None) -> None:
    """Print it, and write it where it was asked for."""
    console = Console(markup=False, highlight=False)
    console.print(Text(headline(proof, promised=promised), style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows(proof):
        table.add_row(*row)
    console.print(table)
    if options.markdown is not None:
        command = f"loaderdoctor prove --changed {options.changed} {options.script}"
        page = markdown(proof, title=title, machine=_machine(), command=command, promised=promised)
        options.markdown.write_text(page, encoding="utf-8")
    if options.json_target is not None:
        options.json_target.write_bytes(msgspec.json.encode(record(proof)))


def record(proof: Proof, *, promised: float | None = None) -> dict[str, object]:
    """The proof for programs; an end of an interval that is not known is null."""
    return {
        "schema": "loaderdoctor.proof/1",
        "before_ms": msgspec.to_builtins(proof.before_ms),
        "after_ms": msgspec.to_builtins(proof.after_ms),
        "speed_up": msgspec.to_builtins(proof.speed_up),
        "promised_speed_up": promised,
        "promise_kept": proof.keeps(promised),
        "numerics": proof.numerics,
        "same_batches": proof.same_batches,
        "kept": msgspec.to_builtins(proof.kept),
        "own": msgspec.to_builtins(proof.own),
    }


def _side(tree: Tree, script: Path, args: Sequence[str], cwd: Path) -> Side:
    inside = cwd.resolve().is_relative_to(tree.root)
    where = tree.here(cwd) if inside else tree.copy
    return Side(
        name="original",
        kind="script",
        target=os.path.relpath(tree.here(script), where),
        args=tuple(args),
        cwd=where,
    )


def _changed_side(tree: Tree, options: ProveOptions, cwd: Path) -> Side:
    """The changed script under the original's name: scripts look at their own and neighbours."""
    side = _side(tree, options.script, options.args, cwd)
    changed = tree.here(options.changed).read_bytes()
    tree.here(options.script).write_bytes(changed)
    return replace(side, name="changed")


def _machine() -> str:
    devices = ", ".join(gpu.name for gpu in gpus()) or "no GPU"
    return f"{usable_cpus():g} usable CPUs, {devices}."
