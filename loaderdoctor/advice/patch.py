"""Changes of the user's files, tried by compiling them in place, and as they are printed.

What is printed is the difference between the file and the changed file, in the file's own lines
and indents; so whoever writes it there gets the file that was tried. New lines may stand apart from
the line they serve: classes, imports, switches; and what takes batches, where the loop iterates.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loaderdoctor.advice.built import built
from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.source import (
    Source,
    at_label,
    called_name,
    sources_of,
    unknown_names,
    unwarned,
)
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Value

# Lines that two changes have between them at most for both to be shown as one.
MAX_BETWEEN = 3
# Around classes and functions of a module, as PEP 8 and linters want them.
BLANK_LINES = 2
# Modules that new code may read, under the name it reads them by.
_MODULES = {
    **{m: m for m in ("copy", "gc", "itertools", "numpy", "os", "torch", "torchvision")},
    "concurrent": "concurrent.futures",
}
_FLAG = "objects_frozen"


@dataclass(frozen=True, slots=True)
class Patch:
    """Files as they are and as they shall be. Every one of them compiles."""

    files: tuple[tuple[Source, str], ...]

    def printed(self) -> str:
        """Each place with its line, then `- old`, `+ new` and unchanged lines."""
        return "\n".join(
            line for source, after in self.files for line in _hunks(source, after.split("\n"))
        )


class Editor:
    """Collects changes of files. Nothing is written anywhere."""

    def __init__(self) -> None:
        self._edits: dict[Source, list[tuple[int, int, str]]] = {}
        self._definitions: dict[tuple[Source, int], list[str]] = {}

    @property
    def changes(self) -> bool:
        """Whether anything is to be changed."""
        return bool(self._edits)

    def replace(self, source: Source, span: tuple[int, int], text: str) -> None:
        """Put `text` where that part of the file stands."""
        self._edits.setdefault(source, []).append((*span, text))

    def insert(self, source: Source, at: int, text: str) -> None:
        """Put whole lines in front of the line that begins at `at`; the same text once only."""
        before = source.text[:at]
        gap = "\n" if before and not before.endswith("\n") else ""
        edit = (at, at, f"{gap}{text.rstrip()}\n")
        if edit not in self._edits.get(source, []):
            self._edits.setdefault(source, []).append(edit)

    def insert_apart(self, source: Source, at: int, text: str) -> None:
        """As `insert`, of definitions: with blank lines above and below, however many there are."""
        there = self._definitions.setdefault((source, at), [])
        if text.strip() in there:
            return
        above, below = source.text[:at], source.text[at:]
        gap = BLANK_LINES + 1 - (len(above) - len(above.rstrip("\n")))
        gap = max(0, gap) if above.strip() and not there else 0
        after = BLANK_LINES - (len(below) - len(below.lstrip("\n"))) if below.strip() else 0
        there.append(text.strip())
        edit = (at, at, "\n" * gap + text.strip() + "\n" * (1 + max(0, after)))
        self._edits.setdefault(source, []).append(edit)

    def patch(self) -> Patch:
        """All of them together.

        Raises CannotEdit where they meet, do not compile, or read names that are bound nowhere.
        """
        files = []
        for source, edits in self._edits.items():
            after, reached = [], 0
            for start, end, text in sorted(edits, key=lambda x: x[:2]):
                if start < reached:
                    raise CannotEdit("two changes meet in one line")
                after += [source.text[reached:start], text]
                reached = end
            text = "".join((*after, source.text[reached:]))
            if text != source.text:
                _check(source, text)
                files.append((source, text))
        if not files:
            raise CannotEdit("the script has it already")
        return Patch(tuple(files))


def _check(source: Source, after: str) -> None:
    try:
        with unwarned():
            compile(after, source.name, "exec", dont_inherit=True)
        unknown = unknown_names(after) - unknown_names(source.text)
    except (SyntaxError, ValueError) as error:
        raise CannotEdit(f"the changed script does not compile: {error}") from None
    if unknown:
        raise CannotEdit(f"the script has no {', '.join(sorted(unknown))}")


def _hunks(source: Source, after: Sequence[str]) -> Iterator[str]:
    before = source.text.split("\n")
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    groups: list[list[tuple[str, int, int, int, int]]] = []
    for code in matcher.get_opcodes():
        if code[0] == "equal":
            continue
        if groups and code[1] - groups[-1][-1][2] <= MAX_BETWEEN:
            groups[-1].append(code)
        else:
            groups.append([code])
    for group in groups:
        first = group[0]
        yield f"{source.name}:{first[1] + 1}"
        at = first[1]
        for _, a, b, c, d in group:
            yield from (f"  {line}".rstrip() for line in before[at:a])
            yield from (f"- {line}".rstrip() for line in before[a:b])
            yield from (f"+ {line}".rstrip() for line in after[c:d])
            at = b
        if all(a == b for _, a, b, _, _ in group) and at < len(before):  # where the lines go
            yield f"  {before[at]}".rstrip()


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
    code = "\n".join(lines)
    imports = lacking(source, code)
    if not imports and not all(source.has_at(x, last) for x in unknown_names(code) & set(_MODULES)):
        raise CannotEdit("the script imports what it reads among what it runs")
    editor.insert(source, source.line_end(last), "\n".join([*imports, *lines]))


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
    """The imports that this code needs and the file does not have.

    Raises CannotEdit where the file uses the name of one for something else.
    """
    needed = unknown_names(code)
    names = [name for name in _MODULES if name in needed and source.imports(name) != name]
    for name in names:
        if source.binds_otherwise(name):
            raise CannotEdit(f"the script has a {name} of its own")
    return [f"import {_MODULES[name]}" for name in names]


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
    needed = lacking(source, "gc")
    needed += ["", f"{_FLAG} = False"] if flagged else []
    if needed:
        statement_below_imports(editor, source, needed)
    above = source.indent(outer)
    if value == "frozen":
        once = [f"{above}gc.collect()", f"{above}gc.freeze()"]
        if flagged:
            inner = f"{above}{one_level(above)}"
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


def one_level(indent: str) -> str:
    """What a block within that indent begins with."""
    return "\t" if indent.startswith("\t") else "    "


@dataclass(frozen=True, slots=True)
class Iterated:
    """The expression whose batches the loop takes: the `loader` of `enumerate(tqdm(loader))`."""

    source: Source
    loader: ast.expr
    loop: ast.For | ast.AsyncFor


def iterated(facts: Facts, loader: LoaderRecord) -> Iterated | None:
    """Where the loop takes its batches: as it was seen, else the one place that names it."""
    sources = sources_of(facts)
    made = built(facts, loader)
    builder = made.source.function(made.call) if made is not None else None
    by = builder.name if builder is not None else None

    def leaf(loop: ast.For | ast.AsyncFor) -> ast.expr | None:
        return _leaf(loop.iter, by, sources)

    if loader.loop is not None and (found := at_label(sources, loader.loop)) is not None:
        source, line = found
        loops = [
            x
            for x in _fors(source)
            if x.iter.lineno <= line <= (x.iter.end_lineno or x.iter.lineno)
        ]
    elif made is None:
        return None
    else:
        source, name = made.source, made.name
        loops = [
            x
            for x in _fors(source)
            if (made.call in ast.walk(x.iter) if name is None else _is(source, leaf(x), name))
        ]
    if len(loops) != 1 or (batches := leaf(loops[0])) is None:
        return None
    return Iterated(source, batches, loops[0])


def left_early(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether its body says how the loop may end before its batches do."""

    def leaves(node: ast.AST, *, inner: bool) -> bool:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            return False
        if isinstance(node, (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)):
            return True
        if isinstance(node, ast.Break):
            return not inner
        if isinstance(node, ast.Call) and called_name(node) in ("exit", "quit"):
            return True
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            within = any(leaves(x, inner=True) for x in node.body)
            return within or any(leaves(x, inner=inner) for x in node.orelse)
        return any(leaves(x, inner=inner) for x in ast.iter_child_nodes(node))

    return any(leaves(x, inner=False) for x in loop.body)


