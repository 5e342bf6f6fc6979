"""One-line remedies of a dataset's or collate function's hot line, written into the script."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.patch import Editor, lacking
from loaderdoctor.advice.source import Source, called_name, sources_of
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LineHotspot
from loaderdoctor.instrument.wire.records import LoaderRecord

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# What makes a NumPy array of something, as a method.
_MAKES_ARRAYS = {"numpy", "to_numpy", "astype"}
_TO_TENSOR = {"tensor", "as_tensor"}


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


_Said = tuple[str, str, str | None]


def _shallow_copy(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> _Said:
    """`copy.copy` in place of `copy.deepcopy`."""
    calls = [x for x in _on_line(source, line) if called_name(x) == "deepcopy" and len(x.args) == 1]
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


def _stacked(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> _Said:
    """One NumPy array of many, before a tensor is made of it."""
    numpy = source.imports("numpy") or "numpy"
    n = 0
    for call in _on_line(source, line):
        if called_name(call) not in _TO_TENSOR or len(call.args) != 1:
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


def _is_array(function: _Function, node: ast.expr, loader: LoaderRecord) -> bool:
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


def _assigned(function: _Function, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(ast.unparse(t) == name for t in node.targets):
            yield node.value
        elif isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
            yield ast.Constant(None)


def _columns(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> _Said:
    """Arrays of a frame's columns, made in `__init__`, in place of a Series for each row."""
    function = _method(source, line)
    rows = [x for x in ast.walk(function) if (_row_of(x)) is not None]
    if not rows:
        raise CannotEdit("no row of a frame is taken here")
    frames = {_row_of(x) for x in rows}
    if len(frames) != 1:
        raise CannotEdit("rows of several frames")
    frame, index = next(iter(frames))  # type: ignore[misc]  # not None
    hoisted: dict[str, str] = {}
    for row in rows:
        uses = [row]
        statement = source.statement(row)
        whole = isinstance(statement, ast.Assign) and statement.value is row
        if whole and isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
            uses = [
                x
                for x in ast.walk(function)
                if isinstance(x, ast.Name) and x.id == name and isinstance(x.ctx, ast.Load)
            ]
            if not uses or not source.begins_line(statement):
                raise CannotEdit("the row is kept")
            editor.replace(source, (source.line_start(statement), source.line_end(statement)), "")
        for use in uses:
            node, made, is_row = _made_of(source, frame, use)
            held = hoisted.setdefault(made, _attribute_name(made, hoisted.values()))
            copied = ".copy()" if is_row else ""
            editor.replace(source, source.span(node), f"self.{held}[{index}]{copied}")
    _hoist(editor, source, function, frame, {f"self.{n}": made for made, n in hoisted.items()})
    return (
        "Take the columns out of the frame once",
        "`frame[names].to_numpy()` in `__init__`, and rows of that in `__getitem__`.",
        "A row of mixed columns makes floats of integers; the columns keep their own types.",
    )


