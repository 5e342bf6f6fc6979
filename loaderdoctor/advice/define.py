"""New lines of a script that stand apart from the line they serve: classes, imports, switches."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.patch import BLANK_LINES, Editor
from loaderdoctor.advice.places import iterated
from loaderdoctor.advice.source import Source, unknown_names
from loaderdoctor.facts.whole import Facts
from loaderdoctor.settings import Value

# Modules that new code may read, under the name it reads them by.
_MODULES = {
    **{m: m for m in ("copy", "itertools", "numpy", "os", "torch", "torchvision")},
    "concurrent": "concurrent.futures",
}
_FLAG = "objects_frozen"


def define(editor: Editor, source: Source, node: ast.AST, code: str) -> None:
    """Put classes and functions into the module, above the statement that holds the node.

    With the imports they lack, and two blank lines around as the style guide has it; above comments
    that stand on the statement. Raises CannotEdit where the script has such a name of its own.
    """
    tree = ast.parse(code)
    new = {x.name for x in tree.body if isinstance(x, (ast.ClassDef, ast.FunctionDef))}
    taken = new & _names(source)
    if taken:
        raise CannotEdit(f"the script has a {', '.join(sorted(taken))} of its own")
    imports, at = lacking(source, code), _above_comments(source, source.top(node))
    last = source.imports_end
    if imports and last is not None and source.line_end(last) <= at:
        editor.insert(source, source.line_end(last), "\n".join(imports))
        imports = []
    text = "\n".join([*imports, *([""] * BLANK_LINES if imports else ()), code.strip()])
    editor.insert_apart(source, at, text)


def _above_comments(source: Source, statement: ast.stmt) -> int:
    """Where the statement begins, with the comments directly above it."""
    at = source.line_start(statement)
    while at:
        start = source.text.rfind("\n", 0, at - 1) + 1
        if not source.text[start:at].startswith("#"):
            break
        at = start
    return at


def statement_below_imports(editor: Editor, source: Source, lines: Sequence[str]) -> None:
    """Statements that run once, before all else. Raises CannotEdit."""
    last = source.imports_end
    if last is None:
        raise CannotEdit("the script begins without an import")
    text = "\n".join([*lacking(source, "\n".join(lines)), *lines])
    editor.insert(source, source.line_end(last), text)


def import_from(editor: Editor, source: Source, module: str, name: str) -> None:
    """`from MODULE import NAME` behind the first imports, unless the file has it."""
    known = any(
        isinstance(x, ast.ImportFrom)
        and x.module == module
        and any(a.name == name for a in x.names)
        for x in source.tree.body
    )
    last = source.imports_end
    if known:
        return
    if last is None:
        raise CannotEdit("the script begins without an import")
    editor.insert(source, source.line_end(last), f"from {module} import {name}")


def lacking(source: Source, code: str) -> list[str]:
    """The imports that this code needs and the file does not have."""
    needed = unknown_names(code)
    return [
        f"import {module}"
        for name, module in _MODULES.items()
        if name in needed and source.imports(name) != name
    ]


def _names(source: Source) -> set[str]:
    found = {x.id for x in ast.walk(source.tree) if isinstance(x, ast.Name)}
    defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return found | {x.name for x in ast.walk(source.tree) if isinstance(x, defined)}


def collector(editor: Editor, facts: Facts, value: Value) -> None:
    """Frozen: once, before the outermost loop. Manual: off there, asked for at each epoch's end.

    Raises CannotEdit where the loop is not in the script's own lines, or makes one pass only.
    """
    loader = facts.main_loader
    at = iterated(facts, loader) if loader is not None else None
    if at is None or value not in ("frozen", "manual"):
        raise CannotEdit("the loop over it was not found in the script")
    source = at.source
    # Outermost of the function that iterates: what calls it in a loop may do so for each epoch.
    outer = source.loops(at.loop)[-1] if source.loops(at.loop) else at.loop
    if not source.begins_line(outer) or not source.begins_line(at.loop):
        raise CannotEdit("the loop shares its line with other code")
    # Called for each epoch, a function freezes once. By a flag: under Python 3.12 a collection
    # alone makes gc.get_freeze_count() non-zero.
    flagged = value == "frozen" and outer is at.loop and source.function(at.loop) is not None
    if flagged and _FLAG in source.text:
        raise CannotEdit(f"the script has a {_FLAG} of its own")
    needed = ["import gc"] if source.imports("gc") != "gc" else []
    needed += ["", f"{_FLAG} = False"] if flagged else []
    if needed:
        statement_below_imports(editor, source, needed)
    above = source.indent(outer)
    if value == "frozen":
        once = [f"{above}gc.collect()", f"{above}gc.freeze()"]
        if flagged:
            inner = f"{above}{_one_level(above)}"
            once = [
                f"{above}global {_FLAG}",
                f"{above}if not {_FLAG}:",
                f"{inner}{_FLAG} = True",
                *(inner + x.strip() for x in once),
            ]
        editor.insert(source, source.line_start(outer), "\n".join(once))
        return
    editor.insert(source, source.line_start(outer), f"{above}gc.disable()")
    editor.insert(source, source.line_end(at.loop), f"{source.indent(at.loop)}gc.collect()")


def _one_level(indent: str) -> str:
    return "\t" if indent.startswith("\t") else "    "
