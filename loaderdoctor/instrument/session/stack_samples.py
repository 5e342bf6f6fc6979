"""Where the training thread is, every 2 ms: in windows of their own, whose times rank nothing.

A sample counts for the user's frames on the stack, for what the innermost of them calls just then,
and for the part of the step that torch's own frames tell. They are summed up as they come, so that
what is kept does not grow with the window.

Biased as every sampler within the interpreter: it runs when the watched thread gives up the GIL,
or some time after asking for it (see switch_interval). In Python code that is at calls and at the
turn of a loop; within a line's operators only where their C code lets the interpreter go, as
torch's do.

C code has no frame: of `loss.item()` the stack shows only the line. What a line calls at one
instruction of it (`loss.item`, `frame.iloc[]`) is told by its code object, which knows since Python
3.11 which part of the source each instruction is from; before that nothing is told.
"""

from __future__ import annotations

import ast
import linecache
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple, TypeVar

import torch

from loaderdoctor.instrument.system import ask_as_usual, ask_soon, wake_in_time
from loaderdoctor.instrument.wire.measured import FramePlace, StackPlace, StackRecord, Stage
from loaderdoctor.instrument.workers.user_code import OWN, USER, kind_of, place_of

# So close together a sample costs 50 to 80 µs of CPU: by that, 2 to 4 % of the window.
INTERVAL_S: Final = 0.002
MAX_STACK_SAMPLES: Final = 20_000
MAX_FRAMES: Final = 200
MAX_USER_FRAMES: Final = 8  # kept of one stack: the outermost and the innermost
MAX_PLACES: Final = 200

_TORCH: Final = str(Path(torch.__file__).parent).replace("\\", "/") + "/"
# Loops of others around the user's steps: what lies below them is the library that is called.
_FRAMEWORKS: Final = ("lightning", "pytorch_lightning", "lightning_fabric", "accelerate", "ignite",
                      "transformers.trainer", "fastai", "composer", "tqdm")  # fmt: skip
MAX_CHARS: Final = 60
MAX_LINE_CHARS: Final = 160
MAX_LINES: Final = 30  # of one expression

# Methods of tensors that end torch's own work: they read the values.
_READS: Final = frozenset(("item", "tolist", "numpy", "cpu", "__array__"))
_ROOTS: Final = ("torch", "F", "nn")
_NOT_OPERATORS: Final = ("torch.save", "torch.load", "torch.cuda.synchronize")


Of = TypeVar("Of")


class _Key(NamedTuple):
    stage: Stage
    frames: tuple[tuple[CodeType, int], ...]  # code and line, outermost first
    at: tuple[CodeType, int]  # the innermost one's code, and its last instruction
    module: str | None
    function: str | None


class StackSampler:
    """Samples one thread from `start` to `stop`, until when nothing of it is in the way."""

    def __init__(self, thread: int, take: Callable[[FrameType], None]) -> None:
        """`thread`: threading.get_ident; `take` is given its innermost frame, on our own thread."""
        self._thread = thread
        self._take = take
        self._stopping = threading.Event()
        self._own = threading.Thread(target=self._run, name="loaderdoctor-loop", daemon=True)

    def start(self) -> None:
        self._own.start()

    def stop(self) -> None:
        self._stopping.set()
        self._own.join(timeout=1.0)
        ask_as_usual()

    def _run(self) -> None:
        chance = random.Random()  # not the module's: the user's random numbers stay theirs
        n = 0
        wake_in_time()
        try:
            while not self._stopping.is_set() and n < MAX_STACK_SAMPLES:
                sys.setprofile(None)  # torch's Python tracer, which watches every thread
                # In place of a fixed pause, which would keep step with steps of its length.
                pause_s = INTERVAL_S * (0.5 + chance.random())
                ask_soon(beside_any=True)
                time.sleep(pause_s)
                frame = sys._current_frames().get(self._thread)
                if frame is not None and not self._stopping.is_set():
                    self._take(frame)
                    n += 1
                del frame
        except Exception:
            if not sys.is_finalizing():
                raise


