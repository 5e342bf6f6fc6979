"""How settings are written: by an option of the script's, in its lines, or in words.

Where workers need it, what of the script runs is put behind the main guard: in its lines where they
are few. And what a setting does to what is trained, where batches or numerics do not stay what they
are.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loaderdoctor.advice import CodeAdvice
from loaderdoctor.advice.assigned import Option, key_of
from loaderdoctor.advice.built import built
from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.code import (
    TRAINING_ARGUMENTS,
    Written,
    edits_for,
    hints_for,
    loader_arguments,
)
from loaderdoctor.advice.fit_settings import fit_settings
from loaderdoctor.advice.ideas import KEPT_BATCHES
from loaderdoctor.advice.options import option_of
from loaderdoctor.advice.patch import Editor, Patch
from loaderdoctor.advice.source import Source, names_in, sources_of, unwarned, within_strings
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Kind
from loaderdoctor.findings.exposure import needs_guard
from loaderdoctor.secrets import masked
from loaderdoctor.setting_words import FEWER_PARAMETERS, NUMERICS_CHANGE, PIXELS_DIFFER
from loaderdoctor.settings import AXES_BY_NAME, Settings, Value

_ENVIRONMENT = re.compile(r"^[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """How to start the script with settings that it has options for."""

    options: tuple[str, ...]  # what is given anew, each as it is typed: `-j 9`
    command: str | None  # the whole line, other words kept; None: how it was started is not known
    arguments: frozenset[str]  # the loader's arguments that are set so


def rerun(facts: Facts, settings: Settings) -> Rerun | None:
    """With these settings of the loader, as far as each comes from an option as it is.

    None where none does. Only what every loader that feeds the step takes from the same option.
    """
    found: dict[str, tuple[Option, Value]] = {}
    for name, value in loader_arguments(settings).items():
        if value is None:
            continue  # no option's value says "none"
        option = _option_of_argument(facts, name)
        if option is not None and option.place - 1 > _n_words(facts):
            continue  # words before it are missing, and not known
        if option is not None and _typed(option, value) is not None:
            found[name] = (option, value)
    script = facts.script
    if not found or script is None:
        return None
    words = list(script.args)
    environment: dict[str, str] = {}
    typed = []
    for option, value in found.values():
        said = _typed(option, value)
        assert said is not None  # checked above
        typed.append(_shown(option, said))
        if option.kind == "environment":
            environment[option.names[0]] = said[0]
        else:
            words = _with(words, option, said, remainder=_takes_remainder(facts))
    return Rerun(
        options=tuple(typed),
        command=_command(facts, words, environment),
        arguments=frozenset(found),
    )


def command_with_environment(facts: Facts, environment: Mapping[str, str]) -> str | None:
    """The script as it was started, with these variables set."""
    script = facts.script
    return _command(facts, script.args, environment) if script is not None else None


def _command(facts: Facts, words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """One line for a shell; None where several processes were started, by whatever means.

    Without the words that a recipe adds to run for as long as it is measured, unless they changed.
    """
    script = facts.script
    if script is None or script.n_ranks > 1 or (script.module or script.given) is None:
        return None
    target = ["-m", script.module] if script.module is not None else [str(script.given)]
    given = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    added = script.args[: script.n_added_args]
    if tuple(words[: len(added)]) == added:
        words = words[len(added) :]
    return " ".join([*given, shlex.join(["python", *target, *masked(words)])])


def _option_of_argument(facts: Facts, name: str) -> Option | None:
    sources = sources_of(facts)
    options = set()
    for loader in facts.feeding:
        if loader.library == "transformers":
            options.add(_of_trainer(sources, name))
            continue
        made = built(facts, loader)
        if made is None:
            return None
        node = made.argument(name)
        unpacked = node is None
        if node is None:
            node = _unpacked(made.source, made.call, name)
        option = None
        if node is not None:
            one_rank = facts.script is not None and facts.script.n_ranks == 1
            option = option_of(
                sources, made.source, node, one_rank=one_rank, callers=loader.callers
            )
        if option is not None and unpacked and "hydra" in made.source.text:
            # The configuration may not have this key yet: `++` sets it either way.
            option = replace(option, names=tuple(f"++{key}" for key in option.names))
        options.add(option)
    return options.pop() if len(options) == 1 else None


def _unpacked(source: Source, call: ast.Call, name: str) -> ast.expr | None:
    """`cfg.loader.num_workers` of `DataLoader(dataset, **cfg.loader)`; what `**kwargs` holds."""
    unpacked = [k.value for k in call.keywords if k.arg is None]
    if len(unpacked) == 1 and isinstance(unpacked[0], ast.Name):
        return key_of(source, unpacked[0], name)
    if len(unpacked) != 1 or not isinstance(unpacked[0], ast.Attribute):
        return None
    text = f"{source.code(unpacked[0])}.{name}"
    # Its names are looked up from where the call stands.
    node = ast.parse(text, mode="eval").body
    for part in ast.walk(node):
        ast.copy_location(part, unpacked[0])
    return _adopted(source, call, node)


def _adopted(source: Source, call: ast.Call, node: ast.expr) -> ast.expr:
    parents = source.parents
    assert isinstance(parents, dict)
    parents[node] = call
    for part in ast.walk(node):
        for child in ast.iter_child_nodes(part):
            parents[child] = part
    return node


def _of_trainer(sources: Sequence[Source], name: str) -> Option | None:
    """A field of TrainingArguments, where a parser of the script's fills them."""
    if name not in TRAINING_ARGUMENTS or not any("HfArgumentParser" in x.text for x in sources):
        return None
    return Option(kind="flag", names=(f"--{TRAINING_ARGUMENTS[name]}",))


