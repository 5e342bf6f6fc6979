"""The call that builds a loader, in the user's files, and what its batches are moved to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loaderdoctor.advice.call_edit import CannotEdit, argument
from loaderdoctor.advice.code import LOADER_PARAMETERS
from loaderdoctor.advice.source import (
    Source,
    at_label,
    called_name,
    names_in,
    parameters_of,
    sources_of,
)
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.wire.records import LoaderRecord, TransferRecord

# What a call that builds a loader looks like, the surest first.
_LOOKS: tuple[Callable[[ast.Call], bool], ...] = (
    lambda call: called_name(call).endswith("DataLoader"),
    lambda call: "loader" in called_name(call).lower(),
    lambda call: any(k.arg in ("num_workers", "batch_size") for k in call.keywords),
    lambda call: called_name(call) == "__init__",
)


def _arms(source: Source, call: ast.Call) -> Iterator[tuple[ast.IfExp, str]]:
    """Expressions `a if … else b` around it, and which of the two it belongs to."""
    inner: ast.AST = call
    while (outer := source.parents.get(inner)) is not None and isinstance(outer, ast.expr):
        if isinstance(outer, ast.IfExp) and inner is not outer.test:
            yield outer, "body" if inner is outer.body else "orelse"
        inner = outer


def _batch_size(call: ast.Call) -> object:
    """As written; None where it is no number."""
    node = argument(call, "batch_size", LOADER_PARAMETERS)
    return node.value if isinstance(node, ast.Constant) else None


# What a partial may bind: a number or a switch that the call gives again, in place of its own.
_REPLACEABLE = {"batch_size", "num_workers", "shuffle", "pin_memory", "drop_last"}

# What `to` takes that is no accelerator: the host, or a dtype (of torch, or said by its name).
_NO_DEVICE = re.compile(r"^torch\.\w+$|dtype|^(torch\.)?(device\()?['\"]cpu")


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
        """Its dataset as written; None where no argument is known to be it."""
        named = argument(self.call, "dataset", ())
        known = self.is_torchs or called_name(self.call).endswith("DataLoader")
        first = self.call.args[0] if self.call.args and known else None
        return named or (None if isinstance(first, ast.Starred) else first)

    def argument(self, name: str) -> ast.expr | None:
        """As written, by its name or in its place; None where none is seen."""
        return argument(self.call, name, LOADER_PARAMETERS if self.is_torchs else ())

    @property
    def is_torchs(self) -> bool:
        """Whether its positional arguments are those of torch's DataLoader."""
        names = {"DataLoader", *_aliases(self.source)}
        if ast.unparse(self.call.func) == "super().__init__":  # of a class of the script's
            owner = _owner(self.source, self.call)
            bases = {ast.unparse(x).rpartition(".")[2] for x in (owner.bases if owner else ())}
            return bool(bases) and bases <= names
        return called_name(self.call) in {*names, *_partials(self.source)}

    def takes(self, wanted: str) -> bool:
        """Whether it may be given this argument anew: by a library's function, nobody knows."""
        name = called_name(self.call)
        if name[:1].isupper() or name in {"__init__", *_aliases(self.source)}:
            return True
        if argument(self.call, wanted, ()) is not None or name in _partials(self.source):
            return True
        return any(
            isinstance(x, ast.FunctionDef)
            and x.name == name
            and (x.args.kwarg is not None or wanted in parameters_of(x))
            for x in ast.walk(self.source.tree)
        )

    @property
    def unpacks(self) -> bool:
        """Whether some of its arguments are not to be read: `*args`, `**options`."""
        return any(isinstance(x, ast.Starred) for x in self.call.args) or any(
            k.arg is None for k in self.call.keywords
        )


