"""How work of the loop's own is told, in and outside its steps: where, what it does, what helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import CodeLine, LoopPlace, What
from loaderdoctor.facts.loop import WallFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`does` follows "which"; `advice` is a sentence or two."""

    does: str
    advice: str


_RARELY = "Do it every n steps, or once an epoch"
TOLD: Mapping[What, Told] = {
    "item": Told(
        does="reads values one at a time",
        advice="Read a whole tensor with one .tolist(), or sum on the device and read the sum "
        "every n steps.",
    ),
    "to-host": Told(
        does="copies tensors to host memory",
        advice="Compute it on the device and copy only the result, every n steps.",
    ),
    "sync": Told(
        does="waits for the accelerator",
        advice="Synchronise only around what you time.",
    ),
    "save": Told(
        does="saves to a file",
        advice=f"{_RARELY}, and write in a background thread from a copy.",
    ),
    "print": Told(
        does="prints or logs",
        advice="Log every n steps, and let the progress bar refresh rarely (mininterval=5).",
    ),
    "tracking": Told(
        does="reports to an experiment tracker",
        advice="Collect the values and report them every n steps.",
    ),
    "metrics": Told(
        does="computes metrics",
        advice="Keep predictions as tensors and compute metrics once an epoch, or on a sample of "
        "the steps.",
    ),
    "plot": Told(
        does="draws pictures",
        advice=f"{_RARELY}: keep the values, and draw them in another process.",
    ),
    "table": Told(
        does="reads a table row by row",
        advice="Make arrays or tensors of its columns once, before training, and index those.",
    ),
    "deepcopy": Told(
        does="copies objects as a whole",
        advice="Copy only when something is to be kept (a new best score), or copy tensors into "
        "ones kept for it with copy_(). Of an average of weights: "
        "torch.optim.swa_utils.AveragedModel.",
    ),
    "sleep": Told(does="sleeps", advice="Take the sleep out of the loop."),
    "files": Told(
        does="reads or writes files",
        advice=f"{_RARELY}, or in a background thread.",
    ),
    "network": Told(
        does="talks to the network",
        advice=f"{_RARELY}, or in a background thread.",
    ),
    "process": Told(
        does="runs another program",
        advice=f"{_RARELY}, or let it run in the background.",
    ),
    "collect": Told(
        does="collects garbage or empties the allocator's cache",
        advice="Take it out of the loop: what is freed here is fetched again in the next step.",
    ),
    "image": Told(
        does="works on images",
        advice="Do it in the dataset or collate_fn, where workers do it ahead, or for the whole "
        "batch on the device.",
    ),
    "text": Told(
        does="works on text",
        advice="Do it in the dataset or collate_fn, where workers do it ahead, or once before "
        "training.",
    ),
    "numpy": Told(
        does="computes with NumPy",
        advice="Do it with torch on the device, or in the collate_fn, where workers do it ahead.",
    ),
    "library": Told(
        does="calls other code",
        advice="Do it in the dataset or collate_fn, where workers do it ahead, or every n steps.",
    ),
    "elements": Told(
        does="runs Python over single elements",
        advice="Replace the loop over elements by operations on the whole batch",
    ),
}
_BEFORE_THE_BATCH_IS_USED = ("the copy to the device", "the forward pass")


def before_forward(place: LoopPlace) -> bool | None:
    """Whether it lies before the forward pass, where workers could do it ahead; None: unknown."""
    return None if place.between is None else place.between[1] in _BEFORE_THE_BATCH_IS_USED


# Of what a loop without a DataLoader does to make its batches.
OWN_BATCHES = (
    "Keep the data in one tensor or array and index it with drawn numbers (torch.randint), without "
    "copying or shuffling the whole; or make batches in the workers of a DataLoader."
)


def makes_batches(what: str) -> bool:
    """Whether work of this kind may be the making of batches, where no DataLoader makes them."""
    return what in ("elements", "deepcopy", "library", "numpy")


def refills(facts: Facts) -> bool:
    """Whether the loop changes what its dataset reads: workers would have old copies of it."""
    return any(x.safety.changed_while_read for x in facts.feeding)


AT_ONCE = (
    "Do it for many elements at once, or in processes of its own while the loop trains: workers "
    "of the loader have copies of what it changes, as they were."
)


