"""All ranks of a job as one run: every window is measured on all of them in the same steps.

The ranks' loops never pause (see `session.messages`): a window is prepared on every rank, and
begins with the same step once the last one is ready. So all of them are in the same mode while any
of them measures, and no rank waits in a collective for one that stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import ClassVar

import msgspec

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command import POLITE_S, MeasuringProcess
from loaderdoctor.instrument.command.endings import lost_a_peer
from loaderdoctor.instrument.command.launch_config import environment_with
from loaderdoctor.instrument.command.launched_run import (
    DRAIN_S,
    LaunchedRun,
    OnEvent,
    Start,
    time_for,
)
from loaderdoctor.instrument.command.rank_connection import (
    RankConnection,
    beginning,
    missing,
    one_of_several,
    rendezvous,
)
from loaderdoctor.instrument.command.script_run import ScriptRun
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

# Ranks in step become warm within some steps of each other. One that is silent this much longer
# than the first trains without a loader, or not under this command.
MISSING_S = 20.0
RENDEZVOUS_ATTEMPTS = 5
# The rank that fails leaves its peers in a collective, whose error may arrive before its own.
CAUSE_S = 3.0
SPAWNER_S = 1.0  # a process that only waits for others answers at once


def start_ranks(torchrun: Sequence[str]) -> Start:
    """Starts torch's launcher with these options of it, which starts the ranks."""

    def start(launch_config: LaunchConfig, stdout: int | None) -> MeasuringProcess:
        return MeasuringProcess(
            environment=environment_with(launch_config),
            stdout=stdout,
            module="entry.launcher",
            arguments=torchrun,
        )

    return start


