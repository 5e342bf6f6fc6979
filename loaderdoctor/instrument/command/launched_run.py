"""What all measured runs have in common: what a loop has said, and the life of its process.

No torch here. Every wait polls, so Ctrl-C works; every wait has an end. What the script prints
goes straight to the terminal, its traceback and exit code are its own.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from loaderdoctor.errors import LoaderdoctorError, RunError
from loaderdoctor.instrument.command import POLITE_S, ConnectionListener, MeasuringProcess
from loaderdoctor.instrument.command.endings import nothing_measured, raise_if_broken
from loaderdoctor.instrument.command.launch_config import (
    LaunchOptions,
    Target,
    environment_with,
    launch_config_for,
)
from loaderdoctor.instrument.system.processes import Signals
from loaderdoctor.instrument.wire.channel import LaunchConfig
from loaderdoctor.instrument.wire.protocol import (
    LOADER_CHANGED,
    Ended,
    FromRun,
    NoDataLoader,
    Note,
    Observed,
    Progress,
    Stop,
    TrainingBegan,
    WindowDone,
    WindowRequest,
)

POLL_S = 0.1
DRAIN_S = 2.0  # messages still under way after the process ended
BEFORE_LOOP_S = 1.0  # patience with a script that has no loop yet, and does not hear Stop
# For a request without a limit, and room for drop, warm-up and validation between.
DEFAULT_WINDOW_S = 600.0
WINDOW_SLACK_FACTOR = 3.0
WINDOW_SLACK_S = 120.0

Run = TypeVar("Run", bound="LaunchedRun")
OnEvent = Callable[[FromRun], None]
# Starts what will connect, given what it is told and where its stdout goes.
Start = Callable[[LaunchConfig, int | None], MeasuringProcess]


class TrainingBeganError(LoaderdoctorError):
    """Training began only now, or goes on with another loader: all that was measured is void.

    No RunError, which a measurement may survive: whoever drives the run waits for the loop again.
    """

    def __init__(self, why: str, *, followed: bool = False) -> None:
        """`followed`: it went on with another loader."""
        super().__init__(why)
        self.followed = followed


class ScriptRunLike(Protocol):
    """What driving commands need of a measured run; tests put a simulator here."""

    @property
    def observed(self) -> Observed | None:
        """What `wait_observed` returned, once it has."""

    @property
    def ended(self) -> Ended | None:
        """Set once the script is over, for whatever reason."""

    @property
    def notes(self) -> Sequence[Note]:
        """Notes so far."""

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure these windows in order; fewer come back where the script ends early.

        Raises TrainingBeganError where the loop observed turns out to be none of training.
        """

    def stop(self, to_end: bool = False) -> None:
        """End the script, or with `to_end` let it run to its end unwatched."""


class MeasuredAlready:
    """Of a run whose windows it measured by itself: nothing is asked of it, and it is not ended."""

    __slots__ = ()

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        return []

    def stop(self, to_end: bool = True) -> None:
        return None


class OneRun(ScriptRunLike, Protocol):
    """What a run needs that others may follow (ScriptRun, RankGroup)."""

    notes: list[Note]

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        """Wait until the loop is warm. Raises RunError."""

    def __enter__(self) -> OneRun: ...

    def __exit__(self, *raised: object) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Heard:
    """What a measured loop has said so far."""

    observed: Observed | None = None
    void: TrainingBegan | None = None  # why what was observed no longer holds
    ended: Ended | None = None
    notes: list[Note] = field(default_factory=list)
    no_dataloader: NoDataLoader | None = None
    done: dict[int, WindowDone] = field(default_factory=dict)  # by request id
    n_steps: int = 0  # of the loop

    def hear(self, message: FromRun) -> None:
        if isinstance(message, Observed):
            self.observed, self.n_steps = message, message.n_steps_so_far
            self.void = None
        elif isinstance(message, TrainingBegan):
            self.observed, self.void = None, message
        elif isinstance(message, WindowDone):
            self.done[message.id] = message
        elif isinstance(message, Note):
            if message.kind == LOADER_CHANGED:  # only the last one holds
                self.notes[:] = [note for note in self.notes if note.kind != LOADER_CHANGED]
            self.notes.append(message)
        elif isinstance(message, NoDataLoader):
            self.no_dataloader = message
        elif isinstance(message, Progress):
            self.n_steps = max(self.n_steps, message.n_steps)
        elif isinstance(message, Ended):
            self.ended = message

    def settled(self, requests: Sequence[WindowRequest]) -> bool:
        """Whether no more of these windows will come."""
        over = self.ended is not None or self.void is not None
        return over or all(one.id in self.done for one in requests)

    def check_observed(self) -> None:
        """Raises TrainingBeganError where what was observed no longer holds."""
        if self.void is not None:
            raise TrainingBeganError(_why_void(self.void), followed=self.void.loader is not None)

    def windows(self, requests: Sequence[WindowRequest]) -> list[WindowDone]:
        """Those of the windows that have come, in this order."""
        return [self.done[one.id] for one in requests if one.id in self.done]


def _why_void(message: TrainingBegan) -> str:
    if message.loader is None:
        return "training begins only now"
    return f"training goes on with another loader ({message.loader})"


def start_measuring(launch_config: LaunchConfig, stdout: int | None) -> MeasuringProcess:
    """Start one process that runs the script and measures it."""
    return MeasuringProcess(environment=environment_with(launch_config), stdout=stdout)


