"""Remedies of a line of `__getitem__` that make once, in `__init__`, what it makes each time."""

from __future__ import annotations

import ast
from collections.abc import Collection

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.patch import Editor
from loaderdoctor.advice.source import Source, called_name, names_in, parameters_of
from loaderdoctor.instrument.wire.records import LoaderRecord

Function = ast.FunctionDef | ast.AsyncFunctionDef
TO_TENSOR = {"tensor", "as_tensor"}
# Title, idea and caution of a remedy.
Said = tuple[str, str, str | None]


def columns_once(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> Said:
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
        if isinstance(statement, ast.Assign) and statement.value is row:
            uses = _uses(source, function, statement, index)
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


def _uses(source: Source, function: Function, row: ast.Assign, index: str) -> list[ast.AST]:
    """Where the row that this statement takes is read: each may take it by the index itself.

    Raises CannotEdit where that may be of another row by then, or the name of something else.
    """
    if len(row.targets) != 1 or not isinstance(row.targets[0], ast.Name):
        raise CannotEdit("the row is kept")
    named = [x for x in ast.walk(function) if isinstance(x, ast.Name)]
    bound = [x for x in named if _is_bound(x)]
    name, around = row.targets[0].id, source.loops(row)
    if [x.id for x in bound].count(name) != 1 or name in parameters_of(function):
        raise CannotEdit("its name is given to something else as well")
    for x in (x for x in bound if x.id == index):
        if x.lineno >= row.lineno or any(loop in around for loop in source.loops(x)):
            raise CannotEdit("the index changes once the row is taken")
    uses: list[ast.AST] = [x for x in named if x.id == name and not _is_bound(x)]
    if not uses or not source.begins_line(row):
        raise CannotEdit("the row is kept")
    return uses


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
        if isinstance(parent.slice, ast.Slice):  # of a row it takes columns, of a frame rows
            if not _by_place(parent.slice):
                raise CannotEdit("it may name its columns, which ends with the last one named")
            return _to_array(source, parent, f"{frame}.iloc[:, {ast.unparse(parent.slice)}]")
        # By `.loc`: a name may be that of a slice or a mask, which `frame[…]` takes of rows.
        return _to_array(source, parent, f"{frame}.loc[:, {ast.unparse(parent.slice)}]")
    if isinstance(parent, ast.Attribute) and parent.attr == "iloc":
        part = source.parents[parent]
        if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice):
            return _to_array(source, part, f"{frame}.iloc[:, {ast.unparse(part.slice)}]")
    return _to_array(source, row, frame)


def _by_place(part: ast.Slice) -> bool:
    """Whether a slice of a row is one of numbers: that is by place, whatever its columns' names."""
    ends = (x for x in (part.lower, part.upper, part.step) if x is not None)
    values = (x.operand if isinstance(x, ast.UnaryOp) else x for x in ends)
    return all(isinstance(x, ast.Constant) and isinstance(x.value, int) for x in values)


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
    if key.isidentifier() and ".to_numpy()" in made and f"column_{key}" not in taken:
        return f"column_{key}"
    n = sum(name.startswith("values") for name in taken)
    return f"values_{n + 1}" if n else "values"


def lists_once(editor: Editor, source: Source, line: int, loader: LoaderRecord) -> Said:
    """One tensor of all the lists, made in `__init__`, in place of one for each sample."""
    function = _method(source, line)
    lists = {s.path for s in loader.stores if s.kind == "list" and s.entry.startswith("list of")}
    if loader.shapes_vary:
        raise CannotEdit("the lists are of unequal length")
    hoisted: dict[str, str] = {}
    held = ""
    for call in calls_on(source, line):
        row = call.args[0] if len(call.args) == 1 else None
        if called_name(call) not in TO_TENSOR or not isinstance(row, ast.Subscript):
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
    editor: Editor, source: Source, function: Function, held: str, made: dict[str, str]
) -> None:
    """Assign these behind the line of `__init__` that assigns `held`. Raises CannotEdit."""
    owner = source.parents[function]
    if not isinstance(owner, ast.ClassDef):
        raise CannotEdit("it is no method")
    own = {x.id for x in ast.walk(function) if isinstance(x, ast.Name) and _is_bound(x)}
    own |= parameters_of(function) - {"self"}
    if any(names_in(ast.parse(value)) & own for value in made.values()):
        raise CannotEdit("it reads what __getitem__ alone has")
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


def _is_bound(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _changes_later(source: Source, init: Function, name: str) -> bool:
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


def _method(source: Source, line: int) -> Function:
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


def calls_on(source: Source, line: int) -> list[ast.Call]:
    """Calls that the line holds a part of."""
    return [x for x in source.calls() if x.lineno <= line <= (x.end_lineno or x.lineno)]
