"""What Python's interpreter tells: where the user's code calls, what lives, who has it next."""

from __future__ import annotations

import ctypes
import gc
import linecache
import os
import sys
import sysconfig
import textwrap
import threading
import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, Generic, TypeVar

import loaderdoctor

MAX_CALLERS = 16
MAX_INITS: Final = 64  # of one class chain, with all that is wrapped around them
MAX_CODE_LINES = 12  # a construction longer than this is cut; the first lines name it well enough

_OURS = str(Path(loaderdoctor.__file__).parent) + os.sep
_RECIPES = _OURS + "_recipes" + os.sep  # in the wheel: shipped with us, a user's code in kind


def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({os.path.realpath(paths[n]) + os.sep for n in names if paths.get(n)})


_LIBRARIES = _library_roots()
# Wherever packages are installed: for this user only, into a folder on PYTHONPATH, ….
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A call in the user's code."""

    file: str
    line: int
    code: str | None
    library: str | None = None  # the package called here that made the call, if one did
    # Through which of the user's calls it was reached: a helper's one line builds several loaders.
    callers: tuple[tuple[str, int], ...] = ()

    @property
    def label(self) -> str:
        """`train.py:41`."""
        return f"{Path(self.file).name}:{self.line}"


def user_site(*, building: object = None) -> Site:
    """The innermost call that is neither torch's, ours, nor (if avoidable) a library's.

    `building`: an object under construction; the `__init__` frames of its own class chain, and
    what other tools wrapped around them, are skipped, so that a DataLoader subclass is found where
    it is used. Runs in the training process; looks at frames' code only, so it costs microseconds
    and keeps nothing alive: before Python 3.13 a frame that is asked for its locals holds a copy
    of them until it ends, so that a loop would keep its last batch and its loaders of before.
    """
    inits = _inits(type(building)) if building is not None else Counter()
    fallback: FrameType | None = None
    library: str | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        recipe = name.startswith(_RECIPES)
        ours_or_torch = (name.startswith(_OURS) and not recipe) or _is_torch(name)
        if _is_file(name) and not ours_or_torch:
            path = os.path.realpath(name)
            package = _package(path)
            own = recipe or (package is None and not path.startswith(_LIBRARIES))
            if inits and inits[frame.f_code] > 0:
                inits[frame.f_code] -= 1  # met more often, it makes another object
                frame = frame.f_back
                continue
            if own:
                return _site(frame, library, callers=building is not None)
            fallback = fallback or frame
            library = package or library
        frame = frame.f_back
    if fallback is None:
        return Site(file="<unknown>", line=0, code=None)
    return _site(fallback, library)


def _callers(frame: FrameType) -> tuple[tuple[str, int], ...]:
    """File and line of the user's frames around this one, innermost first."""
    found: list[tuple[str, int]] = []
    at = frame.f_back
    while at is not None and len(found) < MAX_CALLERS:
        name = at.f_code.co_filename
        ours = name.startswith(_OURS) and not name.startswith(_RECIPES)
        if _is_file(name) and not ours and not name.startswith(_LIBRARIES) and not _package(name):
            found.append((name, at.f_lineno))
        at = at.f_back
    return tuple(found)


def _is_file(name: str) -> bool:
    """Code of a file or of a notebook's or console's input; not `<frozen importlib>` and such."""
    return not name.startswith("<") or name.startswith(("<ipython-input", "<stdin"))


def _package(path: str) -> str | None:
    """The installed package that a file belongs to: "accelerate"."""
    for folder in _PACKAGES:
        if folder in path:
            return Path(path.rpartition(folder)[2]).parts[0].removesuffix(".py")
    return None


def is_own(path: str) -> bool:
    """Whether the file is the user's own: no installed package's, the interpreter's or ours."""
    ours = path.startswith(_OURS) and not path.startswith(_RECIPES)
    return not ours and not path.startswith(_LIBRARIES) and _package(path) is None


