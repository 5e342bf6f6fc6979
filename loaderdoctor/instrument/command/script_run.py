"""One run of the user's script that is asked for windows: a process, or a loop of this very one.

A process is sent requests, and what comes back is collected. Of a loop in this process, its thread
runs the session; another thread decides what to measure next, as the command does from its own
process, and the two speak by queues. It sleeps while windows are measured, so it takes no time from
them.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command import (
    POLITE_S,
    ConnectionListener,
    MeasuringProcess,
    MessagePipe,
)
from loaderdoctor.instrument.command.endings import NOT_BEGUN, advice, killed, without_loader
from loaderdoctor.instrument.command.launched_run import (
    DRAIN_S,
    Heard,
    LaunchedRun,
    OnEvent,
    time_for,
)
from loaderdoctor.instrument.command.rank_connection import RankConnection
from loaderdoctor.instrument.wire.channel import ConnectionLostError
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
    ToRun,
    WindowDone,
    WindowRequest,
)


class RanksSpawnedError(RunError):
    """The script's own processes train: see `RankGroup.of_spawned`."""


class NoDataLoaderError(RunError):
    """The script trains without a DataLoader; `seen` is what there is to say of its loop."""

    def __init__(self, text: str, seen: NoDataLoader) -> None:
        super().__init__(text)
        self.seen = seen


@dataclass(slots=True, eq=False)
class ScriptRun(LaunchedRun):
    """One measured run of the user's script.

    `wait_observed` raises RanksSpawnedError where the loop runs in processes that the script
    started: as ranks of one job, or with `takes_lone` several at once, each by itself, while the
    script's own process has no loop. NoDataLoaderError where it trains on batches that it makes
    itself. The listener stays open until the loop is warm, for ranks that the script starts.
    """

    connect_s: ClassVar[float] = 60.0  # the interpreter and our imports; torch is not among them
    of_ranks: ClassVar[bool] = False
    takes_lone: bool = False  # else children that are no ranks run unwatched
    _pipe: MessagePipe | None = None
    _callers: list[RankConnection] = field(default_factory=list)  # ranks, and who starts them
    _has_loop: bool = False  # in the script's own process, warm or not

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        observed = LaunchedRun.wait_observed(self, timeout_s, on_event)
        self._close_listener()
        return observed

    def give_up(self) -> tuple[MeasuringProcess, ConnectionListener, list[RankConnection]]:
        """The process, the open listener and who has called, for whoever goes on with them."""
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
            self.done.pop(request.id, None)  # of an earlier window that had the same number
        if self.ended is None:
            self._send(Measure(requests=tuple(map(with_absolute_path, requests))))
        limit_s = timeout_s if timeout_s is not None else time_for(requests)
        in_time = self._wait(lambda: self.settled(requests), limit_s)
        self.check_observed()
        done = self.windows(requests)
        if not in_time:
            if not done:
                raise RunError(
                    f"{self.target.label}: no window ended within {limit_s:.0f} s; the loop "
                    "hangs or its steps take longer than that."
                )
            text = f"not all ended within {limit_s:.0f} s"
            self.hear(Note(kind="windows-timed-out", text=text))
        if any(w.reason in (SCRIPT_ENDED, NOT_BEGUN) for w in done):
            self._wait(self._all_said, POLITE_S)
        return done

    # ------------------------------------------------------------ of LaunchedRun

    def _raise_if_unsuited(self) -> None:
        if self.no_dataloader is not None:
            text = without_loader(self.no_dataloader, self.target.label)
            raise NoDataLoaderError(text, self.no_dataloader)
        if self._rank_called():
            raise RanksSpawnedError(
                f"{self.target.label}: the script starts other processes that train; only "
                "`loaderdoctor diagnose` measures those."
            )

    def _connected(self) -> bool:
        return self._pipe is not None

    def _no_answer(self, how: str) -> str:
        return f"{self.target.label}: the measuring process {how} before it ran the script."

    def _pump(self, timeout_s: float) -> None:
        if self._pipe is None:
            self._pipe = self._listener.wait(timeout_s) if self._listener is not None else None
            return
        if self._take(self._pipe, timeout_s) or self.ended is not None:
            return
        process = self._process
        if process is None or process.exit_code is None:
            if self._pipe.lost:
                time.sleep(timeout_s)  # closed its end, still ending
            return
        end = time.monotonic() + DRAIN_S
        while self.ended is None and time.monotonic() < end and self._take(self._pipe):
            pass
        if self.ended is None:
            self._note_silent_end(process)

    def _take(self, pipe: MessagePipe, timeout_s: float = 0.0) -> bool:
        message = pipe.receive(timeout_s)
        if message is not None:
            self._has_loop = self._has_loop or isinstance(message, Progress)
            self.hear(message)
        return message is not None

    def _drain(self) -> None:
        while self._pipe is not None and self._take(self._pipe):
            pass

    def _send(self, message: Measure | Stop) -> None:
        if self._pipe is not None:
            self._pipe.send(message)

    def _ask_to_stop(self) -> None:
        self._stopped = True
        self._send(Stop())

    def _hang_up(self) -> None:
        if self._pipe is not None:
            self._pipe.connection.close()

    def _close_listener(self) -> None:
        LaunchedRun._close_listener(self)
        while self._callers:
            self._callers.pop().pipe.connection.close()  # they run on unwatched

    # ------------------------------------------------------------

    def _note_silent_end(self, process: MeasuringProcess) -> None:
        """It left without a word: os._exit in the script, or a signal."""
        name = process.killed_by
        self.ended = Ended(
            how="script-failed" if name else "script-ended",
            exit_code=process.exit_code or 0,
            n_steps=self.n_steps,
            reason=killed(name) if name else None,
        )
        if name:
            text = f"The script was {self.ended.reason}.{advice(self.ended)}"
            self.notes.append(Note(kind="script-killed", text=text))

    def _rank_called(self) -> bool:
        """Whether processes that the script started train in its place.

        A single one that is no rank does not count: the script's own loop may follow (a student's,
        after its teacher's), and is the one that was asked about. Nor do several, once that loop
        has begun.
        """
        if self._listener is None:
            return False
        while (caller := self._listener.wait(0.0)) is not None:
            self._callers.append(RankConnection(caller))
        for one in self._callers:
            one.take()
            while one.alone and one.take() is not None:
                pass  # its end may lie behind its loop
        self._let_go([one for one in self._callers if one.alone and one.over])
        alone = [one for one in self._callers if one.alone]
        ranks = any(one.hello is not None and not one.alone for one in self._callers)
        if ranks or not self.takes_lone:
            self._let_go(alone)
            return ranks
        if len(alone) < 2 or self._has_loop:
            return False
        first = alone[0]
        self._let_go([one for one in self._callers if one is not first and not one.is_spawner])
        self.notes += [note for note in first.notes if note not in self.notes]
        return True

    def _let_go(self, callers: Sequence[RankConnection]) -> None:
        """They run on unwatched."""
        for one in callers:
            one.pipe.connection.close()
        self._callers = [one for one in self._callers if one not in callers]


