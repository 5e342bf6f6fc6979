"""A line of the loop's own that costs: written so that it waits for no device, or runs rarely."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from loaderdoctor.advice import loop_snippets
from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.patch import Editor, define, iterated, one_level
from loaderdoctor.advice.source import (
    Loop,
    Source,
    at_label,
    called_name,
    sources_of,
    within_strings,
)
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding

_LABEL = re.compile(r"^([^\s:]+:\d+)")
EVERY = 100  # steps, where work is to be done rarely
# Calls within another that change what they are called on.
_CHANGING = frozenset({
    "add", "append", "backward", "extend", "get_nowait", "next", "pop", "popleft", "put",
    "setdefault", "step", "update", "zero_grad",
})  # fmt: skip


def on_a_line(editor: Editor, facts: Facts, finding: Finding) -> None:
    """A line of the loop's own: read no value of the device, or do it rarely."""
    place = _place(facts, finding)
    what = finding.evidence.get("what")
    if what in ("item", "to-host", "metrics", None):
        _without_sync(editor, facts, *place)
    elif what in ("print", "tracking", "plot"):
        _rarely(editor, facts, *place)
    else:  # what is written, saved or sent may all be needed
        raise CannotEdit("it is no one line's change")


def _place(facts: Facts, finding: Finding) -> tuple[Source, int]:
    for name in ("called_from", "line", "spot", "site"):
        said = finding.evidence.get(name)
        match = _LABEL.match(said) if isinstance(said, str) else None
        place = at_label(sources_of(facts), match[1]) if match is not None else None
        if place is not None:
            return place
    raise CannotEdit("its line is not known")


def _without_sync(editor: Editor, facts: Facts, source: Source, line: int) -> None:
    """`total += loss.item()` as a sum that stays on the device; a number again behind the loop.

    Not in place: what had the sum by another name would go on with it. And as wide as the number
    is: 1,000 losses of 1.0 in bfloat16 come to 256.
    """
    sums = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.AugAssign) and node.lineno == line and _adds_item(node)
    ]
    if not sums:
        raise CannotEdit("it is no sum of .item()")
    if source.imports("torch") != "torch":
        raise CannotEdit("its module does not import torch")
    fed = [x.loop for loader in facts.feeding if (x := iterated(facts, loader)) is not None]
    define(editor, source, sums[0], loop_snippets.SUMMAND)
    for node in sums:
        name, head = ast.unparse(node.target), _without_item(source, node.value)
        loop = next((x for x in source.loops(node) if x in fed), None)
        if loop is None:
            raise CannotEdit("the loop over the loader, behind which it is a number, is not found")
        if _read_as_number(source, name, loop):
            raise CannotEdit(f"the loop reads {name} as a number")
        editor.replace(source, source.span(node), f"{name} = {name} + summand({head})")
        again = f"{name} = {name}.item() if torch.is_tensor({name}) else {name}  # a number again"
        editor.insert(source, source.line_end(loop), f"{source.indent(loop)}{again}")


def _adds_item(node: ast.AugAssign) -> bool:
    """Whether it is `total += loss.item()`, of a plain name."""
    value = node.value
    return (
        isinstance(node.target, ast.Name)
        and isinstance(node.op, ast.Add)
        and isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "item"
        and not value.args
    )


def _without_item(source: Source, value: ast.expr) -> str:
    """`loss` of `loss.item()`."""
    assert isinstance(value, ast.Call)
    assert isinstance(value.func, ast.Attribute)
    return source.code(value.func.value)


def _read_as_number(source: Source, name: str, loop: Loop) -> bool:
    """Whether the loop, or another function, reads the sum: json, or a list, gets no tensor."""
    function, within = source.function(loop), set(ast.walk(loop))
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
            continue
        around = list(source.around(node))
        if source.function(node) is not function:
            if function in around or (function is None and not source.hides(name, node)):
                return True
        elif node in within and not _formatted(around):
            return True
    return False


def _formatted(around: Sequence[ast.AST]) -> bool:
    """Whether a formatted text alone reads what stands in these: that is the same of a tensor."""
    for at in around:
        if isinstance(at, ast.FormattedValue):
            return at.conversion == -1 and (at is around[0] or at.format_spec is not None)
        if not isinstance(at, (ast.BinOp, ast.UnaryOp)):
            return False
    return False


def _rarely(editor: Editor, facts: Facts, source: Source, line: int) -> None:
    """A statement of the loop over `enumerate(loader)`, under `if step % 100 == 0:`."""
    statements = [
        x
        for x in ast.walk(source.tree)
        if isinstance(x, ast.stmt) and x.lineno <= line <= (x.end_lineno or x.lineno)
    ]
    node = max(statements, key=lambda x: x.lineno, default=None)
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        raise CannotEdit("it is more than a call")
    if not source.begins_line(node):
        raise CannotEdit("it shares its line")
    if any(map(_does_more, ast.walk(node))):
        raise CannotEdit("it does more than tell")
    # Another loop around it counts folds, or what a batch holds.
    fed = [x.loop for loader in facts.feeding if (x := iterated(facts, loader)) is not None]
    around = source.loops(node)
    for loop in (x for x in fed if x in around):
        counted = isinstance(loop.iter, ast.Call) and called_name(loop.iter) == "enumerate"
        if counted and isinstance(loop.target, ast.Tuple):
            counter = loop.target.elts[0]
            if isinstance(counter, ast.Name):
                start, end = source.line_start(node), source.line_end(node)
                indent = source.indent(node)
                kept, level = within_strings(source.text), one_level(indent)
                lines = enumerate(source.text[start:end].rstrip("\n").split("\n"), node.lineno)
                moved = "".join(f"{'' if n in kept else level}{x}\n" for n, x in lines)
                head = f"{indent}if {counter.id} % {EVERY} == 0:\n"
                editor.replace(source, (start, end), head + moved)
                return
    raise CannotEdit("the loop does not count its steps")


def _does_more(node: ast.AST) -> bool:
    """Whether every step needs it: `print(n := x.item())`, `print(next(batches))`."""
    if isinstance(node, ast.Call):
        return called_name(node) in _CHANGING
    return isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
