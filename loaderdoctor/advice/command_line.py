"""The user's command line with other values of the script's own options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loaderdoctor.advice.assigned import key_of
from loaderdoctor.advice.code import LOADER_PARAMETERS, TRAINING_ARGUMENTS, loader_arguments
from loaderdoctor.advice.option import Option
from loaderdoctor.advice.options import option_of
from loaderdoctor.advice.places import built
from loaderdoctor.advice.source import Source, called_name, sources_of
from loaderdoctor.facts.whole import Facts
from loaderdoctor.secrets import masked
from loaderdoctor.settings import Settings, Value

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
        node = made.keyword(name)
        at = LOADER_PARAMETERS.index(name) if name in LOADER_PARAMETERS else len(made.call.args)
        if node is None and called_name(made.call) == "DataLoader" and at < len(made.call.args):
            node = made.call.args[at]
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
    if option.kind in ("place", "environment"):
        return (str(int(value) if isinstance(value, bool) else value),)
    if option.kind == "key":
        return (f"{option.names[0]}={value}",)
    flag = min(option.names, key=lambda n: (n.startswith("--"), len(n)))
    if not option.switch:
        return flag, str(value)
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