@dataclass(slots=True, eq=False)
class RankGroup(LaunchedRun):
    """One measured run of a job.

    `observed` is the lowest rank's loop, `n_steps` the most of any rank. A rank that stays silent
    in `wait_observed` is left out, and a note says so.
    """

    connect_s: ClassVar[float] = 180.0  # the launcher imports torch, may wait for other machines
    of_ranks: ClassVar[bool] = True
    connections: list[RankConnection] = field(default_factory=list)
    # Where the script starts the ranks: the process that does, to be told of the stop.
    spawners: list[RankConnection] = field(default_factory=list)
    _first_warm_s: float | None = None
    _silent_since_s: float | None = None
    _failing_since_s: float | None = None

    @staticmethod
    def of_spawned(script_run: ScriptRun) -> RankGroup:
        """Go on with a script that turned out to start its ranks; `script_run` lets go of it."""
        process, listener, callers = script_run.give_up()
        if any(one.alone for one in callers):
            listener.close()  # who calls from now on runs unwatched
            note = one_of_several(script_run.target.label)
            if note not in script_run.notes:
                script_run.notes.append(note)
        return RankGroup(
            script_run.target,
            script_run.run_dir,
            script_run.options,
            lambda launch_config, stdout: process,
            notes=script_run.notes,
            connections=[one for one in callers if one.hello is not None],
            spawners=[one for one in callers if one.hello is None],
            _listener=listener,
        )

    # ------------------------------------------------------------ use

    @property
    def measured(self) -> list[RankConnection]:
        """Ranks that were observed, in order of rank."""
        return sorted((m for m in self.connections if m.observed is not None), key=lambda m: m.rank)

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        observed = LaunchedRun.wait_observed(self, timeout_s, on_event)
        self.notes.extend(missing(self.measured, self._n_ranks()))
        return observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure windows one after the other, each on all ranks together.

        Returns the lowest rank's, failed where it failed on any; every rank's are in its
        connection.
        Fewer come back where the script ends first. Raises RunError as a ScriptRun does.
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

    def remember(self, before: RankGroup, *, but: Sequence[int]) -> None:
        """Keep what these ranks measured in an earlier run of the script, but for some windows."""
        done = {m.rank: m.done for m in before.connections}
        for one in self.connections:
            earlier = done.get(one.rank, {})
            one.done = {n: w for n, w in earlier.items() if n not in but} | one.done

    # ------------------------------------------------------------ windows

    def _measure(self, request: WindowRequest, timeout_s: float) -> WindowDone | None:
        ranks = [m for m in self.measured if not m.over]
        for connection in ranks:
            connection.pipe.send(Measure(requests=(_for_rank(request, connection),)))
        self._await(lambda: all(m.answered(request.id) for m in ranks), request.id, timeout_s)
        begin = Begin(id=request.id, at_step=beginning(ranks))
        for connection in ranks:
            if request.id in connection.ready:
                connection.pipe.send(begin)
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
        in_time = self._wait(
            lambda: self.ended is not None or self._any_void() or reached(), timeout_s
        )
        self.check_observed()
        if in_time:
            return
        late = ", ".join(str(m.rank) for m in self.measured if window not in m.done)
        raise RunError(
            f"{self.target.label}: a window did not end on rank {late} within "
            f"{timeout_s:.0f} s; the loop hangs or its steps take longer than that."
        )

    def _any_void(self) -> bool:
        """Whether training began on any rank: it does on all of them, if not at one moment."""
        self.void = next((m.void for m in self.connections if m.void is not None), None)
        if self.void is not None:
            self.observed = self._first_warm_s = None
            for m in self.connections:
                if m.observed is not None and not m.observed.trains:
                    m.observed = None
        return self.void is not None

    def _send(self, message: Stop) -> None:
        if not message.to_end and message.at_step is None:
            # First of all: once its ranks are gone the script would go on behind them.
            for one in self.spawners:
                one.pipe.send(message)
            self._wait(lambda: all(x.stands_by() for x in self.spawners), SPAWNER_S)
        for connection in self.connections:
            connection.pipe.send(message)

    def _ask_to_stop(self) -> None:
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
        connections = [m.pipe.connection for m in self.connections if not m.pipe.lost]
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
                self._note_and_tell(connection, message)
        return took

    def _note_and_tell(self, connection: RankConnection, message: FromRun) -> None:
        self.n_steps = max(self.n_steps, connection.n_steps)
        if isinstance(message, Note):
            known = {(n.kind, n.text.partition(": ")[2]) for n in self.notes}
            if (message.kind, message.text) not in known:
                whose = "" if connection.alone else f"rank {connection.rank}: "
                self.notes.append(Note(kind=message.kind, text=f"{whose}{message.text}"))
        self._tell(message)

    def _look_for_end(self) -> None:
        """The job is over where a rank failed, all ranks have ended, or its process is gone."""
        if self.ended is not None:
            return
        ended = [m.ended for m in self.connections if m.ended is not None]
        bad = [e for e in ended if e.how in ("script-failed", "interrupted")]
        if bad and not self._stopped:
            left = [e for e in ended if e in bad or e.exit_code]  # by an error or by sys.exit
            own = next((e for e in left if not lost_a_peer(e)), None)
            now = time.monotonic()
            self._failing_since_s = self._failing_since_s or now
            told = all(m.over for m in self.connections)
            if own is not None or told or now > self._failing_since_s + CAUSE_S:
                self.ended = own or bad[0]
        elif self.connections and all(m.over for m in self.connections) and ended:
            self.ended = ended[0]
        if self.ended is not None or self._process is None:
            return
        silent = any(m.pipe.lost and m.ended is None for m in self.connections)
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
                n_steps=self.n_steps,
            )

    # ------------------------------------------------------------ of LaunchedRun

    def _warm(self) -> Observed | None:
        measured, now = self.measured, time.monotonic()
        if not measured:
            return None
        self.observed = measured[0].observed
        self._first_warm_s, self.void = self._first_warm_s or now, None
        given_up = self.ended is not None or now > self._first_warm_s + MISSING_S
        return self.observed if given_up or len(measured) == self._n_ranks() else None

    def _connected(self) -> bool:
        return bool(self.connections)

    def _no_answer(self, how: str) -> str:
        return (
            f"{self.target.label}: the ranks {how} before the script ran; see above for what "
            "their launcher says."
        )

    def _all_said(self) -> bool:
        return all(m.over for m in self.connections)

    def _drain(self) -> None:
        while self._take_all():
            pass
        self._look_for_end()
        if self._stopped and self.ended is not None and self.ended.how == "script-failed":
            self.ended = None  # by the stop: ranks may abort when their peers leave

    def _hang_up(self) -> None:
        for one in (*self.connections, *self.spawners):
            one.pipe.connection.close()


def _for_rank(request: WindowRequest, connection: RankConnection) -> WindowRequest:
    """A trace goes below the rank's own folder."""
    if request.trace_path is None or connection.hello is None:
        return request
    path = Path(connection.hello.run_dir) / Path(request.trace_path).name
    return msgspec.structs.replace(request, trace_path=str(path))
