"""A dataset's own transforms, taken apart: some of them kept, some called for whole batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from loaderdoctor.advice import dataset_snippets
from loaderdoctor.advice.built import Built, device_at
from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.fit_code import made_in_script, over_dataset
from loaderdoctor.advice.patch import Editor, define
from loaderdoctor.advice.source import called_name, names_in, sources_of
from loaderdoctor.advice.worked import Wrapping
from loaderdoctor.facts import Facts
from loaderdoctor.findings.exposure import has_accelerator

_IMPORTS_VISION = re.compile(r"^\s*(import|from) torchvision", re.MULTILINE)
# Datasets of torchvision that call `self.transform` with the image of a pair.
_TRANSFORMING = frozenset({
    "MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "CIFAR10", "CIFAR100",
    "DatasetFolder", "ImageFolder",
})  # fmt: skip


def cached_before(facts: Facts, transform: str) -> str | None:
    """Samples kept as they are before this transform, which is drawn again each time.

    None where the dataset's own transform can't be taken apart in the script.
    """
    editor = Editor()
    try:
        made, name = _taken_apart(facts, "drawn")
        code = dataset_snippets.CACHED_BEFORE
        over_dataset(editor, facts, Wrapping(code=code, dataset="CachedBefore({}, drawn)"))
        _above(editor, made, f'{name}, drawn = split_at({name}, "{transform}")')
        return editor.patch().printed()
    except CannotEdit:
        return None


def scaled_whole(facts: Facts, last: Sequence[str]) -> str | None:
    """Pictures travel as bytes; `last`, ToTensor and what is behind it, is done for the batch.

    None where it is not that, or the transform can't be taken apart in the script.
    """
    editor = Editor()
    try:
        if last not in (("ToTensor",), ("ToTensor", "Normalize")):
            raise CannotEdit("they are not the same for a batch of bytes")
        made, name = _taken_apart(facts, "behind")
        if _may_be_a_picture(facts):
            raise CannotEdit("what comes with the pictures may be one")
        text = made.source.code(made.call)
        on_device = has_accelerator(facts)
        to = f", {device_at(facts, made.source, made.call)}" if on_device else ""
        define(editor, made.source, made.call, dataset_snippets.SCALED)
        editor.replace(made.source, made.source.span(made.call), f"Scaled({text}, behind{to})")
        _above(editor, made, f"{name}, behind = bytes_first({name})")
        return editor.patch().printed()
    except CannotEdit:
        return None


def _taken_apart(facts: Facts, new: str) -> tuple[Built, str]:
    """The loader, and what the script calls its dataset's transform. Raises CannotEdit.

    `new`: a name that the script must not have.
    """
    loader, made = facts.main_loader, made_in_script(facts)
    assert loader is not None  # it was made
    dataset, source = made.dataset, made.source
    paths = [tensor.path for tensor in loader.batch]
    if not isinstance(dataset, ast.Name) or paths != ["[0]", "[1]"]:
        raise CannotEdit("its dataset has no name, or its samples are no pairs")
    if not _transforms(facts, loader.dataset):
        raise CannotEdit("it is not known to call its own transform")
    if not _made_beside(made, dataset):
        raise CannotEdit("its transform may be taken apart again, in the next epoch")
    if _read_elsewhere(made, dataset):
        raise CannotEdit("the script reads its samples elsewhere too")
    if new in source.text or not source.begins_line(source.statement(made.call)):
        raise CannotEdit("there is no line for it")
    return made, f"{dataset.id}.transform"


def _made_beside(made: Built, dataset: ast.Name) -> bool:
    """Whether each time the loader is built, its dataset was made anew before."""
    source, function = made.source, made.source.function(made.call)
    return not source.loops(made.call) and any(
        isinstance(x, ast.Name) and x.id == dataset.id and source.function(node) is function
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and node.lineno <= made.call.lineno
        for target in node.targets
        for x in (target, *getattr(target, "elts", ()))
    )


def _may_be_a_picture(facts: Facts) -> bool:
    """Whether the second tensor of a batch has floats of more than one dimension."""
    assert facts.main_loader is not None
    tensor = facts.main_loader.batch[1]
    return "float" in tensor.dtype and len(tensor.shape) > 1


def _read_elsewhere(made: Built, dataset: ast.Name) -> bool:
    """Whether something else of the script may get samples of that dataset."""
    source = made.source
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Name) or node.id != dataset.id or node is dataset:
            continue
        owner = source.parents.get(node)
        sized = isinstance(owner, ast.Call) and called_name(owner) in ("len", "print")
        if isinstance(node.ctx, ast.Load) and not sized and not isinstance(owner, ast.Attribute):
            return True
    return False


def _above(editor: Editor, made: Built, line: str) -> None:
    source, statement = made.source, made.source.statement(made.call)
    indent = source.indent(statement)
    editor.insert(source, source.line_start(statement), f"{indent}{line}")


def _transforms(facts: Facts, name: str) -> bool:
    """Whether datasets of this class call their `transform`, as far as is known."""
    sources = sources_of(facts)
    classes = [
        node
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    if not classes:
        return name in _TRANSFORMING and any(_IMPORTS_VISION.search(x.text) for x in sources)
    return all(_transforms_first(node) for node in classes)


def _transforms_first(node: ast.ClassDef) -> bool:
    """Whether its samples are pairs of what `self.transform` returned, and something else."""
    methods = {x.name: x for x in node.body if isinstance(x, ast.FunctionDef)}
    method = methods.pop("__getitem__", None)
    if method is None or any(_uses(x) for x in methods.values()):
        return False
    if "super" in names_in(method):  # which may call it as well
        return False
    calls = [x for x in ast.walk(method) if isinstance(x, ast.Call) and _is_transform(x.func)]
    asked = [x.test for x in ast.walk(method) if isinstance(x, (ast.If, ast.IfExp))]
    n_asked = sum(len(_uses(x)) for x in asked)
    if len(calls) != 1 or len(_uses(method)) != 1 + n_asked:
        return False
    (call,) = calls
    repeated = [x for x in ast.walk(method) if x is not method and isinstance(x, _REPEATS)]
    if len(call.args) != 1 or call.keywords or any(call in ast.walk(x) for x in repeated):
        return False
    return _is_first(method, call)


_REPEATS = (
    ast.For, ast.While, ast.Lambda, ast.FunctionDef,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def _is_transform(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "self.transform"


def _uses(node: ast.AST) -> list[ast.AST]:
    """Where `self.transform` is read."""
    return [
        x
        for x in ast.walk(node)
        if isinstance(x, ast.Attribute) and _is_transform(x) and isinstance(x.ctx, ast.Load)
    ]


def _is_first(method: ast.FunctionDef, call: ast.Call) -> bool:
    """Whether the method returns pairs, and the call's result only as the first of them."""
    pairs = []
    for node in ast.walk(method):
        if isinstance(node, ast.Return):
            if not isinstance(node.value, (ast.Tuple, ast.List)) or len(node.value.elts) != 2:
                return False
            pairs.append(node.value.elts)
    if any(call in _results(first) for first, _ in pairs):
        return True
    for node in ast.walk(method):
        if isinstance(node, ast.Assign) and call in _results(node.value):
            names = [x.id for x in node.targets if isinstance(x, ast.Name)]
            firsts = {first for first, _ in pairs}
            return len(names) == len(node.targets) == 1 and all(
                x in firsts
                for x in ast.walk(method)
                if isinstance(x, ast.Name) and x.id == names[0] and isinstance(x.ctx, ast.Load)
                if x.lineno > (node.end_lineno or node.lineno)
            )
    return False


def _results(node: ast.expr) -> tuple[ast.expr, ...]:
    """What the expression may be: itself, or either of `a if … else b`."""
    return (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,)
