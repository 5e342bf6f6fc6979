"""The command's end: starts the measuring process, sends requests, collects what comes back.

No torch here. Every wait polls, so Ctrl-C works; every wait has an end. What the script prints
goes straight to the terminal, its traceback and exit code are its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.endings import (
    NOT_BEGUN,
    advice,
    killed,
    nothing_measured,
    raise_if_broken,
    without_loader,
)
from loaderdoctor.instrument.command.launch_config import environment_with, launch_config_for
from loaderdoctor.instrument.command.listener import ConnectionListener
from loaderdoctor.instrument.command.measuring_process import POLITE_S, MeasuringProcess
from loaderdoctor.instrument.command.rank_connection import RankConnection
from loaderdoctor.instrument.command.target import LaunchOptions, Target
from loaderdoctor.instrument.system.signals import Signals
from loaderdoctor.instrument.wire.protocol import (
    SCRIPT_ENDED,
    Ended,
    FromRun,
    Measure,
    NoDataLoader,
    Note,
    Observed,
    Progress,
    Stop,
    WindowDone,
    WindowRequest,
)

__all__ = ["LaunchOptions", "RanksSpawnedError", "ScriptRun", "ScriptRunLike", "Target"]

CONNECT_S = 60.0  # the interpreter and our own imports; torch is not among them
POLL_S = 0.1
# For a request without a limit of its own, and room for drop, warm-up and validation between.
DEFAULT_WINDOW_S = 600.0
WINDOW_SLACK_FACTOR = 3.0
WINDOW_SLACK_S = 120.0
DRAIN_S = 2.0  # messages still in the pipe after the process ended

OnEvent = Callable[[FromRun], None]


class RanksSpawnedError(RunError):
    """The script's own processes train: see `group_bench.GroupBench.of_spawned`."""


class NoDataLoaderError(RunError):
    """The script trains without a DataLoader; `seen` is what there is to say of its loop."""

    def __init__(self, text: str, seen: NoDataLoader) -> None:
        super().__init__(text)
        self.seen = seen


class ScriptRunLike(Protocol):
    """What driving commands need of a bench; tests put a simulator here."""

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
        """Measure these windows in order; fewer come back where the script ends early."""

    def stop(self, to_end: bool = False) -> None:
        """End the script, or with `to_end` let it run to its end unwatched."""