def _fors(source: Source) -> Iterator[ast.For | ast.AsyncFor]:
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            yield node


def _is(source: Source, node: ast.expr | None, name: str) -> bool:
    return node is not None and source.code(node) == name


# What gives something else than the batches of its first argument, one by one.
_NO_WRAPPERS = frozenset({
    "chain", "filter", "len", "list", "map", "product", "range", "reversed", "sorted", "starmap",
    "tuple", "zip", "zip_longest",
})  # fmt: skip


def _leaf(node: ast.expr, builder: str | None, sources: Sequence[Source]) -> ast.expr | None:
    """The loader in what wraps it; None where that can't be told (`zip` of several).

    `builder`: the function that builds it, whose arguments are none.
    """
    while isinstance(node, ast.Call) and node.args:
        name = called_name(node)
        if name.endswith("DataLoader") or name == builder:
            return node
        if name in _NO_WRAPPERS or isinstance(node.args[0], ast.Starred):
            return None
        if any(f"def {name}(" in x.text and _asks_more(x, name) for x in sources):
            return None
        node = node.args[0]
    return node if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else None


def _asks_more(source: Source, name: str) -> bool:
    """Whether a function of that name asks its first argument for more than its batches."""
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef) or function.name != name:
            continue
        names = [x.arg for x in (*function.args.posonlyargs, *function.args.args)]
        given = next((x for x in names if x not in ("self", "cls")), None)
        for use in ast.walk(function):
            if not isinstance(use, ast.Name) or use.id != given:
                continue
            owner = source.parents[use]
            sized = isinstance(owner, ast.Call) and called_name(owner) == "len"
            if sized or isinstance(owner, (ast.Attribute, ast.Subscript)):
                return True
    return False
