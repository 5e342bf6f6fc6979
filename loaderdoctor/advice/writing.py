"""How settings are written: by an option of the script's, in its lines, or in words.

Where workers need it, what of the script runs is put behind the main guard: in its lines where they
are few. And what a setting does to what is trained, where batches or numerics do not stay what they
are.
"""

from __future__ import annotations

import ast
import io
import tokenize

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.candidates import CodeAdvice
from loaderdoctor.advice.code import Written, edits_for, hints_for
from loaderdoctor.advice.command_line import rerun
from loaderdoctor.advice.fit_settings import fit_settings
from loaderdoctor.advice.ideas import KEPT_BATCHES
from loaderdoctor.advice.patch import Editor, Patch
from loaderdoctor.advice.source import Source, names_in, sources_of
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import needs_guard
from loaderdoctor.findings.model import Kind
from loaderdoctor.setting_words import FEWER_PARAMETERS, NUMERICS_CHANGE, PIXELS_DIFFER
from loaderdoctor.settings import AXES_BY_NAME, Settings, Value

# More lines than this are said by their numbers: nobody reads them twice, once to be indented.
MAX_LINES = 16
_DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# By the finding that code answers.
_BY_CODE = {
    Kind.TF32_OFF: NUMERICS_CHANGE,
    Kind.CUDNN_BENCHMARK_OFF: NUMERICS_CHANGE,
    Kind.PADDING_WASTE: "batches hold samples of one length",
    Kind.BIAS_BEFORE_BATCHNORM: FEWER_PARAMETERS,
}


def guarded(facts: Facts, settings: Settings, editor: Editor) -> tuple[str, str | None]:
    """The editor's changes as printed, and with them the guard that workers need, or a sentence.

    Raises CannotEdit where the changes can't be made.
    """
    loader = facts.main_loader
    missing = loader is not None and loader.safety.guard_missing is not None
    if not (settings.num_workers and missing and needs_guard(facts)):
        return (editor.patch().printed() if editor.changes else ""), None
    patch = editor.patch() if editor.changes else Patch(())
    main = sources_of(facts)[0]
    after = next((text for source, text in patch.files if source is main), main.text)
    text, first, last = _under_guard(main, after)
    if text is not None and last - first < MAX_LINES:
        files = tuple((source, new) for source, new in patch.files if source is not main)
        return Patch(((main, text), *files)).printed(), None
    return (
        patch.printed(),
        f"Put what runs, lines {first} to {last} of {main.name}, under "
        '`if __name__ == "__main__":`, indented: workers import the script again.',
    )


def _under_guard(main: Source, text: str) -> tuple[str | None, int, int]:
    """The text with a guard, and the lines of the script that it goes around.

    No text where definitions stand among what runs.
    """
    before, tree = _running(main.tree), ast.parse(text)
    first, last = before[0].lineno, before[-1].end_lineno or before[-1].lineno
    runs = _running(tree)
    behind = tree.body[tree.body.index(runs[0]) :]
    if len(behind) != len(runs):
        return None, first, last
    lines = text.split("\n")
    at = runs[0].lineno - 1
    kept = _within_strings(text)
    moved = [
        f"    {line}" if line.strip() and number not in kept else line
        for number, line in enumerate(lines[at:], at + 1)
    ]
    after = "\n".join([*lines[:at], 'if __name__ == "__main__":', *moved])
    try:
        compile(after, main.name, "exec", dont_inherit=True)
    except SyntaxError:
        return None, first, last
    return after, first, last


def _running(tree: ast.Module) -> list[ast.stmt]:
    """What is no definition: neither imports, functions, classes nor names that these read."""
    defines = [x for x in tree.body if isinstance(x, _DEFINES)]
    used = {name for x in defines for name in names_in(x)}
    runs = []
    for i, node in enumerate(tree.body):
        docstring = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        read = isinstance(node, (ast.Assign, ast.AnnAssign)) and used & {
            x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
        }
        if not docstring and not isinstance(node, _DEFINES) and not read:
            runs.append(node)
    if not runs:
        raise CannotEdit("nothing of the script runs")
    return runs


def _within_strings(text: str) -> set[int]:
    """Lines that begin within a text of several lines: an indent would change it."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING or token.string.startswith(('f"""', "f'''")):
            found |= set(range(token.start[0] + 1, token.end[0] + 1))
    return found


def written(facts: Facts, settings: Settings) -> Written:
    """What to type or to write for these settings; words where no line is known to fit."""
    if not sources_of(facts):
        return Written.of(edits_for(facts, settings))
    again = rerun(facts, settings)
    by_option = again.arguments if again is not None else frozenset()
    code, idea = "", None
    editor = Editor()
    try:
        by_hand = fit_settings(editor, facts, settings, without=by_option)
        code, guard = guarded(facts, settings, editor)
        idea = " ".join(filter(None, (by_hand, guard))) or None
    except CannotEdit as why:
        idea = hints_for(facts, settings, without=by_option, why=str(why))
    said = None
    if again is not None:
        said = f"Run it with `{' '.join(again.options)}`."
    return Written(
        code=code,
        idea=" ".join(filter(None, (said, idea))) or None,
        command=again.command if again is not None else None,
    )


def trains_by_code(advice: CodeAdvice) -> str | None:
    """The same of a change of code."""
    if advice.axis == "device_decode":
        return PIXELS_DIFFER
    if advice.title == KEPT_BATCHES.title:
        return "the same samples stay together, and batches come in another order"
    return _BY_CODE.get(advice.kind) if advice.kind is not None else None


def changes_training(facts: Facts, name: str, value: Value) -> str | None:
    """In words, to be said with the advice and expected of its proof; None: training is the same.

    Random draws in other processes count as the same: a proof fixes them.
    """
    loader = facts.main_loader
    if name == "device_decode" and value:
        return PIXELS_DIFFER
    if name == "in_order" and value is False:
        return "batches come in another order"
    if name == "batch_size":
        return "batches have another size"
    if name == "num_workers" and loader is not None and loader.kind == "iterable":
        own, wanted = loader.settings.num_workers or 0, int(value or 0)
        if own != wanted and max(own, wanted) > 1:
            return "the stream is dealt to the workers: the same samples, in other batches"
    return NUMERICS_CHANGE if AXES_BY_NAME[name].numerics and name != "num_threads" else None
