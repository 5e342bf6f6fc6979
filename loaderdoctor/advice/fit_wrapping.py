"""What is put around a loader's dataset, or the loader, where it is built; and where that is."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import takewhile

from loaderdoctor.advice import dataset_snippets, loop_snippets
from loaderdoctor.advice.assigned import values_of
from loaderdoctor.advice.built import Built, built, check_built_once, device_of_all, flat_dict
from loaderdoctor.advice.call_edit import (
    CannotEdit,
    Expression,
    argument,
    is_pure,
    parsed_call,
    with_arguments,
)
from loaderdoctor.advice.code import BUILT_ONCE, LOADER_DEFAULTS, LOADER_PARAMETERS
from loaderdoctor.advice.patch import Editor
from loaderdoctor.advice.source import Loop, Source, called_name, names_in, sources_of
from loaderdoctor.advice.worked import CACHED, Wrapping, over_call, rows, sliced
from loaderdoctor.facts import Facts
from loaderdoctor.findings.capacity import why_unsafe
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings

# Datasets of torchvision that name an image file for each sample, by class. A DatasetFolder's are
# read by a function of the script's own.
IMAGE_FOLDERS = frozenset({"ImageFolder", "ImageNet"})
# Classes of torch that hold no other dataset.
_HOLD_NO_OTHER = frozenset({"Dataset", "TensorDataset", "object"})
# Functions for worker_init_fn, by the value of `worker_cpus` or `worker_gc`, and their names.
_INITS: Mapping[str | None, tuple[str, str]] = {
    "all": (loop_snippets.ALL_CPUS, "all_cpus"),
    "apart": (loop_snippets.OWN_CPU, "own_cpu"),
    "numa": (loop_snippets.OWN_NODE, "own_node"),
    "frozen": (loop_snippets.FROZEN, "Frozen"),
    "rarely": (loop_snippets.RARELY_COLLECTED, "RarelyCollected"),
}


def wrapping_code(loader: LoaderRecord, settings: Settings) -> str:
    """The classes that `wrapped_call` reads, to be defined above it. Raises CannotEdit."""
    wrapping = _wrapping(loader, settings)
    codes = [wrapping.code] if wrapping is not None else []
    if settings.packed:
        if loader.batch_type not in ("list", "dict"):  # others may have no copy(), or no items
            raise CannotEdit("its batches are no plain lists or dicts")
        codes.append(loop_snippets.packed(as_dict=flat_dict(loader)))
    codes += [dataset_snippets.DECODED] if settings.device_decode else []
    codes += [loop_snippets.THREADS] if settings.threads else []
    for value in (settings.worker_cpus, settings.worker_gc):
        if value in _INITS:
            codes.append(_INITS[value][0])
    return "\n".join(codes)


def wrapped_call(
    facts: Facts, made: Built, loader: LoaderRecord, settings: Settings, text: str
) -> str:
    """The call `text` with what the settings ask for around its dataset, and around it.

    Raises CannotEdit.
    """
    wrapping = _wrapping(loader, settings)
    if wrapping is not None:
        if _makes_batches(facts, loader.dataset):
            raise CannotEdit("its dataset makes whole batches itself (__getitems__)")
        text = over(facts, made, loader, text, wrapping)
    if settings.device_decode:
        text = _encoded(facts, made, loader, text)
    if settings.packed:
        _check_collate(made)
        text = _packing(text, loader)
    if settings.worker_cpus in _INITS:
        check_init(made, loader)
        if made.argument("worker_init_fn") is not None:
            raise CannotEdit("it has a worker_init_fn")
        text = _with(text, "worker_init_fn", _INITS[settings.worker_cpus][1])
    if settings.worker_gc in _INITS:
        check_init(made, loader)
        text = _less_collected(made, settings, text)
    if settings.threads:
        if loader.batch_size is None:
            raise CannotEdit("what makes its batches is not known")
        text = f"Threads({text}, {settings.threads})"
    if not (settings.device_decode or settings.packed):
        return text
    device = device_of_all(facts, loader, made.source, made.call)
    if settings.device_decode and made.dataset is not None:
        images = made.source.code(made.dataset)
        text = f"Decoded({text}, {images}.transform, {device})"
    if settings.packed:
        text = f"OneCopy({text}, {device})"
    return text


def over(facts: Facts, made: Built, loader: LoaderRecord, text: str, wrapping: Wrapping) -> str:
    """The loader's call `text` over its dataset wrapped so. Raises CannotEdit."""
    if wrapping.keeps:
        check_built_once(facts, loader)
    if made.dataset is None:
        raise CannotEdit("its dataset is not to be read")
    if wrapping.slices:
        _check_collate(made)
    edit = over_call(loader, text, wrapping.over(made.source.code(made.dataset)), wrapping)
    if edit is None:
        raise CannotEdit("the call can't be changed safely")
    return edit.after