def with_absolute_path(request: WindowRequest) -> WindowRequest:
    """The script may change its folder: a trace goes where the command means."""
    if request.trace_path is None:
        return request
    return msgspec.structs.replace(request, trace_path=str(Path(request.trace_path).resolve()))


TOO_SHORT = (
    "the loop ended before enough training steps were seen (about 16). Give it more batches, or "
    "keep watching over several epochs: `with loaderdoctor.watching() as watched:`."
)
NO_LOADER = "no torch DataLoader was iterated, so there is no loader to measure."


class LocalLink:
    """The session's end. Nothing is encoded: messages are frozen values."""

    n_above = 0  # the loop is the run

    def __init__(self, script_run: InProcessRun) -> None:
        self._script_run = script_run
        self.lost = False

    def send(self, message: FromRun) -> None:
        if not self.lost:
            self._script_run.from_loop.put(message)

    def receive(self, timeout_s: float) -> ToRun | None:
        if self.lost:
            raise ConnectionLostError("nobody decides any more")
        try:
            if timeout_s <= 0.0:
                return self._script_run.to_loop.get_nowait()
            return self._script_run.to_loop.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def forget_in_fork(self) -> None:
        """In a forked child: the deciding thread does not exist there."""
        self.lost = True


@dataclass(slots=True, eq=False)
class InProcessRun(Heard):
    """The deciding thread's end; its waits end when the loop is over (`Ended`)."""

    to_loop: queue.SimpleQueue[ToRun] = field(default_factory=queue.SimpleQueue)
    from_loop: queue.SimpleQueue[FromRun] = field(default_factory=queue.SimpleQueue)

    def wait_observed(self) -> Observed:
        while self.observed is None:
            if self.ended is not None:
                raise RunError(NO_LOADER if self.ended.how == "no-loader" else TOO_SHORT)
            self._take(None)
        return self.observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure windows back to back; fewer come back where the loop ends first."""
        if requests and self.ended is None:
            self.to_loop.put(Measure(requests=tuple(requests)))
        while not self.settled(requests):
            self._take(on_event)
        self.check_observed()
        return self.windows(requests)

    def stop(self, to_end: bool = True) -> None:
        """Take the hooks out; the loop itself is never stopped from here."""
        self.to_loop.put(Stop(to_end=True))

    def finish(self) -> None:
        """Take what the session said until its last message."""
        while self.ended is None:
            self._take(None)

    def _take(self, on_event: OnEvent | None) -> None:
        message = self.from_loop.get()
        self.hear(message)
        if isinstance(message, Note) and message.kind == "internal-error":
            raise RunError(
                f"measuring failed inside loaderdoctor; the loop ran on unwatched.\n{message.text}"
            )
        if on_event is not None:
            on_event(message)
