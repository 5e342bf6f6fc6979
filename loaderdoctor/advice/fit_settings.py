"""Settings as changes of the user's files: the loader's call, the copies, the loop, switches."""

from __future__ import annotations

import ast
from collections.abc import Collection

from loaderdoctor.advice import loop_snippets
from loaderdoctor.advice.built import Built, built, check_built_once, device_of_all, flat_dict
from loaderdoctor.advice.call_edit import CannotEdit, argument, where_workers, with_arguments
from loaderdoctor.advice.code import (
    AROUND_BATCHES,
    AROUND_LOADER,
    LOADER_DEFAULTS,
    LOADER_PARAMETERS,
    TRAINING_ARGUMENTS,
    TRAINING_DEFAULTS,
    TRANSFER_PARAMETERS,
    is_no_transfer,
    loader_arguments,
    trainer_arguments,
)
from loaderdoctor.advice.fit_wrapping import moved_out, wrapped_call, wrapping_code
from loaderdoctor.advice.patch import (
    Editor,
    Iterated,
    collector,
    define,
    import_from,
    iterated,
    left_early,
    statement_below_imports,
)
from loaderdoctor.advice.source import at_label, called_name, sources_of
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings, Value

_OPTIMIZERS = (
    "Adagrad", "Adam", "AdamW", "SGD",
)  # fmt: skip  # of torch.optim, those that take `fused` (torch 2.6 to 2.14)


def fit_settings(
    editor: Editor, facts: Facts, settings: Settings, *, without: Collection[str] = ()
) -> str | None:
    """Write these settings into the script; arguments in `without` are given elsewhere.

    What is left to be done by hand comes back in a sentence. Raises CannotEdit where one of them
    can't be written safely.
    """
    by_hand = None
    arguments = {k: v for k, v in loader_arguments(settings).items() if k not in without}
    if arguments or any(settings.as_dict()[name] for name in AROUND_LOADER):
        by_hand = _loaders(editor, facts, settings, arguments)
    if settings.non_blocking:
        _transfers(editor, facts)
    if any(settings.as_dict()[name] is not None for name in AROUND_BATCHES):
        _batches(editor, facts, settings)
    for name, value in settings.changed().items():
        if name not in _IN_CALLS:
            _AXES.get(name, _unknown)(editor, facts, value)
    return by_hand


_IN_CALLS = (
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order",
    "start_method", "batch_size", "non_blocking", *AROUND_LOADER,
    *AROUND_BATCHES,
)  # fmt: skip


def _unknown(editor: Editor, facts: Facts, value: Value) -> None:
    raise CannotEdit("it changes more than a line")


# The loader's call.


def _loaders(
    editor: Editor, facts: Facts, settings: Settings, arguments: dict[str, Value]
) -> str | None:
    found: dict[ast.Call, tuple[Built, LoaderRecord]] = {}
    codes: set[str] = set()
    for loader in facts.feeding:
        if loader.library == "transformers":
            _training_arguments(editor, facts, arguments)
            continue
        made = built(facts, loader)
        if made is None:
            raise CannotEdit(
                f"{loader.library} builds this loader"
                if loader.library is not None
                else "the call was not found in the script"
            )
        codes.add(wrapping_code(loader, settings))
        found.setdefault(made.call, (made, loader))
    if len(codes) > 1:
        raise CannotEdit("its loaders need classes of one name that differ")
    first = {x.source: x for x, _ in sorted(found.values(), key=lambda x: -x[0].call.lineno)}
    for code in filter(None, codes):
        for made in first.values():  # of each file
            define(editor, made.source, made.call, code)
    by_hand = None
    once = facts.step.rebuilt if settings.persistent_workers and facts.step is not None else ()
    for made, loader in found.values():
        text = wrapped_call(facts, made, loader, settings, edited_call(made, arguments))
        if loader.id in once:
            try:
                moved_out(editor, made, text)
                continue
            except CannotEdit as why:
                by_hand = f"Build the loader once, before the loop over the epochs: now {why}."
        editor.replace(made.source, made.source.span(made.call), text)
    return by_hand


def edited_call(made: Built, arguments: dict[str, Value]) -> str:
    """The loader's call with these arguments. Where it counts workers, none may be; CannotEdit."""
    given = where_workers(made.argument("num_workers"), made.source.text, arguments)
    for name, value in given.items():
        if value != LOADER_DEFAULTS.get(name) and not made.takes(name):
            raise CannotEdit(f"{called_name(made.call)} may take no {name}")
    return with_arguments(
        made.source.code(made.call),
        given,
        parameters=LOADER_PARAMETERS if made.is_torchs else (),
        defaults=LOADER_DEFAULTS,
    )


