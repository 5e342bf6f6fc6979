"""Changes of code, written into the script at hand: one function for each kind that can be."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from loaderdoctor.advice import loop_snippets
from loaderdoctor.advice.built import Built, built
from loaderdoctor.advice.call_edit import CannotEdit, Expression, with_arguments
from loaderdoctor.advice.code import LOADER_DEFAULTS, LOADER_PARAMETERS
from loaderdoctor.advice.fit_loop import on_a_line
from loaderdoctor.advice.fit_settings import fit_settings, rebound
from loaderdoctor.advice.fit_wrapping import check_init, over, why_not_made_once
from loaderdoctor.advice.patch import Editor, define
from loaderdoctor.advice.source import (
    at_label,
    called_name,
    names_in,
    sources_of,
)
from loaderdoctor.advice.worked import (
    Wrapping,
    from_array,
    over_own_line,
    rows,
    without_workers,
    wrapping_of_another,
)
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding, Kind
from loaderdoctor.settings import Settings

Fit = Callable[[Editor, Facts, Finding], None]


def fitted(facts: Facts, finding: Finding) -> str | None:
    """What to change for this finding, as lines of the script; None where none is known to fit."""
    if finding.evidence.get("format") == "pil-round-trip":
        return wrapped(facts, from_array(facts))
    fit = _FITS.get(finding.kind)
    editor = Editor()
    try:
        if fit is None:
            return None
        fit(editor, facts, finding)
        return editor.patch().printed()
    except CannotEdit:
        return None


def made_in_script(facts: Facts) -> Built:
    """Where the main loader is built. Raises CannotEdit where that is not in the script."""
    loader = facts.main_loader
    made = built(facts, loader) if loader is not None else None
    if made is None:
        raise CannotEdit("the loader's call is not in the script")
    return made


def _whole_batches(editor: Editor, facts: Facts, finding: Finding) -> None:
    """A TensorDataset gives a whole batch in one indexing call."""
    loader = facts.main_loader
    wrapping = rows(loader)
    if wrapping is None or loader is None or loader.dataset != "TensorDataset":  # not tried
        raise CannotEdit("its samples are no rows of tensors")
    over_dataset(editor, facts, wrapping)


def wrapped(facts: Facts, wrapping: Wrapping | None) -> str | None:
    """The loader over that dataset, as lines of the script; None where it can't be built so."""
    if wrapping is None:
        return None
    if not sources_of(facts):
        return over_own_line(facts.main_loader, wrapping)
    editor = Editor()
    try:
        over_dataset(editor, facts, wrapping)
        return editor.patch().printed()
    except CannotEdit:
        return None


def decoded_on_device(facts: Facts) -> str | None:
    """Files decoded and transformed on the device, as lines of the script, where they can be."""
    editor = Editor()
    try:
        fit_settings(editor, facts, Settings(device_decode=True))
        return editor.patch().printed()
    except CannotEdit:
        return None


def over_dataset(editor: Editor, facts: Facts, wrapping: Wrapping) -> None:
    """The loader's call over that dataset, and what defines it above. Raises CannotEdit.

    Of all loaders that feed the step, as the trial has it, where samples or batches are kept.
    """
    main = facts.main_loader
    assert main is not None
    first: dict[str, Built] = {}  # of each file, the first call that is changed
    done: set[ast.Call] = set()
    for loader in (main, *(x for x in facts.feeding if x is not main)):
        own = wrapping if loader is main else wrapping_of_another(wrapping, main, loader)
        made = built(facts, loader)
        if made is None or (own is not None and own.code != wrapping.code):
            raise CannotEdit("the loader's call is not in the script, or needs a class of its own")
        if own is None or made.call in done:
            continue
        done.add(made.call)
        after = over(facts, made, loader, made.source.code(made.call), own)
        after = without_workers(loader, after) if own.slices else after
        editor.replace(made.source, made.source.span(made.call), after)
        known = first.setdefault(made.source.path, made)
        if made.call.lineno < known.call.lineno:
            first[made.source.path] = made
    for made in first.values():
        define(editor, made.source, made.call, wrapping.code)


def _init_function(code: str, name: str) -> Fit:
    """A worker_init_fn, where the loader has none."""

    def fit(editor: Editor, facts: Facts, finding: Finding) -> None:
        made = made_in_script(facts)
        if made.argument("worker_init_fn") is not None:
            raise CannotEdit("it has a worker_init_fn")
        if facts.main_loader is not None:
            check_init(made, facts.main_loader)
        text = with_arguments(
            made.source.code(made.call),
            {"worker_init_fn": Expression(name)},
            parameters=LOADER_PARAMETERS,
            defaults=LOADER_DEFAULTS,
        )
        define(editor, made.source, made.call, code)
        editor.replace(made.source, made.source.span(made.call), text)

    return fit


