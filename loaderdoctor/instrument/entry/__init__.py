"""Runs the user's script as the true `__main__`, as `python script.py` or `python -m module` do.

The module object in sys.modules, `__file__`, `__spec__`, sys.argv and sys.path[0] are those of a
plain run, so classes defined in the script pickle under every start method (spawn reads
`__main__.__file__` and `__spec__`) and workers re-import the script, never this package.

Of a copy that was changed, modules of the user's folder are imported from the copy, however they
are found (`CopyFirst`): an editable install, a `.pth` file or PYTHONPATH name the folder itself.

A process may be recorded to its end (`record`), and then waits for its report (`verdict`). Nothing
here imports torch, or numpy: what these read of the environment, the script sets first.
"""

from __future__ import annotations

import builtins
import importlib.util
import linecache
import os
import sys
import threading
import types
import weakref
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

from loaderdoctor.errors import EXIT_RUN_FAILED
from loaderdoctor.instrument.command.endings import in_one_line
from loaderdoctor.instrument.session.script_process import StopTraining
from loaderdoctor.instrument.system.processes import EXIT_INTERRUPTED
from loaderdoctor.instrument.wire.channel import (
    Channel,
    CheckedConfig,
    ConnectionLostError,
    LaunchConfig,
)
from loaderdoctor.instrument.wire.protocol import Reported

if TYPE_CHECKING:
    from loaderdoctor.instrument.session import Recording, Session

_OURS = str(Path(__file__).parent.parent) + os.sep  # instrument/
# Interpreters older than 3.11 have no `-P`.
_SAFE_PATH = bool(getattr(sys.flags, "safe_path", False))
_PACKAGE = "loaderdoctor"  # imported before, and no part of what is proven


TRACE = "baseline.json"
# For the report: some seconds, and more of a long trace.
REPORT_S = 120.0
UNJUDGED = "loaderdoctor: --fail-on was not judged: there is no report of this run.\n"
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_registered = False


class CannotStartError(Exception):
    """The target can't be found; the message is the interpreter's own for this case."""


class ScriptEnd(NamedTuple):
    """How the script ended."""

    how: Literal["script-ended", "script-failed", "interrupted"] = "script-ended"
    code: int = 0
    reason: str | None = None  # the exception that ended it
    stopped: bool = False  # by us


def run_target(config: LaunchConfig | CheckedConfig) -> ScriptEnd:
    """Run its target to the end, and say on stderr what the interpreter would of that."""
    try:
        (run_script if config.kind == "script" else run_module)(config.target, config.args)
        return ScriptEnd()
    except StopTraining:
        return ScriptEnd(stopped=True)
    except CannotStartError as error:
        print(error, file=sys.stderr)
        return ScriptEnd("script-failed", 2 if config.kind == "script" else 1)
    except SystemExit as error:
        return ScriptEnd(code=_exit_code(error))
    except BaseException as error:
        raised = error
    # Not while it is handled: it would be the context of what the script's excepthook raises.
    if isinstance(raised, KeyboardInterrupt):
        return ScriptEnd("interrupted", report_exception(raised, EXIT_INTERRUPTED))
    return ScriptEnd("script-failed", report_exception(raised, 1), in_one_line(raised))


def exit_code_of(error: SystemExit) -> int:
    """What the interpreter makes of it, but for a text, which it prints."""
    if isinstance(error.code, int):
        return error.code
    return 0 if error.code is None else 1


def _exit_code(error: SystemExit) -> int:
    if error.code is not None and not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    return exit_code_of(error)


