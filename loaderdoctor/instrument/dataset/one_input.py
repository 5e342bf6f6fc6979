"""A dataset that makes one input of its samples only: `__getitem__` without what the others need.

Works where `__getitem__` ends in the display of a dict or tuple. Its source is cut down to the
statements that the wanted input depends on, in a subclass; a few samples of both are compared
before it is used. Everything else keeps making whole samples.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from typing import Any

from torch.utils.data import Subset, default_collate

from loaderdoctor.instrument.dataset.dataset_tree import kind_of, replaced, some_samples
from loaderdoctor.instrument.dataset.own_copy import looked_at

_BLOCKS = (ast.With, ast.If, ast.For, ast.While, ast.Try)
_EFFECTS = (
    ast.Raise, ast.Assert, ast.Global, ast.Nonlocal, ast.Delete, ast.Return, ast.Expr, ast.Import,
    ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Break, ast.Continue,
)  # fmt: skip


def making_only(dataset: Any, field: str, collate: Any, *, apart: bool) -> Any | None:
    """The dataset whose samples hold None in place of other inputs; None where that can't be had.

    Samples are looked at as `looked_at` says. Its class is made here, so it can be forked but not
    pickled.
    """
    if collate is not default_collate:  # one of the user's own sees whole samples
        return None
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    function = _cut(type(inner), field)
    if function is None:
        return None
    try:
        kind: Any = type(inner)
        made: Any = object.__new__(type(kind.__name__, (kind,), {"__getitem__": function}))
        vars(made).update(vars(inner))
        changed = replaced(dataset, lambda value: made if value is inner else value)
        whole, cut = _kinds(dataset, field, apart=apart), _kinds(changed, field, apart=apart)
    except Exception:  # the user's own code, cut down: whatever it raises, it can't be used
        return None
    return changed if cut and whole == cut else None


def _kinds(dataset: Any, field: str, *, apart: bool) -> list[Any]:
    with looked_at(dataset, apart=apart) as made:
        return [_kind(sample, field) for sample in some_samples(made)]


def _kind(sample: Any, field: str) -> Any:
    return kind_of(sample[int(field)] if isinstance(sample, (tuple, list)) else sample[field])


def _cut(kind: type, field: str) -> Any | None:
    """`__getitem__` of the class for that input alone."""
    own = kind.__dict__.get("__getitem__")
    if not isinstance(own, types.FunctionType) or own.__closure__ is not None:
        return None
    if "__getitems__" in dir(kind):
        return None
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(own))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list or _is_private(tree):
        return None
    last = tree.body[-1]
    returns = [node for node in ast.walk(tree) if isinstance(node, (ast.Return, ast.Yield))]
    if not isinstance(last, ast.Return) or returns != [last] or not _keep_only(last.value, field):
        return None
    tree.body = [*_needed(tree.body[:-1], _loaded(last)), last]
    tree.returns = None
    for argument in (*tree.args.posonlyargs, *tree.args.args):
        argument.annotation = None
    module = ast.fix_missing_locations(ast.Module(body=[tree], type_ignores=[]))
    scope: dict[str, Any] = {}
    exec(compile(module, own.__code__.co_filename, "exec"), own.__globals__, scope)
    made: types.FunctionType = scope[tree.name]
    made.__defaults__, made.__kwdefaults__ = own.__defaults__, own.__kwdefaults__
    return made


def _is_private(tree: ast.FunctionDef) -> bool:
    """Whether names are mangled with the class's, which a function outside of it can't do."""
    return any(
        isinstance(node, ast.Attribute) and node.attr[:2] == "__" and node.attr[-2:] != "__"
        for node in ast.walk(tree)
    )


def _keep_only(value: ast.expr | None, field: str) -> bool:
    """Put None for the other inputs of the display; whether it has the wanted one."""
    if isinstance(value, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
        if keys.count(field) != 1 or None in keys:
            return False
        value.values = [
            kept if key == field else ast.Constant(None)
            for key, kept in zip(keys, value.values, strict=True)
        ]
        return True
    if isinstance(value, ast.Tuple) and field.isdigit() and int(field) < len(value.elts):
        if any(isinstance(item, ast.Starred) for item in value.elts):
            return False
        value.elts = [
            kept if i == int(field) else ast.Constant(None) for i, kept in enumerate(value.elts)
        ]
        return True
    return False


def _needed(body: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """The statements that these names depend on, and those with an effect that can't be told."""
    kept: list[ast.stmt] = []
    for statement in reversed(body):
        stored = _stored(statement)
        if stored & names or _has_effects(statement):
            names = names | _loaded(statement)
            kept.append(statement)
    return kept[::-1]


def _has_effects(statement: ast.stmt) -> bool:
    """Whether it may matter although its names don't: all but assignments to names."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)  # a docstring
    if isinstance(statement, _BLOCKS):
        return any(isinstance(node, _EFFECTS) for node in ast.walk(statement))
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return any(
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            for node in ast.walk(statement)
        )
    return not isinstance(statement, ast.Pass)


def _stored(node: ast.AST) -> set[str]:
    """Names that are assigned, or whose items are."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            found |= _loaded(part.value)
    return found


def _loaded(node: ast.AST) -> set[str]:
    """Every name in it, also those that are only assigned: `x += 1` reads x."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