class LoopSamples:
    """The samples of one window, summed up by place."""

    def __init__(self, outside: Callable[[], bool], *, of_all: bool = False) -> None:
        """`outside`: whether the loop is between two epochs, or in what counts for no step.

        `of_all`: what it calls of torch there is no part of a step either.
        """
        self._outside, self._of_all = outside, of_all
        self._counts: Counter[_Key] = Counter()
        self._n = self._n_outside = self._n_outside_backward = 0

    def take(self, frame: FrameType) -> None:
        """One sample: `frame` is where the training thread is."""
        key = _key(frame)
        if key is None:
            return
        if self._outside() and (self._of_all or key.stage == "own"):
            self._n_outside_backward += key.stage == "backward"
            key = key._replace(stage="outside")
            self._n_outside += 1
        else:
            self._n += 1
        self._counts[key] += 1

    def record(self) -> StackRecord:
        """What was sampled; lines of source are read only now."""
        places = [_place(key, n) for key, n in self._counts.most_common(MAX_PLACES)]
        self._counts.clear()
        return StackRecord(
            n=self._n,
            n_outside=self._n_outside,
            n_outside_backward=self._n_outside_backward,
            places=tuple(places),
        )


def with_stack_samples(
    steps: Generator[None, int, Of],
    thread: int,
    outside: Callable[[], bool] = lambda: False,
    *,
    of_all: bool = False,
) -> Generator[None, int, tuple[Of, StackRecord]]:
    """What those steps give, and samples of the training thread over them (see LoopSamples)."""
    samples = LoopSamples(outside, of_all=of_all)
    sampler = StackSampler(thread, samples.take)
    sampler.start()
    try:
        done = yield from steps
    finally:
        sampler.stop()
    return done, samples.record()