def run_script(script: str, args: tuple[str, ...]) -> None:
    """Execute a file as `__main__`. Whatever it raises passes through."""
    path = os.path.abspath(script)  # noqa: PTH100 - keeps symbolic links, as Python does
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise CannotStartError(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        ) from None
    sys.argv[:] = [script, *args]
    if not _SAFE_PATH:
        sys.path.insert(0, str(Path(path).resolve().parent))
    module = _new_main(path, None, SourceFileLoader("__main__", path), None)
    linecache.lazycache(path, module.__dict__)
    # No .pyc is written for a main script; compile() honours the coding line of bytes.
    code = compile(source, path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def run_module(name: str, args: tuple[str, ...]) -> None:
    """Execute a module or package as `python -m` does. Whatever it raises passes through."""
    sys.argv[:] = ["-m", *args]
    if not _SAFE_PATH:
        sys.path.insert(0, str(Path.cwd()))
    spec = _find(name)
    if spec.submodule_search_locations is not None:
        spec = _find(f"{name}.__main__", package=name)
    loader = spec.loader
    code = loader.get_code(spec.name) if isinstance(loader, InspectLoader) else None
    if code is None:
        raise CannotStartError(f"{sys.executable}: No code object available for {name}")
    sys.argv[0] = spec.origin or name
    module = _new_main(spec.origin, spec, loader, spec.parent)
    exec(code, module.__dict__)


def _find(name: str, package: str | None = None) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        spec = None
    if spec is None:
        text = f"{sys.executable}: No module named {name}"
        if package is not None:
            text += f"; {package!r} is a package and cannot be directly executed"
        raise CannotStartError(text)
    return spec


def _new_main(
    file: str | None, spec: ModuleSpec | None, loader: object, package: str | None
) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=file,
        __spec__=spec,
        __loader__=loader,
        __package__=package,
        __cached__=None if spec is None else spec.cached,
        __builtins__=builtins,
    )
    if sys.version_info < (3, 14):  # from there on they are made when they are asked for
        module.__annotations__ = {}
    sys.modules["__main__"] = module
    # multiprocessing, which we had to import before, made this alias at its import: what spawned
    # workers send back is of classes of `__mp_main__`.
    sys.modules["__mp_main__"] = module
    return module


def report_exception(error: BaseException, code: int) -> int:
    """Print an uncaught exception as the interpreter would, through the script's excepthook.

    The exit code: `code`, or that of a hook which exits.
    """
    strip_frames(error)
    sys.last_type, sys.last_value = type(error), error
    sys.last_traceback = error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as left:
        return _exit_code(left)
    except BaseException as failed:
        strip_frames(failed)
        told = {"Error in sys.excepthook:": failed, "\nOriginal exception was:": error}
        for text, one in told.items():
            print(text, file=sys.stderr)
            sys.__excepthook__(type(one), one, one.__traceback__)
    return code


def strip_frames(error: BaseException) -> None:
    """Take our own frames out of the tracebacks of an exception and of what led to it."""
    todo: list[BaseException] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one.__traceback__)
        todo.extend(x for x in (one.__cause__, one.__context__) if x is not None)
        todo.extend(getattr(one, "exceptions", ()))  # of a group, Python >= 3.11


def _without_ours(tb: types.TracebackType | None) -> types.TracebackType | None:
    kept: list[types.TracebackType] = []
    while tb is not None:
        if not _is_ours(tb):
            kept.append(tb)
        tb = tb.tb_next
    following: types.TracebackType | None = None
    for one in reversed(kept):
        one.tb_next = following
        following = one
    return following


def _is_ours(tb: types.TracebackType) -> bool:
    name = tb.tb_frame.f_code.co_filename
    return name.startswith((_OURS, "<frozen importlib")) if tb.tb_next else name.startswith(_OURS)


def waits_for_threads() -> bool:
    """Whether the interpreter will wait for threads of the script after its last line."""
    return any(
        t is not threading.main_thread() and not t.daemon and t.is_alive()
        for t in threading.enumerate()
    )


