"""Where in the user's files a loader is built, held and iterated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.source import Source, at_label, called_name, sources_of
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.wire.records import LoaderRecord


@dataclass(frozen=True, slots=True)
class Built:
    """The call that builds a loader."""

    source: Source
    call: ast.Call

    @property
    def holder(self) -> ast.Assign | ast.AnnAssign | None:
        """The statement that gives the loader alone a name; None where none does."""
        statement = self.source.statement(self.call)
        if isinstance(statement, ast.AnnAssign) and statement.value is self.call:
            return statement
        if isinstance(statement, ast.Assign) and statement.value is self.call:
            return statement if len(statement.targets) == 1 else None
        return None

    @property
    def name(self) -> str | None:
        """What that statement calls it: `loader`, `self.loader`."""
        holder = self.holder
        if holder is None:
            return None
        target = holder.target if isinstance(holder, ast.AnnAssign) else holder.targets[0]
        return self.source.code(target) if isinstance(target, (ast.Name, ast.Attribute)) else None

    @property
    def dataset(self) -> ast.expr | None:
        """Its dataset as written."""
        named = next((k.value for k in self.call.keywords if k.arg == "dataset"), None)
        first = self.call.args[0] if self.call.args else None
        node = named or first
        return None if isinstance(node, ast.Starred) else node

    def keyword(self, name: str) -> ast.expr | None:
        """A keyword argument as written."""
        return next((k.value for k in self.call.keywords if k.arg == name), None)

    @property
    def unpacks(self) -> bool:
        """Whether some of its arguments are not to be read: `*args`, `**options`."""
        return any(isinstance(x, ast.Starred) for x in self.call.args) or any(
            k.arg is None for k in self.call.keywords
        )


@dataclass(frozen=True, slots=True)
class Iterated:
    """The expression whose batches the loop takes: the `loader` of `enumerate(tqdm(loader))`."""

    source: Source
    loader: ast.expr
    loop: ast.For | ast.AsyncFor


# What a call that builds a loader looks like, the surest first.
_LOOKS: tuple[Callable[[ast.Call], bool], ...] = (
    lambda call: called_name(call).endswith("DataLoader"),
    lambda call: "loader" in called_name(call).lower(),
    lambda call: any(k.arg in ("num_workers", "batch_size") for k in call.keywords),
)


def built(facts: Facts, loader: LoaderRecord) -> Built | None:
    """The call that builds it in the user's files; None where a library does, or none is found."""
    found = at_label(sources_of(facts), loader.id)
    if found is None or loader.library is not None:
        return None
    source, line = found
    here = [x for x in source.calls() if x.lineno <= line <= (x.end_lineno or x.lineno)]
    bound = _partials(source)
    looks: list[Callable[[ast.Call], bool]] = [*_LOOKS, lambda call: called_name(call) in bound]
    for fits in looks:
        named = [x for x in here if fits(x)]
        exact = [x for x in named if x.lineno == line] or named
        if exact:
            call = exact[min(loader.call_index, len(exact) - 1)]
            return Built(source, call) if bound.get(called_name(call), True) else None
    return None


# What a partial may bind: a number or a switch that the call gives again, in place of its own.
_REPLACEABLE = {"batch_size", "num_workers", "shuffle", "pin_memory", "drop_last"}


def _partials(source: Source) -> dict[str, bool]:
    """Functions that are a DataLoader with some arguments: `partial(DataLoader, …)`.

    By their names, whether a call of them may be given arguments: none that is bound is lost.
    """
    return {
        target.id: all(x.arg in _REPLACEABLE for x in node.value.keywords)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if called_name(node.value) == "partial" and len(node.value.args) == 1
        if ast.unparse(node.value.args[0]).endswith("DataLoader")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def iterated(facts: Facts, loader: LoaderRecord) -> Iterated | None:
    """Where the loop takes its batches: as it was seen, else the one place that names it."""
    sources = sources_of(facts)
    made = built(facts, loader)
    builder = made.source.function(made.call) if made is not None else None
    by = builder.name if builder is not None else None
    if loader.loop is not None and (found := at_label(sources, loader.loop)) is not None:
        source, line = found
        loops = [
            x
            for x in _fors(source)
            if x.iter.lineno <= line <= (x.iter.end_lineno or x.iter.lineno)
        ]
        return _iterated(source, loops, by)
    if made is None:
        return None
    if made.name is None:
        inline = [x for x in _fors(made.source) if made.call in ast.walk(x.iter)]
        return _iterated(made.source, inline, by)
    name = made.name
    return _iterated(made.source, [x for x in _fors(made.source) if _leaf_is(made, x, name)], by)


def _fors(source: Source) -> Iterator[ast.For | ast.AsyncFor]:
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            yield node


def _leaf_is(made: Built, loop: ast.For | ast.AsyncFor, name: str) -> bool:
    leaf = _leaf(loop.iter, None)
    return leaf is not None and made.source.code(leaf) == name


def _iterated(
    source: Source, loops: Sequence[ast.For | ast.AsyncFor], builder: str | None
) -> Iterated | None:
    if len(loops) != 1:
        return None
    leaf = _leaf(loops[0].iter, builder)
    return None if leaf is None else Iterated(source, leaf, loops[0])


def _leaf(node: ast.expr, builder: str | None) -> ast.expr | None:
    """The loader in what wraps it; None where that can't be told (`zip` of several).

    `builder`: the function that builds it, whose arguments are none.
    """
    while isinstance(node, ast.Call) and node.args:
        if called_name(node).endswith("DataLoader") or called_name(node) == builder:
            return node
        if called_name(node) == "zip" or isinstance(node.args[0], ast.Starred):
            return None
        node = node.args[0]
    return node if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else None


def flat_dict(loader: LoaderRecord) -> bool:
    """Whether batches are dicts. Raises CannotEdit where they are neither lists nor dicts."""
    paths = [tensor.path for tensor in loader.batch]
    if paths and all(path.startswith("['") and path.count("[") == 1 for path in paths):
        return True
    if paths and all(path.startswith("[") and path.count("[") == 1 for path in paths):
        return False
    raise CannotEdit("its batches are neither lists nor dicts of tensors")


def moved_to(facts: Facts) -> ast.expr | None:
    """What the loop moves its batches to, as it writes it."""
    sources = sources_of(facts)
    for transfer in facts.transfers:
        place = at_label(sources, transfer.site)
        if place is None or transfer.call != "to":
            continue
        source, line = place
        for call in source.calls():
            if called_name(call) == "to" and call.lineno == line and call.args:
                return call.args[0]
    return None