def _takes_remainder(facts: Facts) -> bool:
    """Whether the script takes all that follows as one argument."""
    return any("REMAINDER" in x.text or "nargs='...'" in x.text for x in sources_of(facts))


def _n_words(facts: Facts) -> int:
    return len(facts.script.args) if facts.script is not None else 0


def _typed(option: Option, value: Value) -> tuple[str, ...] | None:
    """The words of an option with this value; None where it can't be given."""
    flag = min(option.names, key=lambda n: (n.startswith("--"), len(n)), default="")
    if not option.switch:
        said = option.spelled(value)
        if said is None or option.kind in ("place", "environment"):
            return (said,) if said is not None else None
        return (f"{flag}={said}",) if option.kind == "key" else (flag, said)
    if not isinstance(value, bool):
        return None
    if value != option.off:
        return (next((n for n in option.names if n.startswith("--")), flag),)
    return (option.negated,) if option.negated is not None else None


def _shown(option: Option, typed: Sequence[str]) -> str:
    if option.kind == "environment":
        return f"{option.names[0]}={typed[0]}"
    if option.kind == "place":
        return f"{typed[0]} as word {option.place}"
    return shlex.join(typed)


def _with(
    words: Sequence[str], option: Option, typed: Sequence[str], *, remainder: bool
) -> list[str]:
    """The words with this option in the place where it stood, else behind them."""
    if option.kind == "place":
        return [*words[: option.place - 1], typed[0], *words[option.place :]]
    if option.kind == "key":
        key = option.names[0].lstrip("+")
        same = [i for i, w in enumerate(words) if w.lstrip("+").partition("=")[0] == key]
        if same:
            return [*words[: same[-1]], typed[0], *words[same[-1] + 1 :]]
        return [*words, typed[0]]
    kept = list(words)
    end = kept.index("--") if "--" in kept else len(kept)
    names = [*option.names, *([option.negated] if option.negated else [])]
    for i in reversed(range(end)):
        length = _spelled(kept[i], names, takes_value=not option.switch)
        if length:
            # In the user's own spelling.
            flag = kept[i].partition("=")[0]
            new = list(typed)
            if length == 1 and "=" in kept[i] and not option.switch:
                new = [f"{flag}={typed[1]}"]
            elif not option.switch and kept[i] in names:
                new = [kept[i], typed[1]]
            return [*kept[:i], *new, *kept[i + length :]]
    if option.before_command or remainder:
        return [*typed, *kept]
    return [*kept[:end], *typed, *kept[end:]]


def _spelled(word: str, names: Sequence[str], *, takes_value: bool) -> int:
    """How many words this option takes from here on; 0 where it does not stand here."""
    flag, equals, _ = word.partition("=")
    for name in names:
        if word == name:
            return 2 if takes_value else 1
        if name.startswith("--") and flag == name and equals:
            return 1
        # -j4; argparse and click take it for single letters.
        if takes_value and len(name) == 2 and word.startswith(name) and not word.startswith("--"):
            return 1
    return 0


_MAKES_SAMPLES = ("__getitem__", "__getitems__", "__iter__")
# More lines than this are said by their numbers: nobody reads them twice, once to be indented.
MAX_LINES = 16
_DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# By the finding that code answers.
_BY_CODE = {
    Kind.TF32_OFF: NUMERICS_CHANGE,
    Kind.CUDNN_BENCHMARK_OFF: NUMERICS_CHANGE,
    Kind.ITERATOR_RECREATED: "each step takes the next batch, not the first of another pass",
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
    with unwarned():
        before, tree = _running(main.tree), ast.parse(text)
    first, last = before[0].lineno, before[-1].end_lineno or before[-1].lineno
    runs = _running(tree)
    behind = tree.body[tree.body.index(runs[0]) :]
    if len(behind) != len(runs) or any(_fills(tree, x) for x in runs):
        return None, first, last
    lines = text.split("\n")
    at = runs[0].lineno - 1
    kept = within_strings(text)
    moved = [
        f"    {line}" if line.strip() and number not in kept else line
        for number, line in enumerate(lines[at:], at + 1)
    ]
    after = "\n".join([*lines[:at], 'if __name__ == "__main__":', *moved])
    try:
        with unwarned():
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


def _fills(tree: ast.Module, statement: ast.stmt) -> bool:
    """Whether it fills what samples are made of: `TABLE[name] = 1`, which workers must see too."""
    read: set[str] = set()
    for made in (x for x in tree.body if isinstance(x, ast.ClassDef)):
        methods = (f for f in made.body if getattr(f, "name", "") in _MAKES_SAMPLES)
        read |= {name for f in methods for name in names_in(f)}
    # What the script assigns: no module.
    read &= {
        x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
    }
    for node in ast.walk(statement):
        call = node.value if isinstance(node, ast.Expr) else None
        filled = call.func if isinstance(call, ast.Call) else node
        if isinstance(filled, (ast.Attribute, ast.Subscript)):
            stored = filled is not node or isinstance(filled.ctx, ast.Store)
            if stored and isinstance(filled.value, ast.Name) and filled.value.id in read:
                return True
    return False


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
