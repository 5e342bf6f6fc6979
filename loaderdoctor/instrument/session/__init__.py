"""One run of the user's script: what is known of it, what it says to the command, how it ends.

Runs in the training process. `loop` fills in what the hooks see; `driver` and what it calls
measure windows. All that lives only as long as one of these is in `Session.window`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from math import inf
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, Protocol

from loaderdoctor.instrument.session.feed import Torch
from loaderdoctor.instrument.session.loaders import LoaderRegistry
from loaderdoctor.instrument.session.open_window import OpenWindow
from loaderdoctor.instrument.session.passes import PassLog
from loaderdoctor.instrument.session.roles import Definition, RoleObserver
from loaderdoctor.instrument.session.script_process import (
    StopTraining,
    WorkerRecords,
    exit_after_grace,
)
from loaderdoctor.instrument.session.wall_account import Elsewhere, WallAccount
from loaderdoctor.instrument.wire.channel import Link
from loaderdoctor.instrument.wire.protocol import (
    LOADER_CHANGED,
    Ended,
    FromRun,
    Note,
    Progress,
    TrainingBegan,
    WindowRequest,
)
from loaderdoctor.instrument.wire.records import BoundaryRecord, PassRecord, ScriptRecord
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    import torch


Driver = Generator[None, int, None]
# By so many times as long as training may be followed a diagnosis is over.
OVERDUE = 3


class ScriptOverError(Exception):
    """Thrown into the driver when the script ends while a window is open."""


class Installed(Protocol):
    """Our hooks in torch (`hooks.Hooks`)."""

    def remove(self, *, but_epochs: bool = False) -> None: ...

    def hear_backward(self) -> None: ...

    def remove_backward(self) -> None: ...


class MeasuresWindows(Protocol):
    """What the driver measures with (`windows.Windows`)."""

    @property
    def step_ns(self) -> int: ...

    def batches_per_cycle(self, request: WindowRequest | None) -> int: ...

    def measure(self, request: WindowRequest) -> Generator[None, int, None]: ...


class Recording(Protocol):
    """Records the loop to its end (`recording.Recorder`)."""

    def course(self, windows: MeasuresWindows) -> Driver:
        """What happens once the loop was observed, as a generator like the driver."""


class Session:
    """One run of the user's script."""

    originals: Torch
    hooks: Installed

    def __init__(
        self,
        channel: Link,
        *,
        run_dir: Path,
        records_workers: bool = True,
        group: bool = False,
        patient: bool = True,
        follow_s: float | None = None,
    ) -> None:
        """`patient`: wait for training to begin; else any loop will do.

        `follow_s`: so long after the first step training is followed to another loader; None: ever.
        Where that goes on later, or for thrice as long, no more is measured.
        """
        self.channel = channel
        self.group = group  # one of several ranks: the loop never pauses
        self.run_dir = run_dir
        self.live = True  # hooks act; False in forked children and once detached
        self.stopping = self._ended = False
        self.pristine = True  # nothing was ever substituted or thrown away in this run
        self.registry = LoaderRegistry()
        self.workers = WorkerRecords(run_dir, self.note, self.registry.id_of, records_workers)
        self.patient = patient
        self.passes: PassLog | None = PassLog()  # None: training has begun
        self.before_training: tuple[PassRecord, ...] = ()
        self._passes_before: tuple[PassRecord, ...] = ()  # of them, before the loader changed
        self.roles = RoleObserver(self.passes, patient=patient)
        self.definition: Definition | None = None
        self._follow_s = inf if follow_s is None else follow_s
        self._first_defined_ns = 0  # when the step first was known, of training
        self._n_followed = 0  # times that training was followed to another loader
        self.device: torch.device | None = None
        self.boundaries: list[BoundaryRecord] = []
        self.n_steps = 0
        self.stopped_ns = 0  # the last boundary at which the driver was woken: the loop stands
        self.at_fresh_feed = False  # the boundary now handled begins an epoch
        self.at_edge = True  # it may also end one
        # (optimizer id, batches of the clock fetched so far), while the loop settles
        self.optimizer_marks: list[tuple[int, int]] | None = []
        self.window = OpenWindow()
        self.wall = self._new_account()
        self.driver: Driver | None = None
        self.no_dataloader: Callable[[Any], None] | None = None  # told of work before any fetch
        self.script: ScriptRecord | None = None  # as it was started; without its files
        self.read_stdin: Callable[[], bool] = lambda: False
        # Records the run to its end; None: the command asks for windows.
        self.recording: Callable[[Session], Recording] | None = None

    def record_to_end(self, recording: Callable[[Session], Recording]) -> None:
        """The run stays as it is and is recorded to its end. Call it before the script runs.

        `recording` is called once the loop is warm: the script imports torch first.
        """
        self.recording = recording
        self.workers.bounded = True

    def close_window(self) -> None:
        """Nothing of the window stays, whatever it had set."""
        self.window.end_timing()  # where it failed
        self.window = OpenWindow()

    def _new_account(self) -> WallAccount:
        made = WallAccount(
            undisturbed=lambda: self.window.mode in (None, "plain") and not self._substituted,
            passes_stand=lambda: self.window.mode not in ("profiled", "trial"),
        )
        if self.group:  # ranks would each decide for themselves
            made.joining.decided = True
        return made

    @property
    def _substituted(self) -> bool:
        clock = self.definition.clock if self.definition is not None else None
        return clock is not None and clock.substitute.source is not None

    # ------------------------------------------------------------ messages

    def send(self, message: FromRun) -> None:
        self.channel.send(message)

    def note(self, kind: str, text: str) -> None:
        """Something the report must say."""
        self.send(Note(kind=kind, text=text))

    def progress(self, text: str) -> None:
        """For the live display."""
        self.send(Progress(text=text, n_steps=self.n_steps))

    # ------------------------------------------------------------ training begins

    def defined(self, definition: Definition) -> None:
        """What a step is, is known: for good where it trains."""
        passes = self.passes
        assert passes is not None
        but = None if definition.trains else definition.clock
        self.before_training = (*self._passes_before, *passes.records(but=but))
        self.wall.begin(now := perf_counter_ns(), definition.clock.n_fetches)
        if not self._n_followed:
            self._first_defined_ns = now
        if definition.trains:
            self.passes = None
        self._use(definition)  # last: from here on other threads go by it

    def start_over(self) -> bool:
        """Training begins in a run that was taken for one that does not train: nothing counts.

        False where that can't be now, since a window is being prepared; work will come again.
        """
        driver, passes = self.driver, self.passes
        assert passes is not None
        if driver is not None and driver.gi_running:  # type: ignore[attr-defined]
            return False
        self._forget(TrainingBegan(), passes)
        return True

    def _use(self, definition: Definition) -> None:
        # Imports torch, which is the script's to import first.
        from loaderdoctor.instrument.batches.properties import Shapes

        for loader in definition.train:
            loader.role, loader.in_background = "train", definition.tick != "fetch"
            loader.beside = loader is not definition.clock
            loader.shapes = loader.shapes or Shapes()
        self.definition = definition

    def join(self) -> bool:
        """Take loaders that many steps draw a batch from for part of the steps: whether there are.

        Only as the loop has settled, once: nothing was measured yet, and what is measured later
        keeps its definition.
        """
        definition = self.definition
        assert definition is not None
        ids = self.wall.joining.decide(self.n_steps)
        if ids:
            self.wall.leave_out(ids)
            self._use(definition.joined_by(x for x in self.registry.states if x.id in ids))
        return bool(ids)

    def follow(self, elsewhere: Elsewhere, now: int) -> bool:
        """Start over with this loader if training has left the one that feeds the step for it.

        Or end there, where it is late. Ranks would each decide for themselves.
        """
        definition = self.definition
        assert definition is not None
        if self.group or self.recording is not None or self._ended:
            return False
        since_s = (now - self._first_defined_ns) / NS_PER_S
        phase = self.wall.is_phase(elsewhere, self.n_steps, n_before=self._n_followed)
        if since_s > (1 if phase else OVERDUE) * self._follow_s:
            self._leave_unfollowed(definition.clock.id, elsewhere.site)
            return True
        if not phase:
            return False
        self._n_followed += 1
        self.note(
            LOADER_CHANGED,
            f"{definition.clock.id} fed the first {self.n_steps} steps, {elsewhere.site} those "
            "that followed: the figures are of these.",
        )
        self._passes_before = self.before_training
        self.passes = PassLog()
        self._forget(TrainingBegan(loader=elsewhere.site), self.passes)
        self.wall.longest_run_ns = elsewhere.ns
        return True

    def _leave_unfollowed(self, loader: str, other: str) -> None:
        """No step of the loader will come in time: windows end with what they have."""
        self.note(
            LOADER_CHANGED,
            f"Training went on with {other} after {self.n_steps} steps on {loader}, too late to "
            f"measure it as well: the figures are of {loader}. A larger budget measures {other}.",
        )
        self._close_driver()
        self._send_ended("stopped", 0)
        # The hooks stay until its next step, if it has one: this is called in one of them.
        for state in self.registry.states:
            state.leave()

    def _forget(self, why: TrainingBegan, passes: PassLog) -> None:
        self.send(why)
        self._close_driver()
        self.close_window()
        for state in self.registry.states:
            state.start_over()
        self.driver = self.definition = None
        self.wall = self._new_account()
        self.optimizer_marks = []
        self.boundaries = [b for b in self.boundaries if why.loader in (None, b.loader)]
        self.roles = RoleObserver(passes, patient=self.patient)

    # ------------------------------------------------------------ endings

    def stop(self) -> None:
        """End the script from here. Raises StopTraining."""
        self._send_ended("stopped", 0)
        self._close_driver()
        self.workers.stop()
        self.stopping = True
        exit_after_grace()
        raise StopTraining

    def detach(self) -> None:
        """Remove every hook and let the script run on unwatched.

        Epochs in which batches were substituted still end where the script expects it, and a loader
        that was handed over stays so: for them the hooks of `__iter__` and `__next__` stay.
        """
        self.live = False
        self.workers.stop()
        self.close_window()
        if self.passes is not None:
            self.passes.stop_looking()
        for loader in self.registry.states:
            loader.leave()
        self.hooks.remove(but_epochs=self.handed_over or not self.pristine)

    @property
    def handed_over(self) -> bool:
        """Whether passes of a loader are no longer torch's own, for good."""
        return any(x.handed is not None and x.handed.took_over for x in self.registry.states)

    @property
    def holds_loaders(self) -> bool:
        """Whether the loop may still read a handed-over loader, or a pass with substitutes."""
        feeds: list[Any] = [x.feed() for x in self.registry.states if x.feed is not None]
        return any(feed is not None and feed.tainted for feed in feeds) or any(
            x.handed is not None and x.handed.took_over and x.living() is not None
            for x in self.registry.states
        )

    def disable_in_fork(self) -> None:
        """In a forked child: no hook acts, and the connection stays the parent's."""
        self.live = self.stopping = False
        self.window.profiled = False
        self.channel.forget_in_fork()

    def script_over(
        self,
        how: Literal["script-ended", "script-failed", "interrupted"],
        exit_code: int,
        reason: str | None = None,
    ) -> None:
        """The script's last line ran, or it failed: an open window ends with what it has."""
        self._close_driver()
        no_loader = how == "script-ended" and not self.registry.states
        try:
            self._send_ended("no-loader" if no_loader else how, exit_code, reason)
        except Exception:  # the script has its exit code, whatever can't be told
            self.note("internal-error", traceback.format_exc())
        self.detach()
        for loader in self.registry.states:
            if loader.handed is not None:
                loader.handed.close()

    def _close_driver(self) -> None:
        driver = self.driver
        if driver is None or driver.gi_running:  # type: ignore[attr-defined]  # generators have it
            return
        try:
            driver.throw(ScriptOverError())
        except (StopIteration, ScriptOverError):
            return
        except Exception:
            self.note("internal-error", traceback.format_exc())

    def _send_ended(
        self,
        how: Literal["stopped", "script-ended", "script-failed", "no-loader", "interrupted"],
        exit_code: int,
        reason: str | None = None,
    ) -> None:
        if self._ended:
            return
        self._ended = True
        work = list(self.roles.work.values()) if self.definition is None else []
        self.send(
            Ended(
                how=how,
                exit_code=exit_code,
                n_steps=self.n_steps,
                reason=reason,
                boundaries=tuple(self.boundaries),
                loaders=self.registry.records(),
                wall=self.wall.record(self.n_steps) if self.definition is not None else None,
                before_training=self.passes.records() if self.passes is not None else (),
                read_stdin=self.read_stdin(),
                n_optimizer_steps=sum(w.n for w in work if w.optimizer is not None),
                n_batches=sum(x.n_fetches for x in self.registry.states) if work else 0,
            )
        )
