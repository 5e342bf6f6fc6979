"""Why a trial is refused: what torch does not accept, or `hazards` says it breaks; its workers.

A worker started by spawn or forkserver runs the main script, to find the dataset's class there.
What stands under `if __name__ == "__main__":` it leaves out; without that guard the training itself
would begin again in each worker, which multiprocessing refuses to do (a RuntimeError about
bootstrapping). On which CPUs workers start is an axis too (`worker_cpus`).
"""

from __future__ import annotations

import ast
import contextlib
import multiprocessing
import multiprocessing.spawn
import sys
import tempfile
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
)

from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import TrialRefused
from loaderdoctor.hazards import (
    OTHER_DESCRIPTORS,
    Change,
    FeedBatch,
    Room,
    container_words,
    hazard,
)
from loaderdoctor.instrument.dataset import one_pass_reason, shards_itself
from loaderdoctor.instrument.dataset.containers import containers, open_handles
from loaderdoctor.instrument.dataset.pickling import TrialPickle
from loaderdoctor.instrument.dataset.safety import pickled_parts
from loaderdoctor.instrument.system import ByObject
from loaderdoctor.instrument.system.machine import (
    available_bytes,
    local_ranks,
    open_files_limit,
    shm_free_bytes,
)
from loaderdoctor.instrument.wire.records import (
    ContainerRecord,
    SafetyRecord,
    TensorRecord,
)
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings, StartMethod

# By loader.
_pickles = ByObject[TrialPickle]()
_containers = ByObject[tuple[ContainerRecord, ...]]()

_NOT_PICKLED = TrialPickle(pickles=None, error=None, shared_bytes=0, n_bytes=0, cuda_tensors=False)


def check(
    loader: DataLoader[Any],
    settings: Settings,
    effective: Settings,
    *,
    has_accelerator: bool,
    batch: tuple[TensorRecord, ...],
    n_alike: int = 1,
    continues: bool = False,
) -> None:
    """Raise TrialRefused where the trial must not be run.

    `settings` is what the trial changes, `effective` what its loader would have. `batch` is one
    batch of the loader, for its size; empty: not known. `n_alike` loaders must have room together.
    `continues`: the training goes on with the loop's own stream of indexes, which is not opened
    again, so that a place that is lost when it is matters nothing.
    """
    workers = effective.num_workers or 0
    asked = settings if settings.resident else settings.over(Settings(num_workers=workers))
    reason = invalid_reason(asked, has_accelerator=has_accelerator)
    if reason is None:
        found = hazard(_change(loader, settings, effective, batch, n_alike, continues=continues))
        reason = found.reason if found is not None else None
    if reason is not None:
        raise TrialRefused(reason)


def _change(
    loader: DataLoader[Any],
    settings: Settings,
    effective: Settings,
    batch: tuple[TensorRecord, ...],
    n_alike: int,
    *,
    continues: bool,
) -> Change:
    """What is known of this trial; only what its kind of workers makes worth asking."""
    workers, method = effective.num_workers or 0, start_method_of(effective)
    forks, iterable = method == "fork", isinstance(loader.dataset, IterableDataset)
    cuda_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    parts = _pickled(loader) if workers and (cuda_used or not forks) else _NOT_PICKLED
    copied = _copied(loader) if workers > loader.num_workers else ()
    one_pass = None if continues else one_pass_reason(loader)
    each = FeedBatch(cpu_bytes=sum(tensor.n_bytes for tensor in batch), n_tensors=len(batch))
    return Change(
        settings=settings,
        whole=effective,
        had=loader.num_workers,
        had_queue=loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR,
        alongside=True,
        dataset=type(loader.dataset).__name__,
        iterable=iterable,
        safety=SafetyRecord(
            pickles=parts.pickles,
            pickle_error=parts.error,
            cuda_tensors=parts.cuda_tensors,
            unsharded_iterable=iterable and workers > 1 and not shards_itself(loader),
            open_handles=open_handles(loader.dataset) if workers or settings.threads else (),
            one_pass=one_pass is not None,
            one_pass_reason=one_pass,
        ),
        start_method=method,
        main_runs_again=not forks and not main_is_guarded() and not can_be_guarded(),
        room=Room(
            shm_free_bytes=shm_free_bytes(),
            available_bytes=available_bytes(),
            open_files_limit=open_files_limit(),
            open_files=_open_files(),
            n_ranks=local_ranks() or 1,
        ),
        batches=(each,) * n_alike,
        n_new=workers * n_alike,
        shared_bytes=parts.shared_bytes,
        pickled_bytes=parts.n_bytes,
        container_bytes=sum(x.n_bytes for x in copied),
        container=container_words(copied[0]) if copied else None,
    )


def _open_files() -> int:
    """Of this process; where the system counts handles instead no limit is known either."""
    process: Any = psutil.Process()
    return process.num_fds() if hasattr(process, "num_fds") else OTHER_DESCRIPTORS


def loader_settings(loader: DataLoader[Any]) -> Settings:
    """The loader's own settings; worker-only axes are unset at 0 workers."""
    workers, queue = int(loader.num_workers), loader.prefetch_factor
    in_order = getattr(loader, "in_order", None)
    method: StartMethod | None = None
    if workers:
        context = loader.multiprocessing_context
        name = context.get_start_method() if context is not None else default_start_method()
        method = name if name in ("fork", "spawn", "forkserver") else None  # type: ignore[assignment]
    return Settings(  # torch takes 1 for True, and any library's numbers
        num_workers=workers,
        prefetch_factor=int(queue) if workers and queue is not None else None,
        persistent_workers=bool(loader.persistent_workers) if workers else None,
        pin_memory=bool(loader.pin_memory),
        in_order=bool(in_order) if workers and in_order is not None else None,
        start_method=method,
    )


