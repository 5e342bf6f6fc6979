"""The user's own lines, changed: a DataLoader call with other settings, a copy made non-blocking.

Works on the text of a call as it was recorded: one line or several, perhaps indented, perhaps a
fragment of a larger statement. Only the arguments named are touched; the rest stays as written,
comments and layout included. What can't be edited safely comes back as a hint, never as a guess.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from loaderdoctor.advice.axis_ideas import axis_ideas
from loaderdoctor.advice.call_edit import (
    CannotEdit,
    argument,
    calls,
    literal,
    parsed_call,
    where_workers,
    with_arguments,
)
from loaderdoctor.facts import Facts
from loaderdoctor.findings.exposure import needs_guard
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings, Value

# Positional parameters in order: torch.utils.data.DataLoader (torch 2.6 to 2.14, what follows is
# keyword-only), Tensor.cuda and Tensor.copy_. Tensor.to has too many signatures to name them.
LOADER_PARAMETERS = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn",
    "pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
)  # fmt: skip
TRANSFER_PARAMETERS = {
    "to": (),
    "cuda": ("device", "non_blocking"),
    "copy_": ("src", "non_blocking"),
}
_TRANSFER_HINT = {
    "to": "`.to(device, non_blocking=True)` where the batch is copied.",
    "cuda": "`.cuda(non_blocking=True)` where the batch is copied.",
    "copy_": "`.copy_(batch, non_blocking=True)` where the batch is copied.",
}
# Axes that are arguments of DataLoader: the argument's name and torch's default.
_ARGUMENTS: dict[str, tuple[str, Value]] = {
    "num_workers": ("num_workers", 0),
    "prefetch_factor": ("prefetch_factor", None),
    "persistent_workers": ("persistent_workers", False),
    "pin_memory": ("pin_memory", False),
    "in_order": ("in_order", True),
    "start_method": ("multiprocessing_context", None),
    "batch_size": ("batch_size", 1),
}
# Axes that change what the loader is given, or what is put around it, at its call.
AROUND_LOADER = (
    "cache",
    "batched",
    "threads",
    "packed",
    "worker_cpus",
    "worker_gc",
    "device_decode",
)
# Axes that change what the loop over the batches goes over.
AROUND_BATCHES = ("background", "side_stream")
LOADER_DEFAULTS: dict[str, Value] = {**dict(_ARGUMENTS.values()), "timeout": 0}
# What torch takes at num_workers=0: with anything else it raises, if only at the first batch.
_WITHOUT_WORKERS: dict[str, Value] = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
# Above a line that is to move.
BUILT_ONCE = "# once, before the loop over the epochs:"
# transformers 4.46 to 5: fields of TrainingArguments that Trainer hands to its DataLoader.
TRAINING_ARGUMENTS = {
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "batch_size": "per_device_train_batch_size",
}
TRAINING_DEFAULTS: dict[str, Value] = {
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": None,
    "dataloader_persistent_workers": False,
    "dataloader_pin_memory": True,
    "per_device_train_batch_size": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEdit:
    """A change of source; where `before` is None, only a hint: `after` says it in words."""

    before: str | None
    after: str

    @property
    def exact(self) -> bool:
        """Whether `after` is the user's own code, changed; else it is a hint in words."""
        return self.before is not None

    def diff(self) -> str:
        """Both as `- old` and `+ new` lines, unchanged lines once. Not of a hint."""
        assert self.before is not None
        old = self.before.splitlines()
        new = self.after.splitlines()
        shorter = min(len(old), len(new))
        head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
        tail = next(
            (i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head
        )
        return "\n".join(
            [f"  {x}" for x in old[:head]]
            + [f"- {x}" for x in old[head : len(old) - tail]]
            + [f"+ {x}" for x in new[head : len(new) - tail]]
            + [f"  {x}" for x in old[len(old) - tail :]]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How a change is written: lines that fit the script, and in words what no line is known of."""

    code: str
    idea: str | None = None
    command: str | None = None  # a line for a shell: settings that the script has options for

    @classmethod
    def of(cls, edits: Iterable[CodeEdit]) -> Written:
        """Exact edits as a diff, hints as sentences."""
        exact: list[CodeEdit] = []
        hints: list[CodeEdit] = []
        for edit in edits:
            (exact if edit.exact else hints).append(edit)
        return cls(
            code="\n".join(edit.diff() for edit in exact),
            idea=" ".join(dict.fromkeys(edit.after for edit in hints)) or None,
        )


def written_together(settings: Settings, name: str) -> Settings:
    """Of these settings those that one change of code makes, `name` among them.

    Arguments of the loader and what is put around it, or its dataset, change one call; what the
    batches go through on their way from it, the line of the loop.
    """
    for one in ((*_ARGUMENTS, *AROUND_LOADER), AROUND_BATCHES):
        if name in one:
            return Settings(**{k: v for k, v in settings.changed().items() if k in one})  # type: ignore[arg-type]
    return Settings(**{name: settings.as_dict()[name]})  # type: ignore[arg-type]


def loader_arguments(changes: Settings) -> dict[str, Value]:
    """The DataLoader arguments that these settings set; axes that are not arguments are left out.

    At num_workers=0 those that torch accepts with workers only are reset.
    """
    changed = {k: v for k, v in changes.changed().items() if k in _ARGUMENTS}
    arguments = {_ARGUMENTS[name][0]: value for name, value in changed.items()}
    return {**arguments, **(_WITHOUT_WORKERS if changed.get("num_workers") == 0 else {})}


def trainer_arguments(arguments: Mapping[str, Value]) -> dict[str, Value] | None:
    """By their names in TrainingArguments; None where one that says something has none there."""
    told = {
        k: v for k, v in arguments.items() if k in TRAINING_ARGUMENTS or v != LOADER_DEFAULTS[k]
    }
    if not set(told) <= set(TRAINING_ARGUMENTS):
        return None
    return {TRAINING_ARGUMENTS[name]: value for name, value in told.items()}


def edits_for(facts: Facts, settings: Settings) -> tuple[CodeEdit, ...]:
    """The lines to write for these settings: the loader's call, the copies, the loop."""
    edits: list[CodeEdit] = []
    guard = facts.main_loader.safety.guard_missing if facts.main_loader else None
    if settings.num_workers and guard is not None and needs_guard(facts):
        edits.append(CodeEdit(before="", after=guard))
    if loader_arguments(settings):
        once = facts.step.rebuilt if settings.persistent_workers and facts.step else ()
        edits += dict.fromkeys(
            _loader_edit(loader, settings, once=loader.id in once) for loader in facts.feeding
        )
    if settings.non_blocking:
        lines = {
            (t.site, t.code): edit_transfer(t.code, t.call)
            for t in facts.transfers
            if not t.non_blocking
        }
        exact = {e.before: e for e in lines.values() if e.exact}
        edits += exact.values() or [edit_transfer(None)]
    edits += [CodeEdit(before=None, after=idea) for idea in axis_ideas(settings)]
    return tuple(edits)


def hints_for(
    facts: Facts, settings: Settings, *, without: Collection[str] = (), why: str | None = None
) -> str | None:
    """The same in a sentence, for where no line can be written; arguments in `without` are not."""
    arguments = {k: v for k, v in loader_arguments(settings).items() if k not in without}
    said = []
    if arguments:
        by_trainer = {loader.library for loader in facts.feeding} == {"transformers"}
        named = trainer_arguments(arguments) if by_trainer else None
        said.append(_loader_hint(named or arguments, why, in_trainer=named is not None).after)
    if settings.non_blocking:
        said.append(_TRANSFER_HINT["to"])
    said += axis_ideas(settings)
    if why and not arguments and (settings.worker_cpus or settings.worker_gc):
        said.append(f"By hand: {why}.")
    return " ".join(said) or None


def _loader_edit(loader: LoaderRecord, settings: Settings, *, once: bool) -> CodeEdit:
    """`once`: what is kept between epochs needs a loader that is, so it moves out of their loop."""
    if loader.library is not None:
        return edit_framework_call(loader.library, settings)
    edit = edit_loader_call(loader.code, settings, index=loader.call_index)
    return _moved_out(edit, loader.call_index) if once else edit


def _moved_out(edit: CodeEdit, index: int) -> CodeEdit:
    """The same loader built once: `for x in DataLoader(…):` becomes two lines."""
    span = loader_call(edit.after, index)
    whole = edit.exact and span is not None and edit.after.startswith("for ")
    if span is None or not whole or not edit.after[span[1] :].lstrip(" )").startswith(":"):
        return replace(edit, after=f"{BUILT_ONCE}\n{edit.after}")
    call = edit.after[slice(*span)]
    loop = f"{edit.after[: span[0]]}loader{edit.after[span[1] :]}"
    return replace(edit, after=f"{BUILT_ONCE}\nloader = {call}\n# in it, as before:\n{loop}")


def edit_loader_call(code: str | None, changes: Settings, *, index: int = 0) -> CodeEdit:
    """The DataLoader call in `code` with the arguments of `changes` replaced or added.

    `index` counts the calls where one line builds several. A call that can't be found, parsed or
    safely changed gives a hint with the reason.
    """
    arguments = loader_arguments(changes)
    if code is None or not code.strip():
        return _loader_hint(arguments, None)
    source = textwrap.dedent(code).strip("\n")
    span = loader_call(source, index)
    if span is None:
        return _loader_hint(arguments, "the call was not found in the source line")
    start, end = span
    parameters = LOADER_PARAMETERS if source[start:end].startswith("DataLoader") else ()
    code = source[start:end]
    call = parsed_call(code)
    own = argument(call, "num_workers", parameters)
    try:
        _check_taken(call, arguments)
        text = with_arguments(
            code,
            where_workers(own, code, arguments),
            parameters=parameters,
            defaults=LOADER_DEFAULTS,
        )
    except CannotEdit as why:
        return _loader_hint(arguments, str(why))
    after = source[:start] + text + source[end:]
    return CodeEdit(before=source, after=after)


def _check_taken(call: ast.Call | None, arguments: Mapping[str, Value]) -> None:
    """Raises CannotEdit where a function, and no class, would be given what it may not take."""
    name = ast.unparse(call.func).rpartition(".")[2] if call is not None else ""
    if call is None or name[:1].isupper() or name == "__init__":
        return
    own = {k.arg for k in call.keywords}
    for argument_, value in arguments.items():
        if argument_ not in own and value != LOADER_DEFAULTS.get(argument_):
            raise CannotEdit(f"{name} may take no {argument_}")


def edit_framework_call(library: str, changes: Settings) -> CodeEdit:
    """A hint, since the call to change is not in the user's code."""
    arguments = loader_arguments(changes)
    named = trainer_arguments(arguments) if library == "transformers" else None
    if named is not None:
        return _loader_hint(named, None, in_trainer=True)
    arguments = {k: v for k, v in arguments.items() if v is not None}
    return _loader_hint(arguments, f"{library} builds this loader")


def edit_transfer(code: str | None, call: str = "to") -> CodeEdit:
    """Every `.to(…)`, `.cuda(…)` or `.copy_(…)` in a line, with non_blocking=True.

    Casts such as `.to(torch.float32)` stay as they are. A line without such a call gives a hint.
    """
    hint = CodeEdit(before=None, after=_TRANSFER_HINT.get(call, _TRANSFER_HINT["to"]))
    if code is None or not code.strip():
        return hint
    source = textwrap.dedent(code).strip("\n")
    text = source
    # From the last call to the first, found again each time: an edit moves what comes after it.
    for i in reversed(range(len(calls(source)))):
        name, start, end = calls(text)[i]
        if name != call or start == 0 or text[:start].rstrip()[-1:] != ".":
            continue
        if call == "to" and is_no_transfer(text[start:end]):
            continue
        try:
            edited = with_arguments(
                text[start:end],
                {"non_blocking": True},
                parameters=TRANSFER_PARAMETERS[call],
                defaults={"non_blocking": False},
            )
        except CannotEdit:
            continue
        text = text[:start] + edited + text[end:]
    return CodeEdit(before=source, after=text) if text != source else hint


def loader_call(source: str, index: int) -> tuple[int, int] | None:
    """Where the DataLoader call stands: by name, else a call of some loader class or function."""
    found = calls(source)
    for fits in (
        lambda name, text: name.endswith("DataLoader"),
        lambda name, text: "loader" in name.lower(),
        lambda name, text: "num_workers=" in text or "batch_size=" in text,
    ):
        spans = [(start, end) for name, start, end in found if fits(name, source[start:end])]
        if spans:
            return spans[min(index, len(spans) - 1)]
    return None


def is_no_transfer(call: str) -> bool:
    """Of a `to(…)`: whether it only casts, leads to the host, or carries a positional non_blocking.

    A copy to the host that nobody waits for is read before it has arrived.
    """
    node = parsed_call(call)
    given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "device")] if node else []
    if any(re.match(r"(torch\.)?(device\()?['\"]cpu", ast.unparse(x)) for x in given):
        return True
    if node is None or not node.args:
        return node is None or not any(k.arg in ("device", None) for k in node.keywords)
    first, last = node.args[0], node.args[-1]
    casts = (
        len(node.args) == 1
        and isinstance(first, ast.Attribute)
        and isinstance(first.value, ast.Name)
        and first.value.id in ("torch", "np", "numpy")
    )
    return casts or (isinstance(last, ast.Constant) and isinstance(last.value, bool))


def _loader_hint(
    arguments: Mapping[str, Value], note: str | None, *, in_trainer: bool = False
) -> CodeEdit:
    shown = {k: v for k, v in arguments.items() if v is not None or k not in LOADER_DEFAULTS}
    text = ", ".join(f"{k}={literal(v)}" for k, v in shown.items())
    if in_trainer:
        return CodeEdit(before=None, after=f"`{text}` in TrainingArguments.")
    why = f" ({note})" if note is not None else ""
    return CodeEdit(before=None, after=f"`{text}` where the DataLoader is built{why}.")