def built(facts: Facts, loader: LoaderRecord) -> Built | None:
    """The call that builds it in the user's files; None where a library does, or none is found."""
    found = at_label(sources_of(facts), loader.id)
    if found is None or loader.library is not None:
        return None
    source, line = found
    here = [x for x in source.calls() if x.lineno <= line <= (x.end_lineno or x.lineno)]
    bound = {**dict.fromkeys(_aliases(source), True), **_partials(source)}
    looks: list[Callable[[ast.Call], bool]] = [*_LOOKS, lambda call: called_name(call) in bound]
    for fits in looks:
        named = [x for x in here if fits(x)]
        exact = [x for x in named if x.lineno == line] or named
        arms = {arm for x in exact for arm in _arms(source, x)}
        if len(arms) != len({node for node, _ in arms}):  # of `a if … else b` one alone was built
            exact = [x for x in exact if _batch_size(x) in (None, loader.batch_size)]
            if len(exact) > 1:
                return None
        if exact:
            call = exact[min(loader.call_index, len(exact) - 1)]
            return Built(source, call) if bound.get(called_name(call), True) else None
    return None


def _aliases(source: Source) -> set[str]:
    """What the file calls torch's DataLoader: `from torch.utils.data import DataLoader as DL`."""
    return {
        name.asname
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "torch.utils.data"
        for name in node.names
        if name.name == "DataLoader" and name.asname is not None
    }


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


def check_built_once(facts: Facts, loader: LoaderRecord) -> None:
    """Raises CannotEdit where what is made with the loader would be made in each epoch."""
    if facts.step is not None and loader.id in facts.step.rebuilt:
        raise CannotEdit("the loader is built in each epoch, and all of it would be made again")


def flat_dict(loader: LoaderRecord) -> bool:
    """Whether batches are dicts. Raises CannotEdit where they are neither lists nor dicts."""
    paths = [tensor.path for tensor in loader.batch]
    if paths and all(path.startswith("['") and path.count("[") == 1 for path in paths):
        return True
    if paths and all(path.startswith("[") and path.count("[") == 1 for path in paths):
        return False
    raise CannotEdit("its batches are neither lists nor dicts of tensors")


def device_of_all(facts: Facts, loader: LoaderRecord, source: Source, node: ast.AST) -> str:
    """`device_at`, for code that moves all tensors of this loader's batches.

    Raises CannotEdit where the loop does not: what packs rows wants their lengths on the CPU.
    """
    moved = {transfer.path for transfer in facts.transfers}
    if not {tensor.path for tensor in loader.batch} <= moved:
        raise CannotEdit("the loop was not seen to move all tensors of a batch to one device")
    return device_at(facts, source, node)


def device_at(facts: Facts, source: Source, node: ast.AST) -> str:
    """What the loop moves its batches to, as code for that place of the script.

    Raises CannotEdit where that is not seen, is not one device, or not known there.
    """
    of_batches = [transfer for transfer in facts.transfers if transfer.path is not None]
    found = [x for t in of_batches or facts.transfers for x in _moves(facts, t)]
    if not found:
        raise CannotEdit("the device was not found in the script")
    for there, call, given in found:
        names = names_in(given)
        other = "self" in names and _owner(there, call) is not _owner(source, node)
        if other or not all(source.bound_before(name, node) for name in names):
            raise CannotEdit("the device is not known there")
    (device, *others) = {ast.unparse(x) for _, _, x in found}
    if others:
        raise CannotEdit("which device the loop moves its batches to can't be told")
    return device


def _moves(facts: Facts, transfer: TransferRecord) -> Iterator[tuple[Source, ast.Call, ast.expr]]:
    """Calls of the line that this transfer was seen in, and the device that each names."""
    place = at_label(sources_of(facts), transfer.site)
    if place is None or transfer.call != "to":
        return
    source, line = place
    for call in source.calls():
        if called_name(call) != "to" or call.lineno != line:
            continue
        device = argument(call, "device", ("device",))
        if device is not None and not _NO_DEVICE.search(ast.unparse(device)):
            yield source, call, device


def _owner(source: Source, node: ast.AST) -> ast.ClassDef | None:
    return next((x for x in source.around(node) if isinstance(x, ast.ClassDef)), None)
