"""The command's end of the connection to each rank of a group: what it has said so far.

`torchrun … -m loaderdoctor diagnose SCRIPT` starts one command for each rank. Rank 0's drives all
of them, so the others must learn where it listens, and its key (`publish`, `fetch`). torchrun's
store is there before any rank is, and only the job's own ranks are told where. The store's client
is torch, so another process asks it and the commands stay free of torch.

Of a run that is recorded to its end (`RecordedRun`) every process is heard and nothing asked: the
one that runs the script is not a child of this one, and is never ended from here.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Final

import psutil

from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.command import ConnectionListener, MessagePipe, bootstrap
from loaderdoctor.instrument.command.launched_run import Heard, MeasuredAlready
from loaderdoctor.instrument.wire.channel import (
    LaunchConfig,
    decode_launch_config,
    encode_launch_config,
)
from loaderdoctor.instrument.wire.protocol import (
    RENDEZVOUS,
    Beat,
    Ended,
    FromRun,
    Hello,
    Note,
    Observed,
    Progress,
    Ready,
    Reported,
    Spawned,
    Told,
    WindowDone,
)
from loaderdoctor.units import NS_PER_S

# A step to begin with or to meet after should be still to come when every rank has heard of it:
# messages are looked for every 50 ms.
BEGIN_LEAD_S = 0.1
BEGIN_LEAD_STEPS = 2
STOP_LEAD_S = 0.3
STOP_LEAD_STEPS = 3
STOP_LEAD_GROWTH = 4
RENDEZVOUS_S = 1.0  # patience beyond the time those steps take
RENDEZVOUS_MAX_S = 3.0  # so far ahead at most, at the pace of an undisturbed loop
TIMEOUT_S = 300.0  # ranks of other machines may start later


@dataclass(slots=True, eq=False)
class RankConnection(Heard):
    """One rank. Nothing here waits."""

    pipe: MessagePipe
    hello: Hello | None = None
    ready: set[int] = field(default_factory=set)
    is_spawner: bool = False  # of the ranks: a connection without a loop
    tells_end: bool = False  # of a spawner: when all its ranks have ended
    heard_s: float = 0.0  # when `n_steps` was heard (time.monotonic)
    step_s: float | None = None  # seconds a step lately

    @property
    def over(self) -> bool:
        """Whether nothing more will come from it."""
        return self.pipe.lost or self.ended is not None

    @property
    def rank(self) -> int:
        """Its rank; -1 before it has said so."""
        return self.hello.rank if self.hello is not None else -1

    @property
    def alone(self) -> bool:
        """Whether it is no rank, but a process that trains by itself."""
        return self.hello is not None and self.hello.alone

    def answered(self, request_id: int) -> bool:
        """Whether a window is prepared, over, or will never be."""
        return self.over or request_id in self.ready or request_id in self.done

    def finished(self, request_id: int) -> bool:
        """Whether a window is over or will never be."""
        return self.over or request_id in self.done

    def stands_by(self) -> bool:
        """Whether a process that starts ranks has heard of the stop, or is gone."""
        while self.take() is not None:
            pass
        return self.pipe.lost or RENDEZVOUS in self.ready

    def step_after(self, seconds: float) -> int:
        """The step its loop will have begun by then, at the pace of late."""
        if not self.step_s:
            return self.n_steps
        elapsed_s = time.monotonic() - self.heard_s + seconds
        return self.n_steps + math.ceil(elapsed_s / self.step_s)

    def take(self) -> FromRun | None:
        message = self.pipe.receive()
        if message is not None:
            self.hear(message)
        return message

    def hear(self, message: FromRun) -> None:
        before = self.n_steps
        Heard.hear(self, message)  # classes with slots have no super()
        if isinstance(message, Hello):
            self.hello = message
        elif isinstance(message, Observed):
            self.heard_s = time.monotonic()
            self.step_s = sum(message.step_ns) / len(message.step_ns) / NS_PER_S
        elif isinstance(message, Spawned):
            self.is_spawner, self.tells_end = True, message.ends
        elif isinstance(message, Beat):
            self.n_steps = message.n_steps
        elif isinstance(message, Ready):
            self.ready.add(message.id)
            self._at(message.n_steps, before)
        elif isinstance(message, Progress):
            self._at(message.n_steps, before)

    def _at(self, n_steps: int, before: int) -> None:
        now = time.monotonic()
        if before and n_steps > before:
            self.step_s = (now - self.heard_s) / (n_steps - before)
        self.n_steps, self.heard_s = n_steps, now


def beginning(connections: Sequence[RankConnection]) -> int:
    """The step from which ranks in step can measure a window: still to come for all of them."""
    alive = [m for m in connections if not m.over]
    return max((m.step_after(BEGIN_LEAD_S) for m in alive), default=0) + BEGIN_LEAD_STEPS


def rendezvous(connections: Sequence[RankConnection], attempt: int) -> tuple[int, float]:
    """After which step ranks in step could meet to stop, and how long to wait for that (s).

    Farther ahead with each attempt (0, 1, …): the pace of late says little about loops that were
    held up.
    """
    lead_s = STOP_LEAD_S * (attempt + 1)
    n_steps = min(
        STOP_LEAD_STEPS * STOP_LEAD_GROWTH**attempt,
        max(STOP_LEAD_STEPS, round(RENDEZVOUS_MAX_S / _pace_s(connections))),
    )
    at_step = max((m.step_after(lead_s) for m in connections), default=0) + n_steps
    step_s = max((m.step_s or 0.0 for m in connections), default=0.0)
    return at_step, RENDEZVOUS_S + lead_s + (n_steps + 1) * step_s


def missing(measured: Sequence[RankConnection], n_ranks: int) -> list[Note]:
    """What the report must say where not all ranks of the job were measured.

    The script's process group may be larger than what was started here.
    """
    environments = (m.observed.environment for m in measured if m.observed is not None)
    n_ranks = max([n_ranks, *(e.n_ranks or 0 for e in environments)])
    seen = {m.rank for m in measured}
    absent = [rank for rank in range(n_ranks) if rank not in seen]
    if not absent:
        return []
    text = (
        f"{len(absent)} of {n_ranks} ranks were not measured (rank "
        f"{', '.join(map(str, absent[:8]))}{', …' if len(absent) > 8 else ''}): no "
        "training step was seen there. The job's slowest rank may be among them."
    )
    return [Note(kind="ranks-missing", text=text)]


def one_of_several(label: str) -> Note:
    """What the report must say where one of several processes that train at once was measured."""
    return Note(
        kind="process-alone",
        text=(
            f"{label} trains in processes that it starts itself, each on its own: measured is the "
            "first that trained of several at once. Others ran next to it, unwatched, and took "
            "their part of the machine."
        ),
    )


def _pace_s(connections: Sequence[RankConnection]) -> float:
    """Seconds a step of the loop as it was first observed."""
    observed = next((m.observed for m in connections if m.observed is not None), None)
    steps = observed.step_ns if observed is not None else ()
    return max(1e-4, sum(steps) / len(steps) / NS_PER_S) if steps else 1.0


def check_launcher() -> None:
    """Raise UsageError where torchrun did not start the ranks: there is nowhere to meet."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    raise UsageError(
        "RANK and WORLD_SIZE say that this is one rank of several, but not under torchrun, whose "
        "store the ranks would meet in. Use `loaderdoctor diagnose --nproc-per-node N SCRIPT` or "
        "`torchrun … -m loaderdoctor diagnose SCRIPT`; for one rank alone, unset WORLD_SIZE."
    )


def publish(launch_config: LaunchConfig) -> None:
    """Tell the other ranks' commands. Raises RunError."""
    _ask("set", encode_launch_config(launch_config).encode())


def fetch() -> LaunchConfig:
    """What rank 0's command published; waits for it. Raises RunError."""
    return decode_launch_config(_ask("get", b""))


def same_machine() -> bool:
    """Whether all ranks of the job run on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _ask(what: str, text: bytes) -> bytes:
    try:
        done = subprocess.run(
            [sys.executable, "-c", bootstrap("entry.launcher", "ask_store"), what, str(TIMEOUT_S)],
            input=text,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_S + 60.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise RunError(
            "The ranks did not find one another through torchrun's store at "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}."
        ) from None
    return done.stdout


# A process that was started and does not call: its interpreter, and imports of ours.
CALL_S: Final = 120.0
# Others of the job, once one has ended: they end with it.
LINGER_S: Final = 10.0


@dataclass(slots=True, eq=False)
class RecordedRun(MeasuredAlready):
    """All processes of one run; what they say comes out of `hear`."""

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
