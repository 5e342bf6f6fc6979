"""A dataset with some of what it holds replaced; the user's own object is left as it is.

Only the objects on the way to a replaced value are copied, shallowly and without running code of
the user's (`__copy__` and `__getstate__` of a dataset often drop its open files).

`making_only` makes one input of its samples only: `__getitem__` without what the others need. Works
where `__getitem__` ends in the display of a dict or tuple. Its source is cut down to the statements
that the wanted input depends on, in a subclass; a few samples of both are compared before it is
used. Everything else keeps making whole samples.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset, default_collate

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import bare_copy
from loaderdoctor.instrument.dataset.safety import kind_of, looked_at, some_samples

Replacement = Callable[[Any], Any]  # the value itself where it stays

MAX_DEPTH = 12
# Paths and labels of a large image folder are some 4 million values.
MAX_VALUES = 20_000_000

_PLAIN = (int, float, complex, bool, type(None), bytes, bytearray, type)
_CLOSED = (
    str, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, Tensor, np.memmap,
)  # fmt: skip
_BLOCKS = (ast.With, ast.If, ast.For, ast.While, ast.Try)
_EFFECTS = (
    ast.Raise, ast.Assert, ast.Global, ast.Nonlocal, ast.Delete, ast.Return, ast.Expr, ast.Import,
    ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Break, ast.Continue,
)  # fmt: skip


def replaced(dataset: Any, replacement: Replacement) -> Any:
    """`dataset` with every value `v` that it leads to replaced by `replacement(v)`.

    The very same object where nothing changes. Raises TrialRefused where it is too large to search.
    """
    return _Visit(replacement).visit(dataset, 0)


class _Visit:
    """One walk; remembers what it has made, so that shared and cyclic references hold."""

    def __init__(self, replacement: Replacement) -> None:
        self._replacement = replacement
        self._made: dict[int, Any] = {}
        self._under_way: set[int] = set()
        self._keep: list[Any] = []  # ids stay valid while this lives
        self._n = 0

    def visit(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind in _PLAIN or depth > MAX_DEPTH:
            return node
        self._n += 1
        if self._n > MAX_VALUES:
            raise TrialRefused("the dataset leads to too many objects to be searched")
        if id(node) in self._made:
            return self._made[id(node)]
        new = self._replacement(node)
        if new is not node or isinstance(node, _CLOSED):
            return new
        if isinstance(node, (list, tuple, dict)):
            return self._remember(node, self._container(node, depth))
        if isinstance(node, np.ndarray):
            return self._remember(node, self._array(node, depth))
        if isinstance(node, types.MethodType):
            owner = self.visit(node.__self__, depth + 1)
            same = owner is node.__self__
            return node if same else types.MethodType(node.__func__, owner)
        if isinstance(node, functools.partial):
            parts = (node.func, node.args, node.keywords)
            func, args, keywords = (self.visit(part, depth + 1) for part in parts)
            same = all(a is b for a, b in zip((func, args, keywords), parts, strict=True))
            return node if same else functools.partial(func, *args, **keywords)
        return self._object(node, depth)

    def _remember(self, node: Any, new: Any) -> Any:
        if not isinstance(node, tuple):  # millions of (path, label) pairs are shared by nobody
            self._keep.append(node)
            self._made[id(node)] = new
        return new

    def _container(self, node: Any, depth: int) -> Any:
        if isinstance(node, dict):
            items = {key: self.visit(value, depth + 1) for key, value in node.items()}
            if all(items[key] is value for key, value in node.items()):
                return node
            made = copy.copy(node)
            made.update(items)
            return made
        values = [self.visit(value, depth + 1) for value in node]
        if all(a is b for a, b in zip(values, node, strict=True)):
            return node
        if hasattr(node, "_fields"):
            return type(node)(*values)
        if type(node) in (list, tuple):
            return type(node)(values)
        made = copy.copy(node)
        if isinstance(made, list):
            made[:] = values
            return made
        return node  # a tuple of the user's own: not to be built without its constructor

    def _array(self, node: np.ndarray[Any, Any], depth: int) -> Any:
        """Arrays of strings or objects, such as paths."""
        if node.dtype.kind not in "UO":
            return node
        values = node.reshape(-1).tolist()
        made = [self.visit(value, depth + 1) for value in values]
        if all(a is b for a, b in zip(made, values, strict=True)):
            return node
        flat = np.array(made) if node.dtype.kind == "U" else np.array([None, *made], object)[1:]
        return flat.reshape(node.shape)

    def _object(self, node: Any, depth: int) -> Any:
        attributes = getattr(node, "__dict__", None)
        if not isinstance(attributes, dict):
            return node
        key = id(node)
        if key in self._under_way:  # a cycle: what refers back gets the copy
            self._made[key] = bare_copy(node)
            return self._made[key]
        self._under_way.add(key)
        self._keep.append(node)
        new = {name: self.visit(value, depth + 1) for name, value in list(attributes.items())}
        self._under_way.discard(key)
        changed = any(new[name] is not attributes[name] for name in new)
        if not changed and key not in self._made:
            self._made[key] = node
            return node
        if key not in self._made:
            self._made[key] = bare_copy(node)
        vars(self._made[key]).update(new)
        return self._made[key]


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
    if isinstance(statement, (*_BLOCKS, ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return any(
            isinstance(node, _EFFECTS)
            or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
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