def library_of(file: str) -> str | None:
    """The package whose code a file is: "torch", "accelerate"; None: the user's own."""
    return "torch" if _is_torch(file) else _package(os.path.realpath(file))


def _is_torch(name: str) -> bool:
    torch = sys.modules.get("torch")
    roots = getattr(torch, "__path__", None) or ()
    return any(name.startswith(str(root) + os.sep) for root in roots)


def _inits(made: type) -> Counter[CodeType]:
    """Code of each `__init__` that makes such an object, and of what tools wrapped around them.

    With how many of these functions are of it: a decorator's are all of one.
    """
    found: dict[int, FunctionType] = {}
    todo: list[object] = [vars(cls).get("__init__") for cls in made.__mro__]
    while todo and len(found) < MAX_INITS:
        function = todo.pop()
        if not isinstance(function, FunctionType) or id(function) in found:
            continue
        found[id(function)] = function
        todo.append(getattr(function, "__wrapped__", None))
        wrapper = function.__code__.co_name != "__init__"
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # a name that is not bound yet
                inner = cell.cell_contents
                # What an `__init__` calls besides may be any function, also one that builds it.
                if wrapper or getattr(inner, "__name__", None) == "__init__":
                    todo.append(inner)
    return Counter(function.__code__ for function in found.values())


def _site(frame: FrameType, library: str | None, *, callers: bool = False) -> Site:
    first, last = frame.f_lineno, frame.f_lineno
    if sys.version_info >= (3, 11):
        positions = list(frame.f_code.co_positions())
        index = frame.f_lasti // 2
        if 0 <= index < len(positions):
            begin, end = positions[index][:2]
            first, last = begin or first, end or last
    return Site(
        file=frame.f_code.co_filename,
        line=first,
        code=source_lines(frame.f_code.co_filename, first, last),
        library=library,
        callers=_callers(frame) if callers else (),
    )


def source_lines(file: str, first: int, last: int) -> str | None:
    """Source text of these lines, laid out as written; None where the file can't be read."""
    last = min(last, first + MAX_CODE_LINES - 1)
    lines = [linecache.getline(file, n).rstrip() for n in range(first, last + 1)]
    text = textwrap.dedent("\n".join(x for x in lines if x))
    return text or None


def living(base: type[Any]) -> list[Any]:
    """Every living instance of a class written in Python, or of a subclass of it.

    `gc.get_objects()` would tell as well, but holds every tracked object for a moment, also a
    tuple that another thread is still making: its `tuple(…)` then fails with SystemError (seen in
    torch's thread that pins batches). Since Python 3.9 an instance refers to its class, so it is
    enough to ask who refers to the class and its subclasses.
    """
    classes, new = {base}, [base]
    while new:
        found = [sub for cls in new for sub in type.__subclasses__(cls)]
        new = [sub for sub in found if sub not in classes]
        classes.update(new)
    # type(), not isinstance: lazy proxies answer __class__ by doing work.
    return [o for o in gc.get_referrers(*classes) if type(o) in classes]


Value = TypeVar("Value")


class ByObject(Generic[Value]):
    """A value for each of some objects, which it does not keep alive.

    Told apart by identity: a `WeakKeyDictionary` asks for a hash, which objects that compare by
    value (a dataclass, a class with `__eq__`) have not.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, of: object) -> Value | None:
        """None where it has none."""
        held = self._held.get(id(of))
        return held[1] if held is not None and held[0]() is of else None

    def __setitem__(self, of: object, value: Value) -> None:
        key, kept = id(of), self._held

        def gone(ref: weakref.ref[Any]) -> None:
            if key in kept and kept[key][0] is ref:
                del kept[key]

        kept[key] = weakref.ref(of, gone), value


class _Itself:
    """An object as part of a key, which keeps it alive: no other ever has its id."""

    def __init__(self, what: object) -> None:
        self._what = what

    def __hash__(self) -> int:
        return id(self._what)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._what is self._what


def key_of(function: object) -> object:
    """The user's function as part of a key. An object of a dataclass has no hash."""
    try:
        hash(function)
    except TypeError:
        return _Itself(function)
    return function  # a bound method is another object each time it is asked for, and equal


