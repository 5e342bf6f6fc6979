"""Stack samples of the training thread -> the loop's own work by line, function and library.

Samples spread: those of a loop over elements lie on every line of it, those of `frame.iloc` in a
dozen functions of pandas. So they are summed by all that they have in common, and the largest sum
names the place; of sums that are about as large the closest one to the code does. What a line does
is told from the library or function that it calls.
"""

from __future__ import annotations

import builtins
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeVar

from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts.host import WAITS, CodeLine, LoopLineFacts, LoopPlace, What
from loaderdoctor.instrument.wire.measured import FramePlace, StackPlace, StackRecord

# With fewer samples in steps a share of 20 % may be 7 or 40 (95 %): nothing is said.
MIN_SAMPLES = 30
# A place with fewer samples of its own is not named: of 8, two may be elsewhere by chance.
MIN_PLACE_SAMPLES = 8
MAX_PLACES = 5
# A closer name (the line of a function) stands for this much of a wider one, or the wider is said.
CLOSER_PART = 0.8
# What most samples of a place call is named with it.
MIN_CALLED_PART = 0.5
# The loop's own frame is on the stack of nearly all samples, whatever part of the step they are in;
# and of this much of its own work, the rest being between epochs or in a hook.
MIN_COMMON_PART, MIN_OWN_PART = 0.9, 0.5

# Where fewer parts of the step were seen in the loop's own function, it calls another for them.
MIN_LANDMARKS = 2