@dataclass(slots=True, eq=False)
class ScriptRun:
    """One measured run of the user's script; a context manager that leaves no process behind."""

    target: Target
    run_dir: Path
    options: LaunchOptions = field(default_factory=LaunchOptions)
    observed: Observed | None = None
    ended: Ended | None = None
    notes: list[Note] = field(default_factory=list)
    no_dataloader: NoDataLoader | None = None
    n_steps: int = 0
    _process: MeasuringProcess | None = None
    _connection: Connection | None = None
    _listener: ConnectionListener | None = (
        None  # open until the loop is warm: for ranks the script starts
    )
    _callers: list[RankConnection] = field(default_factory=list)  # those, and who starts them
    _lost: bool = False
    _stopped: bool = False
    _on_event: OnEvent | None = None
    _done: dict[int, WindowDone] = field(default_factory=dict)
    _signals: Signals = field(default_factory=Signals)

    def __enter__(self) -> ScriptRun:
        """Start the script. Raises UsageError or RunError."""
        self.target.check()
        self._signals.catch()
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """End what still runs, workers too."""
        self._close()

    # ------------------------------------------------------------ use

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        """Wait until the loop is warm. Raises RunError where that never happens.

        RanksSpawnedError where the loop runs in processes that the script started, LoaderlessError
        where it trains on batches of its own making.
        """
        self._on_event = on_event
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self.observed is None:
            if self.ended is not None:
                raise nothing_measured(self.ended, self.target.label)
            raise_if_broken(self.notes, self.target.label)
            if self.no_dataloader is not None:
                text = without_loader(self.no_dataloader, self.target.label)
                raise NoDataLoaderError(text, self.no_dataloader)
            if end is not None and time.monotonic() > end:
                raise RunError(
                    f"{self.target.label}: no training step seen within {timeout_s:g} s. "
                    "Allow more time, or give the script arguments that reach the loop sooner."
                )
            if self._rank_called():
                raise RanksSpawnedError(
                    f"{self.target.label}: the script starts processes of its own that train; "
                    "only `loaderdoctor diagnose` measures those."
                )
            self._pump(POLL_S)
        self._close_listener()
        return self.observed

    def give_up(self) -> tuple[MeasuringProcess, ConnectionListener, list[RankConnection]]:
        """The process, the open doorway and who has called, for whoever goes on with them."""
        process, listener, callers = self._process, self._listener, self._callers
        assert process is not None
        assert listener is not None
        self._send(Stop(to_end=True))  # its own loop, if it ever has one, is not to be paused
        self._process, self._listener, self._callers = None, None, []
        self._signals.release()
        return process, listener, callers

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure windows back to back.

        Returns what was measured: fewer than asked where the script ends first (see `ended`).
        Raises RunError where nothing comes back within `timeout_s` (default: from the limits).
        """
        if not requests:
            return []
        self._on_event = on_event
        for request in requests:
            self._done.pop(request.id, None)  # of an earlier window that had the same number
        if self.ended is None:
            self._send(Measure(requests=tuple(map(with_absolute_path, requests))))
        limit_s = timeout_s if timeout_s is not None else time_for(requests)
        end = time.monotonic() + limit_s
        ids = [r.id for r in requests]
        while not all(i in self._done for i in ids) and self.ended is None:
            raise_if_broken(self.notes, self.target.label)
            if time.monotonic() > end:
                if not any(i in self._done for i in ids):
                    raise RunError(
                        f"{self.target.label}: no window ended within {limit_s:.0f} s; the loop "
                        "hangs or its steps take longer than that."
                    )
                note = Note(kind="windows-timed-out", text=f"not all ended within {limit_s:.0f} s")
                self._receive(note)
                break
            self._pump(POLL_S)
        done = [self._done[i] for i in ids if i in self._done]
        if any(w.reason in (SCRIPT_ENDED, NOT_BEGUN) for w in done):
            end = time.monotonic() + POLITE_S
            while self.ended is None and time.monotonic() < end:
                self._pump(POLL_S)
        return done

    def stop(self, to_end: bool = False) -> None:
        """End the script now; or take the hooks out and wait for its own end, however long."""
        self._send(Stop(to_end=to_end))
        if not to_end:
            self._stopped = True
            end = time.monotonic() + POLITE_S
            while self.ended is None and time.monotonic() < end:
                self._pump(POLL_S)
            self._end_process(POLITE_S)
        while self.ended is None or (self._process is not None and not self._process.wait(0.0)):
            self._pump(POLL_S)

    # ------------------------------------------------------------ messages

    def _send(self, message: Measure | Stop) -> None:
        if self._connection is None or self._lost:
            return
        try:
            self._connection.send_bytes(msgspec.json.encode(message))
        except (OSError, EOFError):
            self._lost = True

    def _pump(self, timeout_s: float) -> None:
        """Take the next message, or notice that the process is gone."""
        if self._take(timeout_s) or self.ended is not None:
            return
        process = self._process
        if process is None or process.exit_code is None:
            if self._lost:
                time.sleep(timeout_s)  # closed its end, still ending
            return
        end = time.monotonic() + DRAIN_S
        while self.ended is None and time.monotonic() < end and self._take(0.0):
            pass
        if self.ended is None:
            # It left without a word: os._exit in the script, or a signal.
            name = process.killed_by
            self.ended = Ended(
                how="script-failed" if name else "script-ended",
                exit_code=process.exit_code,
                n_steps=self.n_steps,
                reason=killed(name) if name else None,
            )
            if name:
                self._note_killed(self.ended)

    def _take(self, timeout_s: float) -> bool:
        connection = self._connection
        if connection is None or self._lost:
            return False
        try:
            if not connection.poll(timeout_s):
                return False
            data = connection.recv_bytes()
        except (OSError, EOFError):
            self._lost = True
            return False
        self._receive(msgspec.json.decode(data, type=FromRun))
        return True

    def _receive(self, message: FromRun) -> None:
        if isinstance(message, Observed):
            self.observed = message
            self.n_steps = message.n_steps_so_far
        elif isinstance(message, WindowDone):
            self._done[message.id] = message
        elif isinstance(message, Note):
            self.notes.append(message)
        elif isinstance(message, NoDataLoader):
            self.no_dataloader = message
        elif isinstance(message, Progress):
            self.n_steps = max(self.n_steps, message.n_steps)
        elif isinstance(message, Ended):
            self.ended = message
        if self._on_event is not None:
            self._on_event(message)

    def _note_killed(self, ended: Ended) -> None:
        text = f"The script was {ended.reason}.{advice(ended)}"
        self.notes.append(Note(kind="script-killed", text=text))

    # ------------------------------------------------------------ start and end

    def _start(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        listener = self._listener = ConnectionListener()
        launch_config = launch_config_for(self.target, self.options, listener, self.run_dir)
        with self.options.open_stdout() as stdout:
            self._process = MeasuringProcess(
                python=self.options.python,
                environment=environment_with(launch_config),
                stdout=stdout,
            )
        end = time.monotonic() + CONNECT_S
        while (connection := listener.wait()) is None:
            gone = self._process.exit_code is not None
            if gone or time.monotonic() > end:
                raise RunError(
                    f"{self.options.python}: the measuring process "
                    f"{'ended' if gone else 'did not answer'} before it ran "
                    f"{self.target.label}."
                )
        self._connection = connection

    def _end_process(self, polite_s: float) -> None:
        process = self._process
        if process is None:
            return
        process.end(polite_s=polite_s)
        while self._take(0.0):
            pass
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
                self._stopped = True
                self._send(Stop())
                # A loop between steps hears Stop at its next one; don't wait longer than that
                # usually takes.
                self._end_process(POLITE_S if self.observed is not None else 1.0)
        finally:
            if self._connection is not None:
                self._connection.close()
            self._close_listener()
            self._signals.release()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        while self._callers:
            self._callers.pop().connection.close()  # they run on unwatched

    def _rank_called(self) -> bool:
        """Whether a process that the script started trains as one rank of several."""
        if self._listener is None:
            return False
        while (caller := self._listener.wait(0.0)) is not None:
            self._callers.append(RankConnection(caller))
        for one in self._callers:
            one.take()
        return any(one.hello is not None for one in self._callers)


def with_absolute_path(request: WindowRequest) -> WindowRequest:
    """The script may change its folder: a trace goes where the command means."""
    if request.trace_path is None:
        return request
    return msgspec.structs.replace(request, trace_path=str(Path(request.trace_path).resolve()))


def time_for(requests: Sequence[WindowRequest]) -> float:
    limits = (r.limit_s if r.limit_s is not None else DEFAULT_WINDOW_S for r in requests)
    return WINDOW_SLACK_FACTOR * sum(limits) + WINDOW_SLACK_S
