"""The listening end of a run that is recorded to its end: hears every process of it, asks nothing.

The process that runs the script is not a child of this one, and is never ended from here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Final

import psutil

from loaderdoctor.instrument.command.launched_run import OnEvent
from loaderdoctor.instrument.command.measuring_process import ConnectionListener
from loaderdoctor.instrument.command.rank_connection import RankConnection
from loaderdoctor.instrument.wire.protocol import (
    Ended,
    FromRun,
    Note,
    Observed,
    Reported,
    Told,
    WindowDone,
    WindowRequest,
)

# A process that was started and does not call: its interpreter, and imports of ours.
CALL_S: Final = 120.0
# Others of the job, once one has ended: they end with it.
LINGER_S: Final = 10.0


@dataclass(slots=True, eq=False)
class RecordedRun:
    """All processes of one run; what they say comes out of `hear`.

    It is a `ScriptRunLike` whose windows were measured already.
    """

    listener: ConnectionListener
    pid: int  # of the process that the user started
    label: str
    connections: list[RankConnection] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)
    _first_over_s: float | None = None

    # ------------------------------------------------------------ while it runs

    def hear(self, timeout_s: float) -> Iterator[tuple[RankConnection, FromRun]]:
        """What is said within that time, with who says it; whoever calls is let in."""
        caller = self.listener.wait(0.0 if self.connections else timeout_s)
        while caller is not None:
            self.connections.append(RankConnection(caller))
            caller = self.listener.wait(0.0)
        open_ = [c.pipe.connection for c in self.connections if not c.pipe.lost]
        if open_:
            wait(open_, timeout_s)
        elif self.connections:
            time.sleep(timeout_s)
        for connection in self.connections:
            while (message := connection.take()) is not None:
                yield connection, message

    @property
    def over(self) -> bool:
        now = time.monotonic()
        if not self.connections:
            gone = not psutil.pid_exists(self.pid)
            return gone or now - self._began_s > CALL_S
        awaited = [c for c in self.connections if not c.is_spawner or c.tells_end]
        if all(c.over for c in awaited):
            return bool(awaited) or not psutil.pid_exists(self.pid)
        if not any(c.over for c in awaited):
            return False
        self._first_over_s = self._first_over_s or now
        return now - self._first_over_s > LINGER_S and not psutil.pid_exists(self.pid)

    def reported(self, exit_code: int) -> None:
        """Let go of whoever waits for the report."""
        for connection in self.connections:
            connection.pipe.send(Reported(exit_code=exit_code))

    def say(self, text: str) -> None:
        """Have the process of the lowest rank tell it."""
        for connection in sorted(self.connections, key=lambda c: c.rank)[:1]:
            connection.pipe.send(Told(text=text))

    def close(self) -> None:
        for connection in self.connections:
            connection.pipe.connection.close()
        self.listener.close()

    # ------------------------------------------------------------ what it has said

    @property
    def measured(self) -> list[RankConnection]:
        """Processes whose loop got warm, in order of rank."""
        return sorted((c for c in self.connections if c.observed is not None), key=lambda c: c.rank)

    @property
    def observed(self) -> Observed | None:
        """The loop of the lowest rank."""
        return next((c.observed for c in self.measured), None)

    @property
    def windows(self) -> list[WindowDone]:
        """That the lowest rank measured of its loop."""
        return next((list(c.done.values()) for c in self.measured), [])

    @property
    def n_ranks(self) -> int:
        return max([1, *(c.hello.n_ranks for c in self.connections if c.hello is not None)])

    @property
    def notes(self) -> list[Note]:
        """Of all processes, each once."""
        said: dict[tuple[str, str], Note] = {}
        for connection in self.connections:
            for note in connection.notes:
                text = note.text if connection.rank < 1 else f"rank {connection.rank}: {note.text}"
                said.setdefault((note.kind, note.text), Note(kind=note.kind, text=text))
        return list(said.values())

    @property
    def ended(self) -> Ended | None:
        """How the script ended; a process that left without a word was ended from outside."""
        ended = [c.ended for c in self.connections if c.ended is not None and not c.is_spawner]
        bad = [e for e in ended if e.how in ("script-failed", "interrupted")]
        of_loop = next((c.ended for c in self.measured if c.ended is not None), None)
        if bad:
            return bad[0]
        silent = [c for c in self.connections if c.pipe.lost and c.ended is None]
        if self.over and any(not c.is_spawner for c in silent):
            return Ended(
                how="script-failed",
                exit_code=1,
                n_steps=max((c.n_steps for c in self.connections), default=0),
                reason="it left without a word (os._exit, or a signal such as SIGKILL)",
            )
        return of_loop or next(iter(ended), None)

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Nothing: windows are measured by the run itself."""
        return []

    def stop(self, to_end: bool = True) -> None:
        """Nothing: the run goes to its end by itself."""