def _training_arguments(editor: Editor, facts: Facts, arguments: dict[str, Value]) -> None:
    """Fields of transformers' TrainingArguments, where the script makes one."""
    calls = [
        (source, call)
        for source in sources_of(facts)
        for call in source.calls()
        if called_name(call).endswith("TrainingArguments")
    ]
    if len(calls) != 1 or trainer_arguments(arguments) is None:
        raise CannotEdit("transformers builds this loader")
    source, call = calls[0]
    own = argument(call, TRAINING_ARGUMENTS["num_workers"], ())
    named = trainer_arguments(where_workers(own, source.text, arguments)) or {}
    text = with_arguments(source.code(call), named, parameters=(), defaults=TRAINING_DEFAULTS)
    editor.replace(source, source.span(call), text)


# The copies.


def _transfers(editor: Editor, facts: Facts) -> None:
    """Every blocking `.to(…)`, `.cuda(…)` or `.copy_(…)` that was seen."""
    sources, n_edits = sources_of(facts), 0
    done: set[ast.Call] = set()
    for transfer in facts.transfers:
        place = at_label(sources, transfer.site)
        if transfer.non_blocking or place is None:
            continue
        source, line = place
        for call in source.calls():
            here = call.lineno <= line <= (call.end_lineno or call.lineno)
            if not here or called_name(call) != transfer.call or call in done:
                continue
            if not isinstance(call.func, ast.Attribute):
                continue
            end = source.span(call)[1]
            # From the method's name on: what it is called on may hold such calls too.
            head = source.span(call.func)[1] - len(call.func.attr)
            text = source.text[head:end]
            if transfer.call == "to" and is_no_transfer(text):
                continue
            done.add(call)
            edited = with_arguments(
                text,
                {"non_blocking": True},
                parameters=TRANSFER_PARAMETERS[transfer.call],
                defaults={"non_blocking": False},
            )
            editor.replace(source, (head, end), edited)
            n_edits += 1
    if not n_edits:
        raise CannotEdit("the copies are not in the script's own lines")


# The loop.


def _batches(editor: Editor, facts: Facts, settings: Settings) -> None:
    """What the loop goes over: batches from a thread, or copied ahead on a stream, or both."""
    in_thread = settings.background in ("host", "device")
    main = facts.main_loader
    if settings.side_stream is not None and main not in facts.feeding:
        raise CannotEdit("the loop, or its device, was not found in the script")
    for loader in facts.feeding:
        copied = settings.side_stream is not None and loader is main
        if not in_thread and not copied:
            continue
        at = iterated(facts, loader)
        if at is None:
            raise CannotEdit("the loop over it was not found in the script")
        text = at.source.code(at.loader)
        if in_thread:
            text = _from_a_thread(editor, at, text)
        if copied:
            text = _copied_ahead(editor, facts, at, text, settings.side_stream)
        editor.replace(at.source, at.source.span(at.loader), text)


def _from_a_thread(editor: Editor, at: Iterated, batches: str) -> str:
    """Raises CannotEdit where the script goes over the loader in another place meanwhile."""
    calls = list(at.source.calls())
    looks = {id(call.args[0]) for call in calls if called_name(call) == "next" and call.args}
    for call in calls:
        over_it = called_name(call) == "iter" and [at.source.code(x) for x in call.args] == [
            batches
        ]
        if over_it and id(call) not in looks:  # `next(iter(loader))` is a look at one batch
            raise CannotEdit("the script iterates the loader in another place too")
    import_from(editor, at.source, "prefetch_generator", "BackgroundGenerator")
    if not left_early(at.loop):
        return f"BackgroundGenerator(iter({batches}), max_prefetch=2)"
    define(editor, at.source, at.loop, loop_snippets.FETCHED_AHEAD)
    return f"fetched_ahead(iter({batches}))"


def _copied_ahead(
    editor: Editor, facts: Facts, at: Iterated, batches: str, value: bool | None
) -> str:
    loader = facts.main_loader
    if loader is None or value is not True:
        raise CannotEdit("the loop was not found in the script")
    device = device_of_all(facts, loader, at.source, at.loop)
    define(editor, at.source, at.loop, loop_snippets.copied_ahead(as_dict=flat_dict(loader)))
    return f"copied_ahead({batches}, {device})"