def _check_collate(made: Built) -> None:
    """Raises CannotEdit where the call may take no collate function."""
    if not made.takes("collate_fn"):
        raise CannotEdit(f"{called_name(made.call)} may take no collate_fn")


def check_init(made: Built, loader: LoaderRecord) -> None:
    """Raises CannotEdit where the call takes none, or something else gave the loader its own.

    Lightning seeds workers by one of its own (`seed_everything(workers=True)`), and only where the
    script names none.
    """
    if made.unpacks:
        raise CannotEdit("it may have a worker_init_fn")
    if not made.takes("worker_init_fn"):
        raise CannotEdit(f"{called_name(made.call)} may take no worker_init_fn")
    own = made.argument("worker_init_fn")
    none = own is None or (isinstance(own, ast.Constant) and own.value is None)
    if loader.has_init and none:
        raise CannotEdit(
            "a library, or a later line, gives it a worker_init_fn that one written here may keep "
            "away: call both"
        )


def _less_collected(made: Built, settings: Settings, text: str) -> str:
    """The call with a worker_init_fn that calls the one that it had. Raises CannotEdit."""
    call = parsed_call(text)
    if call is None or len(call.args) > LOADER_PARAMETERS.index("worker_init_fn"):
        raise CannotEdit("it may have a worker_init_fn")
    name = _INITS[settings.worker_gc][1]
    init = next((k.value for k in call.keywords if k.arg == "worker_init_fn"), None)
    own = "" if init is None else ast.unparse(init)
    return _with(text, "worker_init_fn", f"{name}({'' if own == 'None' else own})")


def _encoded(facts: Facts, made: Built, loader: LoaderRecord, text: str) -> str:
    """The call over the files of its dataset, which has a name. Raises CannotEdit."""
    if loader.dataset not in IMAGE_FOLDERS or loader.collate != "default_collate":
        raise CannotEdit("its dataset is no ImageFolder, or has a collate function of its own")
    if not isinstance(made.dataset, (ast.Name, ast.Attribute)) or loader.batch_size is None:
        raise CannotEdit("its dataset has no name, or what makes its batches is not known")
    _check_collate(made)
    wrapping = Wrapping(code="", dataset="Encoded({})")
    return _with(over(facts, made, loader, text, wrapping), "collate_fn", "joined")


def _packing(text: str, loader: LoaderRecord) -> str:
    """The loader's call with its collate function in another. Raises CannotEdit.

    Where the script names none, torch's own: of samples, or of batches that the dataset makes.
    """
    own = argument(parsed_call(text), "collate_fn", LOADER_PARAMETERS)
    if own is not None and not (isinstance(own, ast.Constant) and own.value is None):
        return _with(text, "collate_fn", f"Packing({ast.unparse(own)})")
    if loader.collate not in ("default_collate", "default_convert"):
        raise CannotEdit("its collate function is not to be read")
    return _with(text, "collate_fn", f"Packing(torch.utils.data.{loader.collate})")