def _key(frame: FrameType) -> _Key | None:
    """What a sample counts for; None where the thread is in code of ours."""
    users: list[FrameType] = []
    below: list[FrameType] = []  # of libraries, within the innermost frame of the user's
    stage: Stage | None = None
    ours = False
    at: FrameType | None = frame
    for _ in range(MAX_FRAMES):
        if at is None:
            break
        kind = kind_of(at.f_code)
        if at.f_code.co_filename == "<string>":
            if at.f_code.co_name == "<module>":  # what started the script
                break  # else: a dataclass's `__init__`, whose source nobody has
        elif kind == USER:
            users.append(at)
        elif kind == OWN:
            ours = ours or not users  # else: what runs the script
        else:
            if not users:
                below.append(at)
            found = _stage_of(at.f_code)
            # A closure is the loop's own code although an optimizer calls it.
            if stage is None and not (found == "optimizer" and users):
                stage = found
        at = at.f_back
    if not users or (ours and stage is None):
        return None
    innermost = users[0]
    call = _library_call(below)
    users.reverse()
    if len(users) > MAX_USER_FRAMES:
        users = [*users[: MAX_USER_FRAMES // 2], *users[-MAX_USER_FRAMES // 2 :]]
    return _Key(
        stage or "own",
        tuple((user.f_code, user.f_lineno or user.f_code.co_firstlineno) for user in users),
        (innermost.f_code, innermost.f_lasti),
        None if call is None else str(call.f_globals.get("__name__", "")) or None,
        None if call is None else place_of(call)[2],
    )


def _library_call(below: list[FrameType]) -> FrameType | None:
    """The outermost library function that is called, but for those that call the user's loop."""
    for frame in reversed(below):
        module = str(frame.f_globals.get("__name__", ""))
        if not any(module == x or module.startswith(f"{x}.") for x in _FRAMEWORKS):
            return frame
    return below[0] if below else None


_OF_FILE: Final[tuple[tuple[str, tuple[str, ...] | None, Stage], ...]] = (
    ("utils/data/", None, "fetch"),
    ("nn/modules/module.py", ("_call_impl", "_wrapped_call_impl"), "forward"),
    ("nn/functional.py", None, "forward"),
    ("_dynamo/", None, "forward"),
    ("_inductor/", None, "forward"),
    ("_tensor.py", ("backward",), "backward"),
    ("autograd/__init__.py", ("backward", "grad"), "backward"),
    ("autograd/graph.py", ("_engine_run_backward",), "backward"),
    ("optim/", None, "optimizer"),
    ("amp/grad_scaler.py", None, "optimizer"),
    ("nn/utils/clip_grad.py", None, "optimizer"),
    ("distributed/", None, "communication"),
)
_stages: dict[tuple[str, str], Stage | None] = {}


def _stage_of(code: CodeType) -> Stage | None:
    """The part of the step that a frame of a library tells; None where it tells nothing."""
    key = code.co_filename, code.co_name
    if key in _stages:
        return _stages[key]
    file = code.co_filename.replace("\\", "/")
    stage: Stage | None = None
    if file.startswith(_TORCH):
        for path, functions, found in _OF_FILE:
            if file.startswith(path, len(_TORCH)) and (
                functions is None or code.co_name in functions
            ):
                stage = found
                break
    elif "/prefetch_generator/" in file:  # waiting for what a background thread fetches
        stage = "fetch"
    _stages[key] = stage
    return stage


def _place(key: _Key, n: int) -> StackPlace:
    frames = tuple(
        FramePlace(
            file=code.co_filename,
            line=line,
            function=getattr(code, "co_qualname", code.co_name),  # Python >= 3.11
            code=source_line(code.co_filename, line),
        )
        for code, line in key.frames
    )
    call = called_at(*key.at)
    return StackPlace(
        stage=key.stage,
        frames=frames,
        n=n,
        module=key.module,
        function=key.function,
        call=call.name if call is not None else None,
        operator=call is not None and call.operator and key.module is None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call in the source, or what stands in for one."""

    name: str | None  # "torch.save", "frame.iloc[]"; None: `+` and its like
    operator: bool  # by its name or kind one of torch's, if its arguments are tensors


def called_at(code: CodeType, instruction: int) -> Call | None:
    """What `code` calls at this byte of its instructions (`f_lasti`); None where nothing."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return None
    at = next(islice(positions(), instruction // 2, None), None)
    if at is None or None in at:
        return None
    text = _segment(code.co_filename, *at)
    if text is None:
        return None
    try:
        node = ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # a statement: `for`, `with`
    return _call_of(node)


def source_line(file: str, line: int) -> str | None:
    """The line without its indentation; None where there is no source."""
    text = linecache.getline(file, line).strip()
    return text[:MAX_LINE_CHARS] or None


def _segment(file: str, line: int, end_line: int, column: int, end_column: int) -> str | None:
    """The source between two places; columns count bytes of UTF-8."""
    if not 0 <= end_line - line < MAX_LINES:
        return None
    lines = [linecache.getline(file, n).encode() for n in range(line, end_line + 1)]
    if not lines[0]:
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="replace")


def _call_of(node: ast.expr) -> Call | None:
    if isinstance(node, ast.Await):
        node = node.value
    if isinstance(node, ast.Call):
        name = _dotted(node.func)
        return Call(name=name, operator=_may_be_operator(name))
    if isinstance(node, ast.Subscript):
        return Call(name=f"{_dotted(node.value)}[]"[:MAX_CHARS], operator=True)
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare):
        return Call(name=None, operator=True)
    if isinstance(node, ast.Attribute):  # a property
        return Call(name=_dotted(node), operator=False)
    return None


def _dotted(node: ast.expr) -> str:
    """`loss.item` of that; of what is no chain of names only its end: `….item`."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "…")
    return ".".join(reversed(names))[:MAX_CHARS]


def _may_be_operator(name: str) -> bool:
    root, _, _ = name.partition(".")
    method = name.rpartition(".")[2]
    if name in _NOT_OPERATORS or "." not in name:
        return False
    if root in _ROOTS:
        return True
    return method not in _READS and hasattr(torch.Tensor, method)