# Asking for the interpreter soon: else samples miss code that gives it up for microseconds.
#
# A thread that waits for the GIL has it handed over 5 ms after asking, but begins to wait again
# each time the holder lets it go and takes it back, as torch does in most operations. So it gets
# its turn only where the holder stays away for long: samples of a dataset that parsed JSON for
# 13 ms a batch all fell on the 0.3 ms of torch.stack behind it. With 0.1 ms, 41 of 45 fell on the
# parsing. Where each sample ends in such an operation, the wait must be shorter than a sample: of
# 52 us each, 95 % of a batch, 2 of 34 fell on them with 0.1 ms, 34 of 35 with 5 us. Linux lets a
# wait last 50 us longer unless it is told not to (`wake_in_time`), without which 1 of 29 did.
#
# A worker is never without another thread: its queue has one that sends, its tensors one that hands
# out file descriptors. Were the wait short all along, they would get the interpreter sooner than
# without samples: batches of a worker that parses JSON seemed to be sent in 2 ms instead of 3.
# Hence in a worker it is short only for some milliseconds before a sample.
#
# Beside any others two that both compute would take turns of that length: it is longer there.

SOON_S: Final = 5e-6
SOON_BESIDE_ANY_S: Final = 1e-4
_SET_TIMER_SLACK: Final = 29  # PR_SET_TIMERSLACK
_OUR_THREADS: Final = "loaderdoctor"  # names of our threads, which sleep, begin so
_QUEUES: Final = ("multiprocessing.queues", "multiprocessing.resource_sharer")

_usual_s: float | None = None
_forgets_in_children = False


def ask_soon(*, beside_queues: bool = False, beside_any: bool = False) -> bool:
    """Shortens the wait for the GIL while only one thread is there to give it to ours.

    Beside other threads of the script it stays, or becomes again, what the script has: theirs
    would get shorter turns too. So would the threads with which multiprocessing sends what a
    worker made; `beside_queues` looks past those, for callers that are back to usual soon.
    Called before each sample, by the sampling thread. Returns whether the wait is short now.
    """
    global _usual_s, _forgets_in_children
    others = [t for t in threading.enumerate() if not t.name.startswith(_OUR_THREADS)]
    if beside_queues:
        others = [t for t in others if _module_run_by(t) not in _QUEUES]
    if len(others) > 1 and not beside_any:
        ask_as_usual()
        return False
    soon_s = SOON_S if len(others) <= 1 else SOON_BESIDE_ANY_S
    ours = _usual_s is not None and _is_short()
    if ours or sys.getswitchinterval() > soon_s:
        _usual_s = _usual_s if ours else sys.getswitchinterval()
        sys.setswitchinterval(soon_s)
        if not _forgets_in_children and hasattr(os, "register_at_fork"):  # not on Windows
            _forgets_in_children = True
            os.register_at_fork(after_in_child=ask_as_usual)
    return True


def _module_run_by(thread: threading.Thread) -> str | None:
    """Where the function comes from that the thread was started with (all of CPython keep it)."""
    return getattr(getattr(thread, "_target", None), "__module__", None)


def ask_as_usual() -> None:
    """What the script had, unless it has set something else meanwhile."""
    global _usual_s
    usual_s, _usual_s = _usual_s, None
    if usual_s is not None and _is_short():
        sys.setswitchinterval(usual_s)


def _is_short() -> bool:
    """Whether it is one of ours."""
    now_s = sys.getswitchinterval()
    return any(abs(now_s - s) < s / 2 for s in (SOON_S, SOON_BESIDE_ANY_S))


def wake_in_time() -> None:
    """Lets waits of the calling thread end when they are over; on Linux, else as they do."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1000, 0, 0, 0)  # ns