def record(session: Session, launch_config: LaunchConfig) -> None:
    """Have the session record its loop, once it is warm."""
    trace_path = str(session.run_dir / TRACE) if launch_config.profile else None

    def recording(session: Session) -> Recording:
        from loaderdoctor.instrument.recording import Recorder

        if not launch_config.tune:
            return Recorder(session, trace_path=trace_path)
        from loaderdoctor.instrument.recording.loop_tuner import LoopTuner

        tuner = LoopTuner(session, exact=launch_config.tune == "exact")
        return Recorder(session, trace_path=trace_path, tuner=tuner)

    session.record_to_end(recording)
    if launch_config.sums_dir:
        session.workers.sums_folder = Path(launch_config.sums_dir) / str(os.getpid())


def verdict(
    channel: Channel | None, launch_config: LaunchConfig, came: Sequence[object] = ()
) -> int:
    """The command's exit code, once its report is written. `channel`: None where nobody listens.

    `came`: signals, of which the first ends the wait. Without a report nothing has passed that it
    was to judge: that is said, and is no success.
    """
    code = _reported(channel, came) if channel is not None else None
    if code is None and launch_config.judged and not came:
        sys.stderr.write(UNJUDGED)
        return EXIT_RUN_FAILED
    return code or 0


def _reported(channel: Channel, came: Sequence[object]) -> int | None:
    """None where it never comes."""
    end_s = monotonic() + REPORT_S
    while not came and monotonic() < end_s:
        try:
            message = channel.receive(0.5)
        except ConnectionLostError:
            return None
        if isinstance(message, Reported):
            return message.exit_code
    return None


def disable_in_forks(session: Session) -> None:
    """In forks of this process, DataLoader workers, it does nothing; what `os` was told stays."""
    global _registered
    _sessions.add(session)
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_disable_all)


def _disable_all() -> None:
    for session in _sessions:
        session.disable_in_fork()


class CopyFirst(MetaPathFinder):
    """Asks the other finders; what they find in `root` is taken from where it lies in `copy`."""

    def __init__(self, root: str, copy: str) -> None:
        self._root, self._copy = os.path.realpath(root), os.path.realpath(copy)

    def install(self) -> None:
        """From now on. Entries of sys.path lead into the copy too: spawned workers inherit them."""
        sys.path[:] = [self.here(entry) or entry for entry in sys.path]
        sys.meta_path.insert(0, self)

    def here(self, path: str) -> str | None:
        """Where a file or folder of the original lies in the copy; None: not there, or no such."""
        full = os.path.realpath(path)
        if full != self._root and not full.startswith(self._root + os.sep):
            return None
        if full == self._copy or full.startswith(self._copy + os.sep):
            return None  # a copy within the original
        moved = self._copy + full[len(self._root) :]
        return moved if os.path.lexists(moved) else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import system. Those before this one ask it themselves."""
        if fullname.partition(".")[0] == _PACKAGE:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return self._moved(spec)
        return None

    def _moved(self, spec: ModuleSpec) -> ModuleSpec:
        folders = spec.submodule_search_locations
        if spec.origin is None or not spec.has_location:
            if folders is not None:  # a namespace package
                spec.submodule_search_locations = [self.here(x) or x for x in folders]
            return spec
        moved = self.here(spec.origin)
        if moved is None:
            return spec
        inside = None if folders is None else [self.here(x) or x for x in folders]
        found = importlib.util.spec_from_file_location(
            spec.name, moved, submodule_search_locations=inside
        )
        if found is None:
            return spec
        if "." not in spec.name:  # spawned workers look along sys.path
            at = Path(moved).parent.parent if inside is not None else Path(moved).parent
            if str(at) not in sys.path:
                sys.path.insert(1, str(at))
        return found

    def missed(self) -> tuple[str, ...]:
        """Modules that came from the original although the copy has a file of its own."""
        found = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            ours = name.partition(".")[0] == _PACKAGE
            if ours or not isinstance(file, str):
                continue
            moved = self.here(file)  # in a shared folder, a link, it is the original itself
            if moved is not None and os.path.realpath(moved) != os.path.realpath(file):
                found.append(name)
        return tuple(sorted(found))
