"""One-line remedies of a dataset's or collate function's hot line, written into the script."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.fit_hoisted import (
    TO_TENSOR,
    Function,
    Said,
    calls_on,
    columns_once,
    lists_once,
)
from loaderdoctor.advice.patch import Editor, lacking
from loaderdoctor.advice.source import Source, called_name, sources_of
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LineHotspot
from loaderdoctor.instrument.wire.records import LoaderRecord

# What makes a NumPy array of something, as a method.
_MAKES_ARRAYS = {"numpy", "to_numpy", "astype"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """A remedy of one line."""

    title: str
    idea: str
    code: str
    caution: str | None = None


def line_change(facts: Facts, hotspot: LineHotspot) -> LineChange | None:
    """What makes this line cheaper; None where nothing is known to, or to fit."""
    source = _source(facts, hotspot)
    loader = facts.main_loader
    if source is None or loader is None:
        return None
    for remedy in _REMEDIES:
        editor = Editor()
        try:
            title, idea, caution = remedy(editor, source, hotspot.line, loader)
            code = editor.patch().printed()
        except CannotEdit:
            continue
        return LineChange(title=title, idea=idea, code=code, caution=caution)
    return None


def _source(facts: Facts, hotspot: LineHotspot) -> Source | None:
    sources = sources_of(facts)
    same = [x for x in sources if x.path == hotspot.file]
    name = hotspot.file.replace("\\", "/").rpartition("/")[2]
    return next(iter(same or [x for x in sources if x.name == name]), None)


def _shallow_copy(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> Said:
    """`copy.copy` in place of `copy.deepcopy`."""
    calls = [x for x in calls_on(source, line) if called_name(x) == "deepcopy" and len(x.args) == 1]
    if not calls:
        raise CannotEdit("nothing is copied here")
    for call in calls:
        at = call.func.value if isinstance(call.func, ast.Attribute) else None
        if at is None and source.hides("copy", call):
            raise CannotEdit("the script has a copy of its own here")
        name = "copy" if at is None else source.code(at)
        editor.replace(source, source.span(call.func), f"{name}.copy")
        if at is None:
            _import(editor, source, "copy.copy")
    return (
        "Copy the sample, not all that it holds",
        "`copy.copy` in place of `copy.deepcopy`.",
        "Its parts are then shared: transforms that change an array in place change the stored "
        "sample.",
    )


def _stacked(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> Said:
    """One NumPy array of many, before a tensor is made of it."""
    numpy = source.imports("numpy") or "numpy"
    n = 0
    for call in calls_on(source, line):
        if called_name(call) not in TO_TENSOR or len(call.args) != 1:
            continue
        given = call.args[0]
        if _holds_arrays(source, given, call, loader):
            editor.replace(source, source.span(given), f"{numpy}.stack({source.code(given)})")
            n += 1
    if not n:
        raise CannotEdit("no list of arrays is made a tensor here")
    _import(editor, source, f"{numpy}.stack")
    return (
        "Stack the arrays with NumPy before making a tensor of them",
        "`torch.tensor(numpy.stack(arrays))`: of a list of arrays torch takes value by value.",
        None,
    )


def _holds_arrays(source: Source, given: ast.expr, call: ast.Call, loader: LoaderRecord) -> bool:
    """Whether it is a list of which every entry is known to be an array."""
    function = source.function(call)
    if isinstance(given, ast.Name) and function is not None:
        values = [
            (target, value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            for value in [node.value]
            if given.id in {x.id for x in ast.walk(target) if isinstance(x, ast.Name)}
        ]
        if len(values) != 1:
            return False
        target, value = values[0]
        if isinstance(target, ast.Tuple):  # xs, ys = zip(*batch)
            zipped = isinstance(value, ast.Call) and called_name(value) == "zip"
            places = [i for i, x in enumerate(target.elts) if ast.unparse(x) == given.id]
            return zipped and bool(places) and _sample_is_array(source, loader, places[0])
        given = value
    if not isinstance(given, ast.ListComp) or len(given.generators) != 1:
        return False
    target, entry = given.generators[0].target, given.elt
    if _makes_array(entry):
        return True
    if isinstance(target, ast.Tuple) and isinstance(entry, ast.Name):  # x for x, y in batch
        places = [i for i, x in enumerate(target.elts) if ast.unparse(x) == entry.id]
        return bool(places) and _sample_is_array(source, loader, places[0])
    of_sample = isinstance(entry, ast.Subscript) and ast.unparse(entry.value) == ast.unparse(target)
    if of_sample and isinstance(entry, ast.Subscript) and isinstance(entry.slice, ast.Constant):
        return _sample_is_array(source, loader, entry.slice.value)
    return False


def _sample_is_array(source: Source, loader: LoaderRecord, part: object) -> bool:
    """Whether this part of what the dataset's `__getitem__` returns is an array."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef) or node.name != loader.dataset:
            continue
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and function.name == "__getitem__":
                returned = [x.value for x in ast.walk(function) if isinstance(x, ast.Return)]
                parts = [_part(value, part) for value in returned]
                return bool(parts) and all(
                    x is not None and _is_array(function, x, loader) for x in parts
                )
    return False


def _part(value: ast.expr | None, part: object) -> ast.expr | None:
    if isinstance(value, ast.Tuple) and isinstance(part, int) and part < len(value.elts):
        return value.elts[part]
    if isinstance(value, ast.Dict):
        for key, entry in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == part:
                return entry
    return None


def _is_array(function: Function, node: ast.expr, loader: LoaderRecord) -> bool:
    if isinstance(node, ast.Name):
        values = list(_assigned(function, node.id))
        return len(values) == 1 and _is_array(function, values[0], loader)
    if isinstance(node, ast.Subscript):  # self.images[index], a row of an array
        held = ast.unparse(node.value).removeprefix("self.")
        return any(s.kind == "array" and s.path == held and len(s.shape) > 1 for s in loader.stores)
    return _makes_array(node)


def _makes_array(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _makes_array(node.left) or _makes_array(node.right)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in _MAKES_ARRAYS:
        return True
    root = node.func.value
    while isinstance(root, (ast.Attribute, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Name) and root.id in ("np", "numpy")


def _assigned(function: Function, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(ast.unparse(t) == name for t in node.targets):
            yield node.value
        elif isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
            yield ast.Constant(None)


def _import(editor: Editor, source: Source, code: str) -> None:
    last = source.imports_end
    for text in lacking(source, code):
        if last is None:
            raise CannotEdit("the script begins without an import")
        editor.insert(source, source.line_end(last), text)


_REMEDIES: tuple[Callable[[Editor, Source, int, LoaderRecord], Said], ...] = (
    _shallow_copy,
    _stacked,
    columns_once,
    lists_once,
)