def _resident(editor: Editor, facts: Facts, value: Value) -> None:
    loader = facts.main_loader
    made = built(facts, loader) if loader is not None else None
    if loader is None or made is None or made.name is None or value is not True:
        raise CannotEdit("the loader has no name in the script")
    check_built_once(facts, loader)
    if flat_dict(loader) or loader.holds_others or len(facts.feeding) > 1:
        raise CannotEdit("its batches are no lists of tensors")
    if loader.batch_size is None or loader.kind != "map":  # its code indexes the dataset
        raise CannotEdit("what makes its batches is not known")
    holder = made.holder
    assert holder is not None  # it has a name
    device = device_of_all(facts, loader, made.source, holder)
    define(editor, made.source, holder, loop_snippets.ON_DEVICE)
    rebound(editor, made, f"OnDevice({made.name}, {device})")


def _reused_buffers(editor: Editor, facts: Facts, value: Value) -> None:
    """The trial takes a buffer again once the loop has let go of it; a few lines can't know that.

    They also pin nothing and are for one kind of batch: what they bring was not measured.
    """
    raise CannotEdit("the trial saw when the loop let go of a batch, which no few lines do")


def rebound(editor: Editor, made: Built, value: str) -> None:
    """`loader = VALUE` behind the statement that names the loader. Raises CannotEdit."""
    holder = made.holder
    if holder is None or made.name is None or not made.source.begins_line(holder):
        raise CannotEdit("the loader has no name in the script")
    line = f"{made.source.indent(holder)}{made.name} = {value}"
    editor.insert(made.source, made.source.line_end(holder), line)


# Switches, and what the optimizer is told.


def _tf32(editor: Editor, facts: Facts, value: Value) -> None:
    precision = "high" if value else "highest"
    _lines(editor, facts, f'torch.set_float32_matmul_precision("{precision}")',
           f"torch.backends.cudnn.allow_tf32 = {value}")  # fmt: skip


def _cudnn_benchmark(editor: Editor, facts: Facts, value: Value) -> None:
    _lines(editor, facts, f"torch.backends.cudnn.benchmark = {value}")


def _num_threads(editor: Editor, facts: Facts, value: Value) -> None:
    _lines(editor, facts, f"torch.set_num_threads({value})")


def _lines(editor: Editor, facts: Facts, *lines: str) -> None:
    sources = sources_of(facts)
    if not sources:
        raise CannotEdit("the script is not known")
    statement_below_imports(editor, sources[0], lines)


def _zero_grad(editor: Editor, facts: Facts, value: Value) -> None:
    compute, sources = facts.compute, sources_of(facts)
    label = compute.zero_fill_site if compute is not None else None
    calls = [
        (source, call)
        for source in sources
        for call in source.calls()
        if called_name(call) == "zero_grad"
        and (label is None or f"{source.name}:{call.lineno}" == label)
    ]
    if not calls:
        raise CannotEdit("zero_grad is not called in the script's own lines")
    for source, call in calls:
        text = with_arguments(
            source.code(call),
            {"set_to_none": bool(value)},
            parameters=("set_to_none",),
            defaults={"set_to_none": True},
        )
        editor.replace(source, source.span(call), text)


def _fused(editor: Editor, facts: Facts, value: Value) -> None:
    calls = [
        (source, call)
        for source in sources_of(facts)
        for call in source.calls()
        if called_name(call) in _OPTIMIZERS
    ]
    if len(calls) != 1 or not calls[0][0].is_of("torch", calls[0][1].func):
        raise CannotEdit("the script's optimizer was not found, or is not torch's")
    source, call = calls[0]
    if any(k.arg in ("foreach", "differentiable") for k in call.keywords):
        raise CannotEdit("torch takes no other form next to it")
    text = with_arguments(
        source.code(call), {"fused": bool(value)}, parameters=(), defaults={"fused": None}
    )
    editor.replace(source, source.span(call), text)


_AXES = {
    "resident": _resident,
    "reuse_buffers": _reused_buffers,
    "tf32": _tf32,
    "cudnn_benchmark": _cudnn_benchmark,
    "num_threads": _num_threads,
    "zero_grad_none": _zero_grad,
    "fused_optimizer": _fused,
    "gc": collector,
}