def _with(text: str, argument: str, source: str) -> str:
    """The loader's call with that argument, as source text."""
    return with_arguments(
        text,
        {argument: Expression(source)},
        parameters=LOADER_PARAMETERS,
        defaults=LOADER_DEFAULTS,
    )


def _makes_batches(facts: Facts, dataset: str | None) -> bool:
    """Whether a class of the script's makes batches of its own: what indexes it makes others.

    Those of libraries that have the method (Subset, Hugging Face's) give a list of samples, unless
    what they hold has one that does not: which dataset that is nothing here tells.
    """
    classes = {
        node.name: node
        for source in sources_of(facts)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }
    whole = {
        name
        for name, kind in classes.items()
        if any(isinstance(x, ast.FunctionDef) and x.name == "__getitems__" for x in kind.body)
    }
    todo, seen = [dataset], set[str | None]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in classes:
            todo += [ast.unparse(base).rpartition(".")[2] for base in classes[name].bases]
    holds_others = seen - set(classes) - _HOLD_NO_OTHER
    return bool(seen & whole) or bool(holds_others and whole)


def _wrapping(loader: LoaderRecord, settings: Settings) -> Wrapping | None:
    if not settings.batched:
        return CACHED if settings.cache else None
    found = sliced(loader) if settings.cache else rows(loader)
    if found is None:
        made = "its batches are no list or dict of tensors"
        rows_of = "which arrays its samples are rows of is not known"
        raise CannotEdit(made if settings.cache else rows_of)
    return found


# Where what is kept between epochs is built.

# Calls of torch's that give the same once more, of what is the same.
_SAME_AGAIN = frozenset({
    "BatchSampler", "ConcatDataset", "DistributedSampler", "RandomSampler", "SequentialSampler",
    "Subset", "TensorDataset", "partial",
})  # fmt: skip
# What the training process alone reads: workers hold no copy of it that would grow old.
_READ_BY_LOOP = ("sampler", "batch_sampler")
# Blocks whose code is run whenever what is around them is.
_ALWAYS_RUN = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)


def moved_out(editor: Editor, made: Built, text: str) -> None:
    """The loader, built by `text` once, in front of the loop over the epochs. Raises CannotEdit."""
    source, call = made.source, made.call
    loops = source.loops(call)
    statement, name = source.statement(call), made.name
    inline = bool(loops) and isinstance(loops[0], ast.For) and call in ast.walk(loops[0].iter)
    epochs = loops[-1] if len(loops) > inline else None
    if epochs is None:
        raise CannotEdit("it is built by a function that each epoch calls")
    within = takewhile(lambda x: x is not epochs, source.around(statement))
    if not all(isinstance(x, _ALWAYS_RUN) for x in within):
        raise CannotEdit("not every epoch builds it")
    if not _stays(made, text, epochs):
        raise CannotEdit("what it is built of changes in the loop over the epochs")
    above, below = source.indent(epochs), source.indent(statement)
    if inline:
        taken = {x.id for x in ast.walk(source.tree) if isinstance(x, ast.Name)}
        free = [n for n in ("loader", "train_loader", "batches_of") if n not in taken]
        if not free:
            raise CannotEdit("it has no name")
        name = free[0]
        editor.replace(source, source.span(call), name)
    elif _alone(source, statement):
        raise CannotEdit("it is built in a block of its own")
    elif name is None or not source.begins_line(statement):
        raise CannotEdit("it is built within a longer statement")
    elif len(list(values_of(epochs, name, deep=True))) != 1:
        raise CannotEdit("its name is given to something else as well, or deleted")
    else:
        editor.replace(source, (source.line_start(statement), source.line_end(statement)), "")
    first, *rest = text.split("\n")
    moved = [first, *(above + x.removeprefix(below) if x.strip() else x for x in rest)]
    made_once = f"{above}{BUILT_ONCE}\n{above}{name} = " + "\n".join(moved)
    editor.insert(source, source.line_start(epochs), made_once)