_STAGES = ("fetch", "forward", "backward", "optimizer")
_WORDS = {
    "fetch": "the fetch",
    "to": "the copy to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
}
Named = Literal["line", "function", "library"]
Value = TypeVar("Value")
# By the last name of the call.
_CALLS: dict[str, What] = {
    "item": "item",
    "cpu": "to-host",
    "numpy": "to-host",
    "tolist": "elements",
    "synchronize": "sync",
    "print": "print",
    "sleep": "sleep",
    "deepcopy": "deepcopy",
    "savefig": "plot",
    "collect": "collect",
    "empty_cache": "collect",
    "open": "files",
    "write": "files",
    "read": "files",
    "flush": "files",
    "fsync": "files",
    "savez": "save",
    "savez_compressed": "save",
    "savetxt": "save",
    "dump": "save",
}
# By the module, or its package; longer names first.
_MODULES: dict[str, What] = {
    "torch.serialization": "save",
    "torch.utils.tensorboard": "tracking",
    "torch.cuda": "sync",
    "safetensors": "save",
    "pickle": "save",
    "joblib": "save",
    **dict.fromkeys(("numpy.lib.npyio", "numpy.lib._npyio_impl", "numpy.lib.format"), "files"),
    "copy": "deepcopy",
    **dict.fromkeys(("pandas", "polars", "pyarrow", "datasets"), "table"),
    **dict.fromkeys(
        ("sklearn", "torchmetrics", "torcheval", "evaluate", "seqeval", "scipy", "pycocotools"),
        "metrics",
    ),
    **dict.fromkeys(("matplotlib", "seaborn", "plotly", "bokeh", "mpl_toolkits"), "plot"),
    **dict.fromkeys(("logging", "tqdm", "rich", "loguru", "structlog"), "print"),
    **dict.fromkeys(
        ("wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "aim", "clearml"),
        "tracking",
    ),
    **dict.fromkeys(
        ("PIL", "cv2", "skimage", "torchvision", "albumentations", "kornia", "imgaug"), "image"
    ),
    **dict.fromkeys(
        ("tokenizers", "transformers", "nltk", "spacy", "sentencepiece", "re", "json"), "text"
    ),
    **dict.fromkeys(("requests", "urllib", "urllib3", "http", "ssl", "socket", "boto3"), "network"),
    "subprocess": "process",
    "numpy": "numpy",
    "gc": "collect",
    # Of the standard library what works on one element after another.
    **dict.fromkeys(
        ("random", "itertools", "collections", "functools", "heapq", "math", "statistics"),
        "elements",
    ),
}
_ROOTS: dict[str, What] = {"np": "numpy", "numpy": "numpy", "plt": "plot", "cv2": "image"}
# Methods and functions of Python's own types: what a loop over elements is made of.
_PLAIN = frozenset(
    (
        *dir(list),
        *dir(dict),
        *dir(str),
        *dir(set),
        *dir(float),
        *dir(builtins),
    )
)
# Python of torch's that a loop calls and that is no operator.
_ELEMENTS = ("Tensor.__iter__", "Tensor.tolist")


def is_operator(place: StackPlace) -> bool:
    """Whether the loop calls an operator of torch there, which is computing, not work of its own.

    Operators such as `+` show in samples only where their C code lets the interpreter go.
    """
    module = place.module or ""
    if module == "torch" or module.startswith("torch."):
        known = _of_module(module)
        return known is None and place.function not in _ELEMENTS and _of_call(place) is None
    return place.operator


def what_of(place: StackPlace) -> What:
    """What the loop does there."""
    found = _of_call(place)
    if found is not None:
        return found
    if place.module is not None:
        if place.function in _ELEMENTS:
            return "elements"
        return _of_module(place.module) or "library"
    if place.call is None:
        return "elements"
    root, _, _ = place.call.partition(".")
    plain = place.call.rpartition(".")[2] in _PLAIN
    return _ROOTS.get(root) or ("elements" if plain else "library")


def package_of(place: StackPlace) -> str | None:
    """The package whose function the loop calls there; None for its own code and built-ins."""
    return place.module.partition(".")[0] if place.module is not None else None


def _of_call(place: StackPlace) -> What | None:
    if place.call is None:
        return None
    name = place.call.rpartition(".")[2]
    if name == "save":
        by_name = place.module is None or place.call.startswith(("torch.", "np.", "numpy."))
        return "save" if by_name else None
    return _CALLS.get(name)


def _of_module(module: str) -> What | None:
    while module:
        if module in _MODULES:
            return _MODULES[module]
        module = module.rpartition(".")[0]
    return None


class _Cell(NamedTuple):
    """Something that samples have in common. A lower `rank` is closer to the code."""

    rank: int
    named: Named
    key: tuple[object, ...]
    depth: int = 0  # of functions that call one another the innermost is the closest


def loop_line_facts(
    records: Sequence[StackRecord], *, has_accelerator: bool
) -> LoopLineFacts | None:
    """Of all windows together; None where nothing was sampled, or too little to tell.

    With an accelerator reading a value (`.item()`, `.cpu()`) waits for what it has yet to compute:
    such samples are kept apart from the loop's own work.
    """
    record = StackRecord(
        n=sum(x.n for x in records),
        n_outside=sum(x.n_outside for x in records),
        places=tuple(place for x in records for place in x.places),
    )
    if record.n < MIN_SAMPLES:
        return None
    own = [x for x in record.places if x.stage == "own"]
    operators = [x for x in own if is_operator(x)]
    own = [x for x in own if not is_operator(x)]
    waits = [x for x in own if has_accelerator and what_of(x) in WAITS]
    own = [x for x in own if not (has_accelerator and what_of(x) in WAITS)]
    depth = _loop_depth(record.places)
    landmarks = _landmarks(record.places, depth, with_copies=has_accelerator)
    n_own = _sum(own)
    return LoopLineFacts(
        n_samples=record.n,
        own_share=n_own / record.n,
        own_low_share=binomial_interval(n_own, record.n)[0],
        waiting_share=_sum(waits) / record.n,
        operator_share=_sum(operators) / record.n,
        places=tuple(
            replace(x, n_operators=_sum(y for y in operators if _calls_within(y, x)))
            for x in _places(own, depth, record.n, landmarks)
        ),
        waits=_places(waits, depth, record.n, landmarks),
        outside=_places(
            [x for x in record.places if x.stage == "outside"], depth, record.n_outside, ()
        ),
        outside_share=record.n_outside / (record.n + record.n_outside),
    )


def _calls_within(operator: StackPlace, place: LoopPlace) -> bool:
    """Whether an operator is called by the function of a place, and that is not the loop itself."""
    at = place.at.file, place.at.function
    loop = place.called_from.file, place.called_from.function
    return at != loop and any(_function(frame) == at for frame in operator.frames)


def _places(
    samples: list[StackPlace], depth: int, of_samples: int, landmarks: Sequence[tuple[int, str]]
) -> tuple[LoopPlace, ...]:
    """The largest sum first; then what is left without its samples."""
    found: list[LoopPlace] = []
    while samples and len(found) < MAX_PLACES:
        sums: defaultdict[_Cell, int] = defaultdict(int)
        for sample in samples:
            for cell in set(_cells(sample, depth)):
                sums[cell] += sample.n
        most = max(sums.values())
        if most < MIN_PLACE_SAMPLES:
            break
        cell = min(
            (x for x, n in sums.items() if n >= CLOSER_PART * most),
            key=lambda x: (x.rank, -x.depth, -sums[x], str(x.key)),
        )
        inside = [x for x in samples if cell in _cells(x, depth)]
        samples = [x for x in samples if cell not in _cells(x, depth)]
        found.append(_place(cell, inside, depth, of_samples, landmarks))
    return tuple(sorted(found, key=lambda x: -x.n_samples))


def _cells(sample: StackPlace, depth: int) -> list[_Cell]:
    frames, package = sample.frames, package_of(sample)
    innermost, loop = frames[-1], _loop_frame(sample, depth)
    # Plain Python lies on every line of its function: the function is closer than any of them.
    plain = innermost is not loop and package is None and what_of(sample) == "elements"
    cells = [
        _Cell(2 if plain else 0, "line", (innermost.file, innermost.line)),
        *(_Cell(1, "function", _function(frames[at]), at) for at in range(depth + 1, len(frames))),
        _Cell(4, "line", (loop.file, loop.line)),
    ]
    return cells if package is None else [*cells, _Cell(3, "library", (package,))]


def _place(
    cell: _Cell,
    samples: list[StackPlace],
    depth: int,
    of_samples: int,
    landmarks: Sequence[tuple[int, str]],
) -> LoopPlace:
    n = _sum(samples)
    at = _most(samples, lambda x: _frame_in(x, cell, depth))
    loop = _most(samples, lambda x: _loop_frame(x, depth))
    calls = _most(samples, lambda x: x.call)
    part = _sum(x for x in samples if x.call == calls)
    return LoopPlace(
        named=cell.named,
        at=_line(at),
        called_from=_line(loop),
        what=_most(samples, what_of),
        calls=calls if calls is not None and part >= MIN_CALLED_PART * n else None,
        library=_most(samples, package_of),
        n_samples=n,
        of_samples=of_samples,
        low_share=binomial_interval(n, of_samples)[0],
        between=_between(loop, landmarks),
    )


def _frame_in(sample: StackPlace, cell: _Cell, depth: int) -> FramePlace:
    """The frame that the place is shown by: the function's own, else the innermost."""
    if cell.named == "function":
        named = [x for x in sample.frames if (x.file, x.function) == cell.key]
        return named[-1]
    return _loop_frame(sample, depth) if cell.rank == 4 else sample.frames[-1]


def _loop_frame(sample: StackPlace, depth: int) -> FramePlace:
    return sample.frames[min(depth, len(sample.frames) - 1)]


def _loop_depth(places: Sequence[StackPlace]) -> int:
    """How deep on the user's stack the loop's own function is: all parts of the step are in it."""
    groups: defaultdict[str, list[StackPlace]] = defaultdict(list)
    for place in places:
        if place.stage in (*_STAGES, "own"):
            groups[place.stage].append(place)
    depth, within = 0, dict(groups)
    while True:
        functions = Counter[tuple[str, str]]()
        for place in (x for group in within.values() for x in group):
            if len(place.frames) > depth:
                functions[_function(place.frames[depth])] += place.n
        if not functions:
            break
        deeper = functions.most_common(1)[0][0]
        kept = {
            stage: [
                x for x in group if len(x.frames) > depth and _function(x.frames[depth]) == deeper
            ]
            for stage, group in within.items()
        }
        if not all(
            _sum(kept[stage])
            >= (MIN_OWN_PART if stage == "own" else MIN_COMMON_PART) * _sum(groups[stage])
            for stage in groups
        ):
            break
        depth, within = depth + 1, kept
    return max(0, depth - 1)


def _function(frame: FramePlace) -> tuple[str, str]:
    return frame.file, frame.function


def _landmarks(
    places: Sequence[StackPlace], depth: int, *, with_copies: bool
) -> tuple[tuple[int, str], ...]:
    """Lines of the loop at which a part of the step was seen, in the order of the source."""
    found: set[tuple[int, str]] = set()
    for place in places:
        frame = _loop_frame(place, depth)
        if place.stage in _STAGES and not (place.call or "").endswith("zero_grad"):
            found.add((frame.line, place.stage))
        elif (
            with_copies
            and frame.code is not None
            and (".to(" in frame.code or ".cuda(" in frame.code)
        ):
            found.add((frame.line, "to"))
    order = list(_WORDS)
    return tuple(sorted(found, key=lambda x: (x[0], order.index(x[1]))))


def _between(loop: FramePlace, landmarks: Sequence[tuple[int, str]]) -> tuple[str, str] | None:
    """What comes before and behind a line, round the loop; None where it holds a part itself."""
    if len({stage for _, stage in landmarks}) < MIN_LANDMARKS or any(
        line == loop.line for line, _ in landmarks
    ):
        return None
    before = [stage for line, stage in landmarks if line < loop.line] or [landmarks[-1][1]]
    behind = [stage for line, stage in landmarks if line > loop.line] or [landmarks[0][1]]
    first = _WORDS[behind[0]]
    return _WORDS[before[-1]], "the next fetch" if first == _WORDS["fetch"] else first


def _line(frame: FramePlace) -> CodeLine:
    return CodeLine(file=frame.file, line=frame.line, function=frame.function, code=frame.code)


def _sum(samples: Iterable[StackPlace]) -> int:
    return sum(x.n for x in samples)


def _most(samples: Sequence[StackPlace], of: Callable[[StackPlace], Value]) -> Value:
    counts = Counter[Value]()
    for sample in samples:
        counts[of(sample)] += sample.n
    return counts.most_common(1)[0][0]
