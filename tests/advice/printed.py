"""What a report prints for a script, taken out of its text again and put into the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loaderdoctor.advice.source import Source, called_name
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import StepFacts
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.instrument.system import source_lines
from loaderdoctor.instrument.wire.records import (
    ComputeRecord,
    LoaderRecord,
    ScriptRecord,
    TensorRecord,
    TransferRecord,
)
from loaderdoctor.report import model
from loaderdoctor.report.console import console_text
from tests.findings.builders import machine, with_exposed, workers
from tests.report import samples

SCRIPTS = Path(__file__).parent / "scripts"
PLACE = re.compile(r"^(?P<file>\S+\.py):(?P<line>\d+)$")


def scripts() -> list[Path]:
    return sorted(SCRIPTS.glob("*.py"))


def marked(text: str, mark: str) -> int | None:
    """The line with this comment."""
    lines = [
        n
        for n, line in enumerate(text.splitlines(), 1)
        if f"# {mark}" in line or ("#" in line and mark in line.rpartition("#")[2])
    ]
    return lines[0] if lines else None


def facts_of(path: Path, *, text: str | None = None, **changes: Any) -> Facts:
    """A run of this script that waits for its loader, as it would be recorded."""
    text = path.read_text() if text is None else text
    source = Source.of(str(path), text)
    assert source is not None
    line, loop = marked(text, "train loader"), marked(text, "train loop")
    assert line is not None
    call = next(
        (c for c in source.calls() if c.lineno == line and "oader" in called_name(c)),
        next(c for c in source.calls() if c.lineno == line),
    )
    statement = source.statement(call)
    moving = [c for c in source.calls() if called_name(c) == "to" and source.loops(c)]
    recorded: dict[str, Any] = {
        "id": f"{path.name}:{line}",
        "role": "train",
        "code": source_lines(str(path), statement.lineno, statement.end_lineno or 0)
        if path.exists()
        else source.code(statement),
        "loop": f"{path.name}:{loop}" if loop is not None else None,
        "dataset": _dataset(source, call),
        "n_samples": 32,
        "batch_size": 8,
        "sampler": "RandomSampler" if "shuffle=True" in source.code(call) else "SequentialSampler",
        "collate": "pad" if "collate_fn" in source.code(call) else "default_collate",
        "batch": tuple(
            TensorRecord(path=f"[{i}]", shape=(8, 4), dtype="float32", n_bytes=128)
            for i in range(len(moving) or 2)
        ),
        "batch_type": "Batch" if "class Batch:" in text else "list",
    }
    loader = LoaderRecord(**{**recorded, **changes.pop("loader", {})})
    moves = [
        TransferRecord(
            call="to",
            site=f"{path.name}:{c.lineno}",
            code=source.code(source.statement(c)),
            shape=(8, 4),
            dtype="float32",
            n_bytes=128,
            pinned=False,
            non_blocking=False,
            path=f"[{i}]",
        )
        for i, c in enumerate(moving)
    ]
    zero = next((c for c in source.calls() if called_name(c) == "zero_grad"), None)
    facts = with_exposed(
        input_=0.6,
        loaders=(loader,),
        transfers=tuple(moves),
        workers=workers(n_workers=0),
        machine=machine(),
        compute=ComputeRecord(
            n_steps=4,
            n_zero_fills=4,
            zero_fill_site=f"{path.name}:{zero.lineno}" if zero is not None else None,
        ),
        script=ScriptRecord(given=path.name, sources={str(path): text}),
    )
    assert isinstance(facts.step, StepFacts)
    built_anew = path.name in ("each_epoch.py", "inline.py", "helper.py")
    rebuilt = frozenset({loader.id} if built_anew else ())
    return replace(facts, step=replace(facts.step, rebuilt=rebuilt), **changes)


def _dataset(source: Source, call: ast.Call) -> str:
    classes = [x.name for x in ast.walk(source.tree) if isinstance(x, ast.ClassDef)]
    own = [name for name in classes if f"{name}(" in source.text and name != "Compose"]
    return "TensorDataset" if "TensorDataset(torch" in source.text or not own else own[0]


def finding(kind: Kind, text: str, name: str) -> Finding:
    """One of this kind, whose line is the script's hot one."""
    line = marked(text, "hot print") if kind is Kind.WORK_BETWEEN_STEPS else marked(text, "hot")
    evidence: dict[str, Any] = {"what": "print" if kind is Kind.WORK_BETWEEN_STEPS else "item"}
    if line is not None:
        evidence |= {"line": f"{name}:{line} (main)", "called_from": f"{name}:{line} (main)"}
    if kind is Kind.COLLATE_BOUND:
        evidence |= {"collate_library": "torch_geometric"}
    return Finding(
        kind=kind, severity=Severity.HIGH, share=0.5, summary="It costs.", evidence=evidence
    )


def printed(rows: Iterable[model.Recommendation], *, width: int = 80) -> str:
    """The report on a terminal of that width."""
    return console_text(samples.input_bound(recommendations=tuple(rows)), width=width)


def blocks(text: str) -> list[list[str]]:
    """Every block of code in the report: its place, and its lines without the report's indent."""
    found: list[list[str]] = []
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        place = lines[i].strip()
        if not PLACE.match(place):
            i += 1
            continue
        indent = len(lines[i]) - len(lines[i].lstrip())
        block = [place]
        i += 1
        while i < len(lines) and (not lines[i].strip() or lines[i][indent : indent + 1] in "+- "):
            if PLACE.match(lines[i].strip()):
                break
            block.append(lines[i][indent:])
            i += 1
        while block and not block[-1].strip():
            block.pop()
        found.append(block)
    return found


def applied(text: str, found: Sequence[Sequence[str]]) -> str:
    """The script with these blocks written in the places they name.

    Lines around a change may be those of another block; what one takes out no other does.
    """
    lines = text.split("\n")
    taken: set[int] = set()
    added: dict[int, list[str]] = {}  # in front of the line
    for place, *changes in found:
        at = int(place.rpartition(":")[2]) - 1
        for change in changes:
            if change.startswith("+"):
                added.setdefault(at, []).append(change[2:])
                continue
            assert lines[at].rstrip() == change[2:].rstrip(), (place, change)
            if change.startswith("-"):
                assert at not in taken, (place, change)
                taken.add(at)
            at += 1
    written: list[str] = []
    for at, line in enumerate([*lines, ""]):
        written += added.get(at, [])
        written += [line] if at < len(lines) and at not in taken else []
    return "\n".join(written)
