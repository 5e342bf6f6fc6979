"""Files of the user's as they were when they ran: their tree, and which names exist where."""

from __future__ import annotations

import ast
import builtins
import io
import symtable
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import PurePath

from loaderdoctor.advice.call_edit import span_of
from loaderdoctor.facts import Facts

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)
_ENDS_IMPORTS = (
    *_FUNCTIONS, ast.ClassDef, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith,
)  # fmt: skip
_OF_MODULES = {"__name__", "__file__", "__doc__", "__spec__", "__package__", "__builtins__"}

Loop = ast.For | ast.AsyncFor | ast.While


@contextmanager
def unwarned() -> Iterator[None]:
    """Parse without what the script's own lines deserve: Python says so when it runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True, eq=False)
class Source:
    """One file."""

    path: str
    text: str
    tree: ast.Module = field(repr=False)

    @classmethod
    def of(cls, path: str, text: str) -> Source | None:
        """None where the text is no Python."""
        try:
            with unwarned():
                return cls(path, text, ast.parse(text))
        except (SyntaxError, ValueError):
            return None

    @property
    def name(self) -> str:
        """`train.py`."""
        return PurePath(self.path.replace("\\", "/")).name

    def holds(self, call: ast.Call, places: Iterable[tuple[str, int]]) -> bool:
        """Whether one of these files and lines lies in this file's call."""
        last = call.end_lineno or call.lineno
        return any(file == self.path and call.lineno <= line <= last for file, line in places)

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        """What each node stands in."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What the node stands in, innermost first; not the module."""
        at = self.parents.get(node)
        while at is not None and not isinstance(at, ast.Module):
            yield at
            at = self.parents.get(at)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds the node, or is it."""
        return next(x for x in (node, *self.around(node)) if isinstance(x, ast.stmt))

    def top(self, node: ast.AST) -> ast.stmt:
        """The statement of the module that holds the node."""
        *_, last = (node, *self.around(node))
        assert isinstance(last, ast.stmt)
        return last

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function whose body the node stands in."""
        return next((x for x in self.around(node) if isinstance(x, _FUNCTIONS)), None)

    def loops(self, node: ast.AST) -> tuple[Loop, ...]:
        """Loops around the node within its function, innermost first."""
        found: list[Loop] = []
        for at in self.around(node):
            if isinstance(at, _SCOPES):
                break
            if isinstance(at, (ast.For, ast.AsyncFor, ast.While)):
                found.append(at)
        return tuple(found)

    def code(self, node: ast.expr | ast.stmt) -> str:
        """Its text as written."""
        return self.text[slice(*self.span(node))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where its text stands, in characters."""
        return span_of(self.text, node)

    def line_start(self, node: ast.stmt) -> int:
        """Where the statement's first line begins, decorators included."""
        first = min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", ()))])
        return sum(len(line) + 1 for line in self.text.split("\n")[: first - 1])

    def line_end(self, node: ast.stmt) -> int:
        """Where the line begins that follows the statement's last."""
        lines = self.text.split("\n")
        return min(len(self.text), sum(len(line) + 1 for line in lines[: node.end_lineno]))

    def indent(self, node: ast.stmt) -> str:
        """What stands before its first line."""
        line = self.text.split("\n")[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def begins_line(self, node: ast.stmt) -> bool:
        """Whether nothing but its indent stands before it, and nothing of another behind."""
        start, end = self.span(node)
        before = self.text[self.text.rfind("\n", 0, start) + 1 : start]
        behind = self.text[end:].partition("\n")[0].strip()
        return not before.strip() and (not behind or behind.startswith("#"))

    def calls(self) -> Iterator[ast.Call]:
        """Every call, in the order of the text."""
        found = [x for x in ast.walk(self.tree) if isinstance(x, ast.Call)]
        return iter(sorted(found, key=lambda x: (x.lineno, x.col_offset)))

    def bound_before(self, name: str, node: ast.AST) -> bool:
        """Whether `name` has a value where the node runs: as far as lines tell."""
        line = self.statement(node).lineno
        function = self.function(node)
        while function is not None:
            if name in parameters_of(function) or line > _first_bound(function, name):
                return True
            function = self.function(function)
        limit = line if self.function(node) is None else float("inf")
        return hasattr(builtins, name) or _first_bound(self.tree, name) < limit

    def imports(self, module: str) -> str | None:
        """By which name the file reads a module: `torch`, `np`; None where it doesn't import it."""
        for node in self.tree.body:
            for alias in node.names if isinstance(node, ast.Import) else ():
                if alias.name == module and (alias.asname or "." not in module):
                    return alias.asname or alias.name
                if alias.asname is None and alias.name.startswith(f"{module}."):
                    return module
        return None

    def binds_otherwise(self, module: str) -> bool:
        """Whether the file's own code gives a module's name to something else than the module."""
        for node in ast.walk(self.tree):
            for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                is_it = isinstance(node, ast.Import) and alias.name.partition(".")[0] == module
                if (alias.asname or alias.name) == module and not is_it:
                    return True
            name = node.name if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            if name == module and self.function(node) is None:
                return True
        return False

    def hides(self, name: str, node: ast.AST) -> bool:
        """Whether a function around the node has a value of its own for the name."""
        function = self.function(node)
        while function is not None:
            if name in parameters_of(function) or _first_bound(function, name) < float("inf"):
                return True
            function = self.function(function)
        return False

    def is_of(self, package: str, called: ast.expr) -> bool:
        """Whether the file imports what is called, or a module that it is read from, from there."""
        while isinstance(called, ast.Attribute):
            called = called.value
        imports = (x for x in ast.walk(self.tree) if isinstance(x, (ast.Import, ast.ImportFrom)))
        for node in imports:
            for alias in node.names:
                module = alias.name if isinstance(node, ast.Import) else node.module or ""
                bound = alias.asname or alias.name.partition(".")[0]
                if isinstance(called, ast.Name) and bound == called.id:
                    return module.partition(".")[0] == package
        return False

    @property
    def imports_end(self) -> ast.stmt | None:
        """The last import before anything is defined or done in a loop; else the docstring.

        Among imports a script sets what others read: `os.environ`, `sys.path`.
        """
        last = None
        for i, node in enumerate(self.tree.body):
            if isinstance(node, _ENDS_IMPORTS):
                break
            docstring = (
                i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            )
            if docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
                last = node
        return last

    def has_at(self, name: str, node: ast.stmt) -> bool:
        """Whether the module has bound the name once this statement of it has run."""
        return _first_bound(self.tree, name) <= (node.end_lineno or node.lineno)


def sources_of(facts: Facts) -> tuple[Source, ...]:
    """The files of this run that are known, the main script first."""
    script = facts.script
    if script is None:
        return ()
    found = (_source(path, text) for path, text in script.sources.items())
    return tuple(x for x in found if x is not None)


@cache
def _source(path: str, text: str) -> Source | None:
    """Of the one script of this process, asked for with every change that is considered."""
    return Source.of(path, text)


def at_label(sources: Iterable[Source], label: str) -> tuple[Source, int] | None:
    """`train.py:41`, or `train.py:41#2`, as file and line; None where no one file has that name."""
    name, _, line = label.partition("#")[0].rpartition(":")
    named = [x for x in sources if x.name == name]
    return (named[0], int(line)) if len(named) == 1 and line.isdigit() else None


def within_strings(text: str) -> set[int]:
    """Lines that begin within a text of several lines: an indent would change it."""
    found: set[int] = set()
    begun: list[int] = []  # where formatted strings begin, which Python 3.12 takes apart
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):
            begun.append(token.start[0])
        first = begun.pop() if kind.endswith("STRING_END") else token.start[0]
        if "STRING" in kind:
            found |= set(range(first + 1, token.end[0] + 1))
    return found


def called_name(call: ast.Call) -> str:
    """The last part of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def names_in(node: ast.AST) -> frozenset[str]:
    """The names that it reads."""
    return frozenset(
        x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)
    )


def unknown_names(text: str) -> frozenset[str]:
    """Names that are read and nowhere bound from where they could be read.

    None are where the file imports `*`: it may bind any. Raises SyntaxError.
    """
    with unwarned():
        tree = ast.parse(text)
        module = symtable.symtable(text, "<script>", "exec")
    if any(
        isinstance(x, ast.ImportFrom) and any(a.name == "*" for a in x.names)
        for x in ast.walk(tree)
    ):
        return frozenset()
    tables = [module]
    for table in tables:
        tables += table.get_children()
    bound = set(_OF_MODULES) | set(dir(builtins))
    for table in tables:
        for symbol in table.get_symbols():
            here = table is module or symbol.is_declared_global()
            if here and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                bound.add(symbol.get_name())
    return frozenset(
        symbol.get_name()
        for table in tables
        for symbol in table.get_symbols()
        if symbol.is_referenced()
        and (table is module or symbol.is_global())
        and symbol.get_name() not in bound
    )


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {x.arg for x in every if x is not None}


def _first_bound(scope: ast.AST, name: str) -> float:
    """The line where the scope's own code first binds the name; infinite where it never does."""
    lines = [float("inf")]
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            if node.name == name:
                lines.append(node.lineno)
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            lines.append(node.end_lineno or node.lineno)
        if isinstance(node, ast.alias) and name == (node.asname or node.name.partition(".")[0]):
            lines.append(node.lineno)
        todo += ast.iter_child_nodes(node)
    return min(lines)