def _alone(source: Source, statement: ast.stmt) -> bool:
    """Whether nothing is left of its block without it."""
    owner = source.parents.get(statement)
    blocks = (getattr(owner, name, ()) for name in ("body", "orelse", "finalbody"))
    return any(list(block) == [statement] for block in blocks if isinstance(block, list))


def _stays(made: Built, text: str, epochs: Loop) -> bool:
    """Whether all that the call reads is there before the loop, and stays as it is."""
    source, call = made.source, made.call
    assigned = {
        x.id for x in ast.walk(epochs) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
    }
    if names_in(ast.parse(text)) & assigned or not all(map(_same_again, _evaluated(call))):
        return False
    if not all(source.bound_before(name, epochs) for name in names_in(call)):
        return False
    by_loop = [argument(call, name, LOADER_PARAMETERS) for name in _READ_BY_LOOP]
    held = {
        ast.unparse(x)
        for given in (*call.args, *(k.value for k in call.keywords))
        if given not in by_loop
        for x in ast.walk(given)
        if isinstance(x, (ast.Name, ast.Attribute))
        and not isinstance(source.parents[x], ast.Attribute)
    }
    held |= {f"{made.name}.dataset"} if made.name is not None else set()
    return not any(_changes(node, held) for node in ast.walk(epochs))


def _evaluated(call: ast.Call) -> Iterator[ast.AST]:
    """The parts of the arguments that are evaluated where the loader is built."""
    todo = list(ast.iter_child_nodes(call))
    while todo:
        node = todo.pop()
        yield node
        todo += [] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)


def _same_again(node: ast.AST) -> bool:
    return is_pure(node) or (isinstance(node, ast.Call) and called_name(node) in _SAME_AGAIN)


def _changes(node: ast.AST, held: set[str]) -> bool:
    """Whether it assigns to a part of these, or calls a method of one, or shuffles it."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return ast.unparse(node) in held or ast.unparse(node.value) in held
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    if called_name(call) == "shuffle" and any(ast.unparse(x) in held for x in call.args):
        return True
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in held


def why_not_kept(facts: Facts, setting: str = "persistent_workers") -> str | None:
    """Why what a setting of `KEEPING` keeps must not be; None where nothing speaks against it.

    `dataset.set_epoch(epoch)`, `loader.dataset.labels = labels`: it would stay as it was.
    """
    at = _changed_at(facts)
    if at is None:
        return None
    if setting == "persistent_workers":
        why = "which workers that are kept would not hear of: they have their own copy."
    else:
        why = "and samples that are kept would stay as they were."
    return f"{at} changes the dataset between epochs, {why}"


def why_not_made_once(facts: Facts, loader: LoaderRecord) -> str | None:
    """What speaks against samples that are made once, whatever they take; None: nothing known."""
    unsafe, stale = why_unsafe(facts, Settings(cache=True)), why_not_kept(facts, "cache")
    if unsafe is not None:
        return unsafe.reason
    if stale is not None:
        return stale
    if facts.step is None or loader.id not in facts.step.rebuilt:
        return None
    return (
        "the loop builds the loader again for each pass, and samples that it keeps would be made "
        "again each time: build it once, before the loop."
    )


def _changed_at(facts: Facts) -> str | None:
    """The line of the loop over the epochs that changes the dataset: "train.py:12"."""
    loader = facts.main_loader
    made = built(facts, loader) if loader is not None else None
    if made is None or made.dataset is None:
        return None
    source, function = made.source, made.source.function(made.call)
    held = {source.code(made.dataset)}
    held |= {f"{made.name}.dataset"} if made.name is not None else set()
    for loop in ast.walk(function or source.tree):
        if not isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
            continue
        if source.function(loop) is not function or (loop.end_lineno or 0) < made.call.lineno:
            continue  # what goes before makes the dataset
        for node in ast.walk(loop):
            if isinstance(node, (ast.expr, ast.stmt)) and _changes(node, held):
                return f"{source.name}:{node.lineno}"
    return None
