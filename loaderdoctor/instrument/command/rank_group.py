"""A bench over all ranks of a job: every window is measured on all of them in the same steps.

The command's side, without torch. The ranks' loops never pause (see `ranks`): a window is prepared
on every rank, and begins with the same step once the last one is ready. So all of them are in the
same mode while any of them measures, and no rank waits in a collective for one that stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType

import msgspec

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.endings import nothing_measured, raise_if_broken
from loaderdoctor.instrument.command.launch_config import launch_config_for
from loaderdoctor.instrument.command.listener import ConnectionListener
from loaderdoctor.instrument.command.measuring_process import POLITE_S, MeasuringProcess
from loaderdoctor.instrument.command.rank_connection import (
    RankConnection,
    beginning,
    missing,
    rendezvous,
)
from loaderdoctor.instrument.command.script_run import DRAIN_S, POLL_S, OnEvent, ScriptRun, time_for
from loaderdoctor.instrument.command.target import LaunchOptions, Target
from loaderdoctor.instrument.system.signals import Signals
from loaderdoctor.instrument.wire.channel import LaunchConfig
from loaderdoctor.instrument.wire.protocol import (
    RENDEZVOUS,
    SCRIPT_ENDED,
    Begin,
    Ended,
    FromRun,
    Measure,
    Note,
    Observed,
    Stop,
    WindowDone,
    WindowRequest,
)

CONNECT_S = 180.0  # the launcher imports torch, and may wait for other machines
# Ranks in step become warm within some steps of each other. One that is silent this much longer
# than the first trains without a loader, or not under this command.
MISSING_S = 20.0
RENDEZVOUS_ATTEMPTS = 5
SPAWNER_S = 1.0  # a process that only waits for others answers at once

# Starts what will connect, given what to hand over and where stdout goes.
Start = Callable[[LaunchConfig, int | None], MeasuringProcess]


@dataclass(slots=True, eq=False)
class RankGroup:
    """One measured run of a job; a context manager that leaves no process of its own behind."""

    target: Target
    run_dir: Path
    start: Start
    options: LaunchOptions = field(default_factory=LaunchOptions)
    host: str | None = None  # listen there for ranks on other machines; None: this machine only
    observed: Observed | None = None
    ended: Ended | None = None
    notes: list[Note] = field(default_factory=list)
    connections: list[RankConnection] = field(default_factory=list)
    # Where the script starts the ranks: the process that does, to be told of the stop.
    spawners: list[RankConnection] = field(default_factory=list)
    _listener: ConnectionListener | None = None
    _process: MeasuringProcess | None = None
    _stopped: bool = False
    _silent_since_s: float | None = None
    _on_event: OnEvent | None = None
    _signals: Signals = field(default_factory=Signals)

    @staticmethod
    def of_spawned(script_run: ScriptRun) -> RankGroup:
        """Go on with a script that turned out to start its ranks; `bench` lets go of it."""
        process, listener, callers = script_run.give_up()
        return RankGroup(
            script_run.target,
            script_run.run_dir,
            lambda launch_config, stdout: process,
            script_run.options,
            notes=script_run.notes,
            connections=[one for one in callers if one.hello is not None],
            spawners=[one for one in callers if one.hello is None],
            _listener=listener,
        )

    def __enter__(self) -> RankGroup:
        """Start the job. Raises UsageError or RunError."""
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

    @property
    def measured(self) -> list[RankConnection]:
        """Ranks that were observed, in order of rank."""
        return sorted((m for m in self.connections if m.observed is not None), key=lambda m: m.rank)

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        """Wait until every rank's loop is warm; returns the lowest rank's.

        A rank that stays silent is left out, and a note says so. Raises RunError where no rank
        has a loop.
        """
        self._on_event = on_event
        end = None if timeout_s is None else time.monotonic() + timeout_s
        give_up_s: float | None = None
        while not (self.measured and len(self.measured) == self._n_ranks()):
            if self.ended is not None and not self.measured:
                raise nothing_measured(self.ended, self.target.label)
            now = time.monotonic()
            if self.measured and give_up_s is None:
                give_up_s = now + MISSING_S
            if self.ended is not None or (give_up_s is not None and now > give_up_s):
                break
            if end is not None and now > end:
                raise RunError(
                    f"{self.target.label}: no training step seen within {timeout_s:g} s. "
                    "Allow more time, or give the script arguments that reach the loop sooner."
                )
            raise_if_broken(self.notes, self.target.label)
            self._pump(POLL_S)
        self.notes.extend(missing(self.measured, self._n_ranks()))
        self.observed = self.measured[0].observed
        assert self.observed is not None
        return self.observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure windows one after the other, each on all ranks together.

        Returns the lowest rank's, failed where it failed on any; every rank's are in `members`.
        Fewer come back where the script ends first. Raises RunError as Bench does.
        """
        self._on_event = on_event
        measured: list[WindowDone] = []
        for request in requests:
            if self.ended is not None:
                break
            done = self._measure(request, timeout_s or time_for([request]))
            if done is None:
                break
            measured.append(done)
            if done.reason == SCRIPT_ENDED:
                self._wait(lambda: self.ended is not None, POLITE_S)
        return measured

    def stop(self, to_end: bool = False) -> None:
        """End the script on all ranks at one step; or let it run to its end, however long."""
        if to_end:
            self._send(Stop(to_end=True))
        else:
            self._stop_ranks()
            self._wait(lambda: all(m.over for m in self.connections), POLITE_S)
            self._end_process(POLITE_S)
        while self.ended is None or (self._process is not None and not self._process.wait(0.0)):
            self._pump(POLL_S)

    # ------------------------------------------------------------ windows

    def _measure(self, request: WindowRequest, timeout_s: float) -> WindowDone | None:
        ranks = [m for m in self.measured if not m.over]
        for connection in ranks:
            connection.send(Measure(requests=(_for_rank(request, connection),)))
        self._await(lambda: all(m.answered(request.id) for m in ranks), request.id, timeout_s)
        begin = Begin(id=request.id, at_step=beginning(ranks))
        for connection in ranks:
            if request.id in connection.ready:
                connection.send(begin)
        self._await(lambda: all(m.finished(request.id) for m in ranks), request.id, timeout_s)
        done = [(m.rank, m.done[request.id]) for m in ranks if request.id in m.done]
        if not done:
            return None
        for rank, window in done:
            if window.status in ("failed", "skipped"):
                reason = f"rank {rank}: {window.reason}"
                return msgspec.structs.replace(window, reason=reason)
        return done[0][1]

    def _await(self, reached: Callable[[], bool], window: int, timeout_s: float) -> None:
        """Until a window's stage is reached, or the job is over. Raises RunError."""
        if self._wait(lambda: self.ended is not None or reached(), timeout_s):
            return
        late = ", ".join(str(m.rank) for m in self.measured if window not in m.done)
        raise RunError(
            f"{self.target.label}: a window did not end on rank {late} within "
            f"{timeout_s:.0f} s; the loop hangs or its steps take longer than that."
        )

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not reached():
            raise_if_broken(self.notes, self.target.label)
            if time.monotonic() > end:
                return False
            self._pump(POLL_S)
        return True

    def _send(self, message: Measure | Stop) -> None:
        if isinstance(message, Stop) and not message.to_end and message.at_step is None:
            # First of all: once its ranks are gone the script would go on behind them.
            for one in self.spawners:
                one.send(message)
            self._wait(lambda: all(x.stands_by() for x in self.spawners), SPAWNER_S)
        for connection in self.connections:
            connection.send(message)

    def _stop_ranks(self) -> None:
        """Stop all ranks at one step. A job that has failed by itself says so, and goes alone."""
        if self.ended is None:
            self._stopped = True
            if self.measured:
                self._meet()
        if self.ended is None or self.ended.how not in ("script-failed", "interrupted"):
            self._send(Stop())

    def _meet(self) -> None:
        """Let all ranks wait after the same step, where no collective is under way.

        A rank may be past the step named before it hears of it, or held by one that waits there
        already: then another step is named. Gives up where a loop is silent for long (validation).
        """
        for attempt in range(RENDEZVOUS_ATTEMPTS):
            while self._take_all():
                pass
            alive = [m for m in self.measured if not m.over]
            for connection in alive:
                connection.ready.discard(RENDEZVOUS)
            at_step, patience_s = rendezvous(alive, attempt)
            self._send(Stop(at_step=at_step))
            self._wait(lambda a=alive: all(m.answered(RENDEZVOUS) for m in a), patience_s)  # type: ignore[misc]
            if all(m.over or (RENDEZVOUS in m.ready and m.n_steps == at_step) for m in alive):
                return

    # ------------------------------------------------------------ messages

    def _n_ranks(self) -> int:
        return max((m.hello.n_ranks for m in self.connections if m.hello is not None), default=1)

    def _pump(self, timeout_s: float) -> None:
        """Let callers in, take what was said, and notice endings."""
        assert self._listener is not None
        connections = [m.connection for m in self.connections if not m.lost]
        if len(self.connections) < self._n_ranks() or not self.connections:
            caller = self._listener.wait(0.0 if connections else timeout_s)
            if caller is not None:
                self.connections.append(RankConnection(caller))
                return
        if connections:
            wait(connections, timeout_s)
        elif self.connections:
            time.sleep(timeout_s)
        self._take_all()
        self._look_for_end()

    def _take_all(self) -> bool:
        """Take one message of each rank; whether there was any."""
        took = False
        for connection in self.connections:
            message = connection.take()
            if message is not None:
                took = True
                self._receive(connection, message)
        return took

    def _receive(self, connection: RankConnection, message: FromRun) -> None:
        if isinstance(message, Note):
            known = {(n.kind, n.text.partition(": ")[2]) for n in self.notes}
            if (message.kind, message.text) not in known:
                self.notes.append(
                    Note(kind=message.kind, text=f"rank {connection.rank}: {message.text}")
                )
        if self._on_event is not None:
            self._on_event(message)

    def _look_for_end(self) -> None:
        """The job is over where a rank failed, all ranks have ended, or its process is gone."""
        if self.ended is not None:
            return
        ended = [m.ended for m in self.connections if m.ended is not None]
        bad = [e for e in ended if e.how in ("script-failed", "interrupted")]
        if bad and not self._stopped:
            self.ended = bad[0]
        elif self.connections and all(m.over for m in self.connections) and ended:
            self.ended = ended[0]
        if self.ended is not None or self._process is None:
            return
        silent = any(m.lost and m.ended is None for m in self.connections)
        if not silent and self._process.exit_code is None:
            return
        # A rank left without a word (os._exit in the script, or a signal); its peers follow or
        # wait for it in vain.
        now = time.monotonic()
        self._silent_since_s = self._silent_since_s or now
        if all(m.over for m in self.connections) or now > self._silent_since_s + DRAIN_S:
            code = self._process.exit_code
            self.ended = Ended(
                how="script-failed" if code != 0 else "script-ended",
                exit_code=1 if code is None else code,
                n_steps=max((m.n_steps for m in self.connections), default=0),
            )

    # ------------------------------------------------------------ start and end

    def _start(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._listener = self._listener or ConnectionListener(self.host)
        launch_config = launch_config_for(
            self.target, self.options, self._listener, self.run_dir, group=True
        )
        with self.options.open_stdout() as stdout:
            self._process = self.start(launch_config, stdout)
        end = time.monotonic() + CONNECT_S
        while not self.connections:
            gone = self._process.exit_code is not None
            if gone or time.monotonic() > end:
                raise RunError(
                    f"{self.target.label}: the ranks {'ended' if gone else 'did not answer'} "
                    "before the script ran; see above for what their launcher says."
                )
            self._pump(POLL_S)

    def _end_process(self, polite_s: float) -> None:
        process = self._process
        if process is None:
            return
        process.end(polite_s=polite_s)
        while self._take_all():
            pass
        self._look_for_end()
        if self.ended is None or (self._stopped and self.ended.how == "script-failed"):
            code = process.exit_code
            self.ended = Ended(
                how="stopped" if self._stopped else "interrupted",
                exit_code=code if code is not None else 1,
                n_steps=max((m.n_steps for m in self.connections), default=0),
            )

    def _close(self) -> None:
        process = self._process
        try:
            if process is not None and process.exit_code is None:
                with suppress(RunError):
                    self._stop_ranks()
                polite_s = POLITE_S if self.measured else 1.0
                # Where the job has ended by itself its launcher is on its way out.
                self._end_process(POLITE_S if self.ended is not None else polite_s)
        finally:
            for connection in (*self.connections, *self.spawners):
                connection.connection.close()
            if self._listener is not None:
                self._listener.close()
            self._signals.release()


def _for_rank(request: WindowRequest, connection: RankConnection) -> WindowRequest:
    """A trace goes below the rank's own folder."""
    if request.trace_path is None or connection.hello is None:
        return request
    path = Path(connection.hello.run_dir) / Path(request.trace_path).name
    return msgspec.structs.replace(request, trace_path=str(path))
