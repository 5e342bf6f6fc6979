"""The Python API: measure a loop of this process, in a notebook or written by hand.

    for batch in loaderdoctor.watch(loader):          one pass; the report is printed at its end
        ...

    with loaderdoctor.watching() as watched:          as many epochs as the block holds
        train()
    report = watched.report()

    with loaderdoctor.monitor():                      recorded to its end, and told meanwhile
        train()

Results of the loop stay what they would be, unless `ablation` or `verify` asks for windows with
other batches. Once everything is measured, and in any case at the end, every hook is gone.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from loaderdoctor.commands.run.monitor import hooked, monitor
from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.budget import DiagnosisOptions, follow_seconds
from loaderdoctor.errors import LoaderdoctorError, RunError, UsageError
from loaderdoctor.instrument.command.launched_run import TrainingBeganError
from loaderdoctor.instrument.command.script_run import InProcessRun, LocalLink
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.system import user_site
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.report import RunFolder
from loaderdoctor.report.console import console_text

if TYPE_CHECKING:
    from loaderdoctor.report.model import Report

__all__ = ["monitor", "watch", "watching"]

BUDGET_S = 45.0
JOIN_S = 60.0  # for reading the trace of the last window, where the loop ended meanwhile

Batch = TypeVar("Batch", covariant=True)


class Loader(Protocol[Batch]):
    """What `watch` takes: a torch DataLoader, or something that iterates one."""

    def __iter__(self) -> Iterator[Batch]: ...


class watching:  # noqa: N801 - a context manager, called like a function
    """Measures the training loop that runs inside the block.

    ablation: also measure windows with ready batches, and what the loader costs by that. The
        loop then trains on repeated batches for some steps.
    verify: also try the settings that should help; implies other batches too.
    budget_s: seconds for ablation and trials.
    output: a new folder for report.json, report.html and the traces.

    Raises UsageError where another block is being watched, or `output` holds something.
    """

    _open: ClassVar[watching | None] = None

    def __init__(
        self,
        *,
        ablation: bool = False,
        verify: bool = False,
        budget_s: float = BUDGET_S,
        with_stack: bool = False,
        profile_memory: bool = False,
        output: str | Path | None = None,
    ) -> None:
        self._output = None if output is None else Path(output)
        self._options = DiagnosisOptions(
            budget_s=budget_s,
            ablate=ablation or verify,
            verify=verify,
            patient=False,
            profiler=ProfilerSchedule(with_stack=with_stack, profile_memory=profile_memory),
        )
        self._raw: tempfile.TemporaryDirectory[str] | None = None
        self._folder: RunFolder | None = None
        self._running: tuple[Session, Hooks, threading.Thread] | None = None
        self._script_run = InProcessRun()
        self._diagnosis: Diagnosis | None = None
        self._failure: LoaderdoctorError | None = None
        self._report: Report | None = None
        self._passive = False  # the script is being measured from outside already
        self._began = 0.0

    def __enter__(self) -> watching:
        if self._raw is not None or self._passive:
            raise UsageError("watching: a block can be watched once; make a new one.")
        if watching._open is not None or Hooks.active is not None:
            if watching._open is not None:
                raise UsageError("watching: another loop of this process is being watched.")
            self._passive = True
            return self
        self._began = time.time()
        label = user_site().label
        if self._output is not None:
            self._folder = RunFolder.create(label, output=self._output, at=self._began)
        self._raw = tempfile.TemporaryDirectory(prefix="loaderdoctor-")
        raw = Path(self._raw.name)
        self._diagnosis = Diagnosis(self._script_run, target=label, raw=raw, options=self._options)
        watching._open = self
        session = Session(
            LocalLink(self._script_run),
            run_dir=raw,
            patient=False,
            follow_s=follow_seconds(self._options.budget_s),
        )
        deciding = threading.Thread(
            target=self._decide, args=(self._diagnosis,), name="loaderdoctor", daemon=True
        )
        self._running = session, hooked(session), deciding
        deciding.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._end(failed=kind not in (None, GeneratorExit))

    def report(self, *, show: bool = True) -> Report:
        """The report of what was measured; ends the watching. Prints it unless `show` is False.

        Raises RunError where there is none: too few steps, or no loader.
        """
        self._end(failed=False)
        if self._report is None:
            self._report = self._make_report()
        if show:
            folder = self._folder.path if self._folder is not None else None
            print(console_text(self._report, folder=folder, brief=True))
        return self._report

    # ------------------------------------------------------------ inside

    def _decide(self, diagnosis: Diagnosis) -> None:
        try:
            self._measure(diagnosis)
        except LoaderdoctorError as error:
            self._failure = error
        except Exception as error:  # ours: the loop would wait for its next window for ever
            self._failure = RunError(f"an internal error ended the measuring: {error!r}")
            self._failure.__cause__ = error
        self._script_run.stop()

    def _measure(self, diagnosis: Diagnosis) -> None:
        try:
            diagnosis.measure(self._script_run.wait_observed())
        except TrainingBeganError as why:  # only then, or it went on with another loader
            diagnosis.start_over(why)
            self._measure(diagnosis)

    def _end(self, *, failed: bool) -> None:
        if self._running is None or sys.is_finalizing():  # torch is being taken apart
            return
        (session, hooks, deciding), self._running = self._running, None
        session.script_over("script-failed" if failed else "script-ended", 0)
        hooks.remove()
        watching._open = None
        deciding.join(JOIN_S)

    def _make_report(self) -> Report:
        if self._passive:
            raise RunError("watching: loaderdoctor measures this script from outside already.")
        diagnosis, raw = self._diagnosis, self._raw
        if diagnosis is None or raw is None:
            raise RunError("watching: nothing was watched yet; use it in a `with` statement.")
        try:
            if self._failure is not None:
                if diagnosis.evidence is None:
                    raise self._failure
                diagnosis.problems.append(str(self._failure))
            self._script_run.finish()
            report = diagnosis.report()
            if self._folder is not None:
                from loaderdoctor.commands.run_folder import write_run

                write_run(self._folder, diagnosis, report, at=self._began)
            return report
        finally:
            raw.cleanup()
            if self._folder is not None:
                self._folder.discard_if_empty()


class watch(Generic[Batch]):  # noqa: N801 - used like enumerate()
    """One watched pass over a loader: `for batch in loaderdoctor.watch(loader):`.

    The report is printed when the pass ends, or the loop leaves it; passes after the first go on
    unwatched. `len()` is the loader's. Options as of `watching`.
    """

    def __init__(self, loader: Loader[Batch], **options: Any) -> None:
        self._loader = loader
        self._watching: watching | None = watching(**options)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # the TypeError is the answer

    def __iter__(self) -> Iterator[Batch]:
        watched, self._watching = self._watching, None
        if watched is None:
            yield from self._loader
            return
        try:
            with watched:
                yield from self._loader
        except GeneratorExit:  # by a `break`, say; at the interpreter's end nothing can be told
            if not sys.is_finalizing():
                self._tell(watched)
            raise
        self._tell(watched)

    def _tell(self, watched: watching) -> None:
        try:
            watched.report()
        except LoaderdoctorError as error:
            sys.stderr.write(f"loaderdoctor: {error}\n")