def advice_of(place: LoopPlace, facts: Facts) -> str:
    """What helps against work of this kind at this place."""
    advice, early = TOLD[place.what].advice, before_forward(place)
    if refills(facts) and place.what in ("image", "text", "numpy", "library", "elements"):
        return AT_ONCE
    if not facts.loaders and makes_batches(place.what) and early is not False:
        return OWN_BATCHES if early else f"Where it makes batches: {_lowered(OWN_BATCHES)}"
    if place.what == "elements":
        if early is False:
            return f"{advice}, or do it every n steps."
        return f"{advice}, or do it in the dataset or collate_fn, where workers do it ahead."
    if place.what in ("numpy", "library") and early is False:
        return "Do it every n steps, or on the device."
    if early and place.what in ("item", "to-host", "table") and not refills(facts):
        return f"{advice} Workers do it ahead in the dataset or collate_fn."
    return advice


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def where(line: CodeLine) -> str:
    """`train.py:57`: the file by its last part, as lines of workers are named."""
    name = line.file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{line.line}"


def name_of(place: LoopPlace) -> str:
    """`shape_words (train.py:12)`, `pandas, as frame.iloc[] (train.py:30)`, `train.py:30`."""
    at = where(place.at)
    if place.named == "function":
        return f"{place.at.function.rpartition('.')[2]} ({at})"
    calls = _called(place.calls) if place.calls is not None else None
    if place.named == "library":
        return f"{place.library}, as {calls} ({at})" if calls else f"{place.library} ({at})"
    if calls is not None and place.calls is not None:
        known = place.library is None or place.calls.partition(".")[0] == place.library
        return f"{calls} ({at})" if known else f"{calls} of {place.library} ({at})"
    return at


def _called(name: str) -> str:
    """`copy.deepcopy()`, `frame.iloc[]`, `.item()`."""
    return name.removeprefix("…") + ("" if name.endswith("]") else "()")


def sentence_of(place: LoopPlace) -> str:
    """The name, the loop's line that leads there, and what it does."""
    does = TOLD[place.what].does
    loop = place.called_from
    from_there = ""
    if (loop.file, loop.line) != (place.at.file, place.at.line):
        code = f" `{loop.code}`" if loop.code is not None else ""
        from_there = f", called at {where(loop)}{code}"
    elif loop.code is not None:
        from_there = f" `{loop.code}`"
    return f"{name_of(place)}{from_there}, which {does}"


def between_words(place: LoopPlace) -> str:
    """`between the fetch and the forward pass`; where it is not known, `of the loop's own`."""
    if place.between is None:
        return "of the loop's own"
    return f"between {place.between[0]} and {place.between[1]}"


NEARLY_WHOLE = 0.01  # a mean of whole numbers of steps
_NAMES = {"other": "other work of the loop", "gradients": "a pass with backward passes"}


class Seen(Protocol):
    """Part of the wall, as facts and report have it."""

    @property
    def what(self) -> str: ...
    @property
    def site(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def every_steps(self) -> float | None: ...
    @property
    def at_epoch_end(self) -> bool: ...


def named(part: Seen) -> str:
    """`validation (train.py:57)`."""
    what = _NAMES.get(part.what, part.what)
    return f"{what} ({part.site})" if part.site is not None else what


def outside_words(part: Seen) -> str:
    """`0.26 s every 4 steps, seen 12 times`."""
    if part.at_epoch_end:
        often = "at an epoch's end"
    elif part.every_steps is None:
        return f"{fmt.seconds(part.seconds)}, seen once"
    else:
        often = _every(part.every_steps)
    return f"{fmt.seconds(part.seconds)} {often}, seen {fmt.count(part.n, 'time')}"


def _every(n_steps: float) -> str:
    whole = round(n_steps)
    if abs(n_steps - whole) > NEARLY_WHOLE * n_steps:
        return f"every {fmt.number(n_steps)} steps"
    return f"every {fmt.count(whole, 'step')}" if whole != 1 else "each step"


def next_to_elsewhere(wall: WallFacts) -> str:
    """What part of all the time lies outside the steps, where steps on other loaders add to it."""
    more_ms = wall.seen_again.elsewhere_ms
    if not more_ms:
        return ""
    share = wall.outside_ms / (wall.total_ms + more_ms)
    return (
        f" With {fmt.ms(more_ms)} a step of training on other loaders, that is {fmt.share(share)} "
        "of all the time."
    )