def _worker_threads(editor: Editor, facts: Facts, finding: Finding) -> None:
    """OpenCV's threads; those of NumPy's BLAS are told before it is imported."""
    made = made_in_script(facts)
    if not any(source.imports("cv2") == "cv2" for source in sources_of(facts)):
        raise CannotEdit("its threads are not OpenCV's")
    code = loop_snippets.ONE_THREAD
    if made.source.imports("cv2") != "cv2":
        code = f"import cv2\n{code}"
    _init_function(code, "one_thread")(editor, facts, finding)


def _one_iterator(editor: Editor, facts: Facts, finding: Finding) -> None:
    """`next(iter(loader))` in a loop: of one iterator, made before the loop."""
    loader = facts.main_loader
    place = at_label(sources_of(facts), loader.loop) if loader is not None and loader.loop else None
    for source in sources_of(facts):
        found = [
            (call, call.args[0].args[0])
            for call in source.calls()
            if called_name(call) == "next"
            and len(call.args) == 1
            and isinstance(call.args[0], ast.Call)
            and called_name(call.args[0]) == "iter"
            and len(call.args[0].args) == 1
            and source.loops(call)
            and (place is None or source.holds(call, [(place[0].path, place[1])]))
        ]
        if len(found) != 1:
            continue
        call, given = found[0]
        loop = source.loops(call)[-1]
        assigned = {
            x.id for x in ast.walk(loop) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
        }
        names = names_in(given)
        if names & assigned or not all(source.bound_before(name, loop) for name in names):
            raise CannotEdit("the loader is made in the loop")
        define(editor, source, call, loop_snippets.FOREVER)
        indent = source.indent(loop)
        above = f"{indent}batches = forever({source.code(given)})"
        if "batches" in {x.id for x in ast.walk(source.tree) if isinstance(x, ast.Name)}:
            raise CannotEdit("the script has batches of its own")
        editor.insert(source, source.line_start(loop), above)
        editor.replace(source, source.span(call), "next(batches)")
        return
    raise CannotEdit("no next(iter(…)) was found")


def _pin_method(editor: Editor, facts: Facts, finding: Finding) -> None:
    """The batch's class, with the method that DataLoader calls to pin it."""
    loader = facts.main_loader
    name = loader.batch_type if loader is not None else ""
    classes = [
        (source, node)
        for source in sources_of(facts)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    if len(classes) != 1:
        raise CannotEdit("the class of its batches is not in the script")
    source, node = classes[0]
    text = source.code(node)
    if "__slots__" in text or "slots=True" in text or "NamedTuple" in text:
        raise CannotEdit("its fields are not to be set")
    last = node.body[-1]
    if not source.begins_line(last):  # `class Batch: pass`
        raise CannotEdit("its body stands in one line")
    indent = source.indent(last)
    method = "\n".join(f"{indent}{line}" for line in loop_snippets.PIN_METHOD_LINES)
    editor.insert(source, source.line_end(last), method)
    if source.imports("torch") != "torch":
        raise CannotEdit("its module does not import torch")


def _kept_batches(editor: Editor, facts: Facts, finding: Finding) -> None:
    if finding.evidence.get("collate_library") in (None, "torch"):
        raise CannotEdit("what it does for a sample can't be told")
    made, loader = made_in_script(facts), facts.main_loader
    assert loader is not None  # it was made
    if loader.kind != "map" or why_not_made_once(facts, loader) is not None:
        raise CannotEdit("a pass over it may have no end, or be unlike the next")
    if made.holder is None:
        raise CannotEdit("the loader has no name")
    define(editor, made.source, made.holder, loop_snippets.KEPT)
    rebound(editor, made, f"Kept({made.name})")


def _tf32(editor: Editor, facts: Facts, finding: Finding) -> None:
    fit_settings(editor, facts, Settings(tf32=True))


def _cudnn_benchmark(editor: Editor, facts: Facts, finding: Finding) -> None:
    fit_settings(editor, facts, Settings(cudnn_benchmark=True))


def _zero_grad(editor: Editor, facts: Facts, finding: Finding) -> None:
    fit_settings(editor, facts, Settings(zero_grad_none=True))


def _packed(editor: Editor, facts: Facts, finding: Finding) -> None:
    fit_settings(editor, facts, Settings(packed=True))


_FITS: Mapping[Kind, Fit] = {
    Kind.OVERHEAD_BOUND_LOADER: _whole_batches,
    Kind.ITERATOR_RECREATED: _one_iterator,
    Kind.THREAD_OVERSUBSCRIPTION: _worker_threads,
    Kind.WORKERS_SHARE_A_CORE: _init_function(loop_snippets.ALL_CPUS, "all_cpus"),
    Kind.PIN_INEFFECTIVE: _pin_method,
    Kind.COLLATE_BOUND: _kept_batches,
    Kind.SYNC_EVERY_STEP: on_a_line,
    Kind.WORK_BETWEEN_STEPS: on_a_line,
    Kind.TF32_OFF: _tf32,
    Kind.CUDNN_BENCHMARK_OFF: _cudnn_benchmark,
    Kind.GRAD_NOT_SET_TO_NONE: _zero_grad,
    Kind.MANY_SMALL_COPIES: _packed,
}