@dataclass(slots=True, eq=False)
class LaunchedRun(Heard, ABC):
    """A run that this command starts; a context manager that leaves no process behind."""

    target: Target
    run_dir: Path
    options: LaunchOptions = field(default_factory=LaunchOptions)
    start: Start = start_measuring
    host: str | None = None  # listen there for other machines' processes; None: this one's only
    _process: MeasuringProcess | None = None
    _listener: ConnectionListener | None = None
    _stopped: bool = False
    _on_event: OnEvent | None = None
    _signals: Signals = field(default_factory=Signals)

    connect_s: ClassVar[float]  # from the start to the first connection
    of_ranks: ClassVar[bool]

    def __enter__(self: Run) -> Run:
        """Start the script. Raises UsageError or RunError."""
        self.target.check()
        self._signals.catch()
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        """End what still runs, workers too."""
        self._close()

    # ------------------------------------------------------------ use

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        """Wait until the loop is warm. Raises RunError where that never happens."""
        self._on_event = on_event
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (observed := self._warm()) is None:
            if self.ended is not None:
                raise nothing_measured(self.ended, self.target.label)
            raise_if_broken(self.notes, self.target.label)
            self._raise_if_unsuited()
            if end is not None and time.monotonic() > end:
                raise RunError(
                    f"{self.target.label}: no training step seen within {timeout_s:g} s. "
                    "Allow more time, or give the script arguments that reach the loop sooner."
                )
            self._pump(POLL_S)
        return observed

    @abstractmethod
    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure these windows in order; fewer come back where the script ends early."""

    def stop(self, to_end: bool = False) -> None:
        """End the script now; or take the hooks out and wait for its own end, however long."""
        if to_end:
            self._send(Stop(to_end=True))
        else:
            self._ask_to_stop()
            self._wait(self._all_said, POLITE_S)
            self._end_process(POLITE_S)
        while self.ended is None or (self._process is not None and not self._process.wait(0.0)):
            self._pump(POLL_S)

    # ------------------------------------------------------------ each kind its own

    def _warm(self) -> Observed | None:
        """The loop that is warm; None where none is yet."""
        return self.observed

    def _raise_if_unsuited(self) -> None:
        """Raise RunError where this kind of run will see no loop become warm."""

    @abstractmethod
    def _connected(self) -> bool:
        """Whether the script is about to run."""

    @abstractmethod
    def _no_answer(self, how: str) -> str:
        """Why nothing connected: the process `ended` or `did not answer`."""

    @abstractmethod
    def _pump(self, timeout_s: float) -> None:
        """Let in who calls, hear what comes within that time, and notice endings."""

    @abstractmethod
    def _drain(self) -> None:
        """Hear what was said before the process ended."""

    @abstractmethod
    def _send(self, message: Stop) -> None: ...

    @abstractmethod
    def _ask_to_stop(self) -> None: ...

    def _all_said(self) -> bool:
        return self.ended is not None

    @abstractmethod
    def _hang_up(self) -> None:
        """Close all connections."""

    # ------------------------------------------------------------ start, wait, end

    def hear(self, message: FromRun) -> None:
        Heard.hear(self, message)  # classes with slots have no super()
        self._tell(message)

    def _tell(self, message: FromRun) -> None:
        if self._on_event is not None:
            self._on_event(message)

    def _start(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        listener = self._listener = self._listener or ConnectionListener(self.host)
        launch_config = launch_config_for(
            self.target, self.options, listener, self.run_dir, group=self.of_ranks
        )
        with self.options.open_stdout() as stdout:
            self._process = self.start(launch_config, stdout)
        end = time.monotonic() + self.connect_s
        while not self._connected():
            gone = self._process.exit_code is not None
            if gone or time.monotonic() > end:
                raise RunError(self._no_answer("ended" if gone else "did not answer"))
            self._pump(POLL_S)

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it is reached in time. Raises RunError where measuring broke down."""
        end = time.monotonic() + timeout_s
        while not reached():
            if not self._stopped:
                raise_if_broken(self.notes, self.target.label)
            if time.monotonic() > end:
                return False
            self._pump(POLL_S)
        return True

    def _end_process(self, polite_s: float) -> None:
        process = self._process
        if process is None:
            return
        process.end(polite_s=polite_s)
        self._drain()
        if self.ended is None:
            code = process.exit_code
            self.ended = Ended(
                how="stopped" if self._stopped else "interrupted",
                exit_code=code if code is not None else 1,
                n_steps=self.n_steps,
            )

    def _close(self) -> None:
        process = self._process
        try:
            if process is not None and process.exit_code is None:
                with suppress(RunError):
                    self._ask_to_stop()
                # A loop between steps hears Stop at its next one; a process whose script has
                # ended is on its way out.
                heard = self.observed is not None or self.ended is not None
                self._end_process(POLITE_S if heard else BEFORE_LOOP_S)
        finally:
            self._hang_up()
            self._close_listener()
            self._signals.release()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def time_for(requests: Sequence[WindowRequest]) -> float:
    """Seconds within which these windows end, or the loop hangs."""
    limits = (r.limit_s if r.limit_s is not None else DEFAULT_WINDOW_S for r in requests)
    return WINDOW_SLACK_FACTOR * sum(limits) + WINDOW_SLACK_S