def default_start_method() -> str:
    """The start method workers would use now, without fixing it as asking for it would."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def start_method_of(effective: Settings) -> str:
    """How the workers would be started: as set, else as the process is set up."""
    return effective.start_method or default_start_method()


def _pickled(loader: DataLoader[Any]) -> TrialPickle:
    found = _pickles.get(loader)
    if found is None:
        found = _pickles[loader] = pickled_parts(loader)
    return found


def _copied(loader: DataLoader[Any]) -> tuple[ContainerRecord, ...]:
    """Containers that each worker comes to copy.

    Asked where there are more workers than the loop has: with as many or fewer, what the loop's own
    copy is given back when they go.
    """
    found = _containers.get(loader)
    if found is None:
        try:
            found = containers(loader.dataset)
        except Exception:  # foreign attributes: nothing is known, as with none
            found = ()
        _containers[loader] = found
    return found


# Lines of the script that a guard would hold, as shown; the rest is "…".
MAX_SHOWN = 6

_DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def main_is_guarded() -> bool:
    """Whether the script can be imported by a spawned worker without running its training.

    By the statement of the script that runs now, where it is on this thread's stack; else by
    whether there is a guard at all. True where there is no script to import.
    """
    script = _script()
    if script is None:
        return True
    _, tree = script
    line = _running_line()
    if line is None:
        return any(_is_guard(node) for node in tree.body)
    running = next((n for n in tree.body if n.lineno <= line <= (n.end_lineno or line)), None)
    return running is None or _is_guard(running)


def guard_code() -> str | None:
    """The guard with what of the script belongs under it, shortened; None where it has one."""
    script = _script()
    if script is None or main_is_guarded():
        return None
    lines, tree = script[0].splitlines(), script[1]
    kept = set(map(id, _definitions(tree)))
    runs = [n for n in tree.body if id(n) not in kept and not _is_docstring(n)]
    shown = [line for n in runs for line in lines[n.lineno - 1 : n.end_lineno]]
    under = [f"    {line}" if line.strip() else "" for line in shown[:MAX_SHOWN]]
    rest = ["    ...  # and all else that runs"] if len(shown) > MAX_SHOWN else []
    return "\n".join(['if __name__ == "__main__":', *under, *rest])


def can_be_guarded() -> bool:
    """Whether `AsIfGuarded` can do it: a script that was started by its path."""
    return _script() is not None and getattr(sys.modules["__main__"], "__spec__", None) is None


class AsIfGuarded:
    """Workers started within `starting` import the script's definitions alone, as with a guard.

    Nothing is changed where the script has one. What they import lies in a folder of its own until
    `close`: a worker reads it once it has started.
    """

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        script = _script()
        if script is None or not can_be_guarded() or main_is_guarded():
            return
        path, tree = str(sys.modules["__main__"].__file__), script[1]
        tree.body = _definitions(tree)
        # A class finds its file where it was, and so does `__file__`.
        text = f"__file__ = {path!r}\nexec(compile({ast.unparse(tree)!r}, {path!r}, 'exec'))\n"
        self._folder = tempfile.TemporaryDirectory(prefix="loaderdoctor-")
        self._stand_in = Path(self._folder.name) / Path(path).name
        self._stand_in.write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        if self._folder is None:
            yield
            return
        original, stand_in = multiprocessing.spawn.get_preparation_data, str(self._stand_in)

        def get_preparation_data(name: str) -> dict[str, Any]:
            return {**original(name), "init_main_from_path": stand_in}

        multiprocessing.spawn.get_preparation_data = get_preparation_data
        try:
            yield
        finally:
            multiprocessing.spawn.get_preparation_data = original

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _definitions(tree: ast.Module) -> list[ast.stmt]:
    """Imports, functions and classes, and the assignments of names that these use."""
    kept = {id(n) for n in tree.body if _only_defines(n)}
    used: set[str] = set()
    while True:
        used |= {
            name.id
            for node in tree.body
            if id(node) in kept
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
        }
        more = {
            id(n)
            for n in tree.body
            if isinstance(n, (ast.Assign, ast.AnnAssign)) and _assigned(n) & used
        }
        if more <= kept:
            return [n for n in tree.body if id(n) in kept]
        kept |= more


def _only_defines(node: ast.stmt) -> bool:
    """`try: import …` and `if …: import …` too."""
    if isinstance(node, ast.If):
        return not _is_guard(node) and all(map(_only_defines, [*node.body, *node.orelse]))
    if isinstance(node, ast.Try):
        handled = [n for h in node.handlers for n in h.body]
        return all(
            isinstance(n, (ast.Assign, ast.Pass)) or _only_defines(n)
            for n in [*node.body, *handled, *node.orelse]
        )
    return isinstance(node, _DEFINES)


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


def _is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and any(
        isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test)
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _running_line() -> int | None:
    """The line of the script's own module that is being run on this thread."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None


def _script() -> tuple[str, ast.Module] | None:
    """The main script's text; None where there is none, or none that can be read as text."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None:
        return None
    try:
        with tokenize.open(file) as script:  # in the encoding that it declares
            text = script.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its strings: Python said so when it began
            return text, ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None  # a zip or a compiled script: multiprocessing's own idea of it counts


def reads_here(settings: Settings) -> bool:
    """Whether samples are looked at here before the trial."""
    return bool(
        settings.cache
        or settings.batched
        or settings.uint8
        or settings.device_decode
        or settings.threads
        or settings.storage not in (None, "original")
        or settings.augment not in (None, "on")
        or settings.fields not in (None, "all")
    )