def _row_of(node: ast.AST) -> tuple[str, str] | None:
    """(frame, index) of `self.frame.iloc[index]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Attribute):
        return None
    frame = ast.unparse(node.value.value)
    plain = node.value.attr == "iloc" and frame.startswith("self.") and "(" not in frame
    if not plain or "[" in frame or not isinstance(node.slice, ast.Name):
        return None
    return frame, node.slice.id


def _made_of(source: Source, frame: str, row: ast.AST) -> tuple[ast.expr, str, bool]:
    """What is taken of a row: (that expression, the same of the whole frame, whether a row)."""
    parent = source.parents[row]
    if isinstance(parent, ast.Subscript) and parent.value is row:
        if isinstance(parent.slice, ast.Constant) and isinstance(parent.slice.value, str):
            return parent, f"{frame}[{ast.unparse(parent.slice)}].to_numpy()", False
        return _to_array(source, parent, f"{frame}[{ast.unparse(parent.slice)}]")
    if isinstance(parent, ast.Attribute) and parent.attr == "iloc":
        part = source.parents[parent]
        if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice):
            return _to_array(source, part, f"{frame}.iloc[:, {ast.unparse(part.slice)}]")
    return _to_array(source, row, frame)


def _to_array(source: Source, node: ast.AST, frame: str) -> tuple[ast.expr, str, bool]:
    at = source.parents[node]
    if not isinstance(at, ast.Attribute):
        raise CannotEdit("the row is used as a Series")
    if at.attr == "values":
        return at, f"{frame}.to_numpy()", True
    call = source.parents[at]
    if at.attr != "to_numpy" or not isinstance(call, ast.Call):
        raise CannotEdit("the row is used as a Series")
    given = ", ".join(
        [*map(ast.unparse, call.args), *(f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords)]
    )
    return call, f"{frame}.to_numpy({given})", True


def _attribute_name(made: str, taken: Collection[str]) -> str:
    key = made.partition("['")[2].partition("']")[0]
    if key.isidentifier() and ".to_numpy()" in made:
        return f"column_{key}"
    n = sum(name.startswith("values") for name in taken)
    return f"values_{n + 1}" if n else "values"


def _rows_of_lists(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> _Said:
    """One tensor of all the lists, made in `__init__`, in place of one for each sample."""
    function = _method(source, line)
    lists = {s.path for s in loader.stores if s.kind == "list" and s.entry.startswith("list of")}
    if loader.shapes_vary:
        raise CannotEdit("the lists are of unequal length")
    hoisted: dict[str, str] = {}
    held = ""
    for call in _on_line(source, line):
        row = call.args[0] if len(call.args) == 1 else None
        if called_name(call) not in _TO_TENSOR or not isinstance(row, ast.Subscript):
            continue
        held = ast.unparse(row.value)
        if held.removeprefix("self.") not in lists or not held.startswith("self."):
            continue
        given = "".join(f", {k.arg}={ast.unparse(k.value)}" for k in call.keywords)
        name = f"{held}_as_tensor"
        hoisted[name] = f"{ast.unparse(call.func)}({held}{given})"
        text = f"{name}[{ast.unparse(row.slice)}].clone()"
        editor.replace(source, source.span(call), text)
    if len(hoisted) != 1:
        raise CannotEdit("no list of lists is indexed here")
    _hoist(editor, source, function, next(iter(hoisted)).removesuffix("_as_tensor"), hoisted)
    return (
        "Make one tensor of all the lists, once",
        "`torch.tensor(rows)` in `__init__`, and rows of that in `__getitem__`.",
        "Its memory comes on top of the lists': drop those where nothing else reads them.",
    )


def _hoist(
    editor: Editor, source: Source, function: _Function, held: str, made: dict[str, str]
) -> None:
    """Assign these behind the line of `__init__` that assigns `held`. Raises CannotEdit."""
    owner = source.parents[function]
    if not isinstance(owner, ast.ClassDef):
        raise CannotEdit("it is no method")
    init = next(
        (x for x in owner.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"), None
    )
    assigning = [
        x
        for x in (init.body if init is not None else ())
        if isinstance(x, ast.Assign) and any(ast.unparse(t) == held for t in x.targets)
    ]
    if init is not None and _changes_later(source, init, held.rpartition(".")[2]):
        raise CannotEdit("what holds them changes after __init__")
    taken = {x.attr for x in ast.walk(owner) if isinstance(x, ast.Attribute)}
    if len(assigning) != 1 or any(name.removeprefix("self.") in taken for name in made):
        raise CannotEdit("what holds them is not assigned in __init__")
    assert init is not None  # it assigns them
    last = init.body[-1]  # what they are made of may be assigned anywhere before
    if not source.begins_line(last) or isinstance(last, ast.Return):
        raise CannotEdit("__init__ ends otherwise")
    indent = source.indent(last)
    lines = "\n".join(f"{indent}{name} = {value}" for name, value in made.items())
    editor.insert(source, source.line_end(last), lines)


def _changes_later(source: Source, init: _Function, name: str) -> bool:
    """Whether code of the file beyond that function assigns to this attribute, or to a part of it.

    Or calls a method of it for what that does.
    """
    inside = set(ast.walk(init))
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute) or node.attr != name or node in inside:
            continue
        whole: ast.expr = node
        while isinstance(at := source.parents[whole], (ast.Attribute, ast.Subscript)):
            if at.value is not whole:
                break
            whole = at
        if not isinstance(whole, (ast.Attribute, ast.Subscript)):
            continue
        if not isinstance(whole.ctx, ast.Load):
            return True
        call = source.parents[whole]
        if isinstance(call, ast.Call) and call.func is whole and whole is not node:
            in_place = any(k.arg == "inplace" for k in call.keywords)
            if in_place or isinstance(source.parents[call], ast.Expr):
                return True
    return False


def _method(source: Source, line: int) -> _Function:
    functions = [
        x
        for x in ast.walk(source.tree)
        if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef))
        and x.lineno <= line <= (x.end_lineno or x.lineno)
    ]
    function = max(functions, key=lambda x: x.lineno, default=None)
    if function is None or function.name != "__getitem__":
        raise CannotEdit("it is not where samples are made")
    return function


def _on_line(source: Source, line: int) -> list[ast.Call]:
    return [x for x in source.calls() if x.lineno <= line <= (x.end_lineno or x.lineno)]


def _import(editor: Editor, source: Source, code: str) -> None:
    last = source.imports_end
    for text in lacking(source, code):
        if last is None:
            raise CannotEdit("the script begins without an import")
        editor.insert(source, source.line_end(last), text)


_REMEDIES: tuple[Callable[[Editor, Source, int, LoaderRecord], _Said], ...] = (
    _shallow_copy,
    _stacked,
    _columns,
    _rows_of_lists,
)
