"""One rank of several: never stands still, so that its peers never wait for it in vain.

Runs in the measuring process. The ranks of a job meet in collectives in every step. If each of
them paused where its own window ended, one could wait inside a collective for another that waits
for the command, for ever. So the loop steps on between windows. Once the command has heard that
every rank is ready it names a step to come, from which all of them measure. Where collectives run
on devices, a host is held back by its queue alone and may go through dozens of steps before that
message comes; so a rank that is ready waits for its device in each step. Only to stop do all of
them wait for one another, after the same step.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from loaderdoctor.instrument.wire.channel import ConnectionLostError, LaunchConfig, ToChild
from loaderdoctor.instrument.wire.protocol import RENDEZVOUS, Begin, Hello, Ready, Stop

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.session import Session

RENDEZVOUS_NS = 60_000_000_000  # a rank that hears nothing for so long stops alone
HEARTBEAT_NS = 200_000_000  # the command must know where the ranks are to let them stop together


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Rank and number of ranks as the launcher set them for a process; None without several."""
    rank, n_ranks = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not (rank.isdigit() and n_ranks.isdigit()) or int(n_ranks) < 2:
        return None
    return int(rank), int(n_ranks)


def hello(launch_config: LaunchConfig) -> Hello:
    """What this rank says first. Its folder is made here: on another machine in none shared."""
    rank, n_ranks = place() or (0, 1)
    return Hello(
        rank=rank,
        n_ranks=n_ranks,
        host=socket.gethostname(),
        run_dir=str(rank_dir(Path(launch_config.run_dir), rank)),
    )


def rank_dir(run_dir: Path, rank: int) -> Path:
    """Where a rank's traces and its workers' records go."""
    return run_dir / f"rank{rank}"


def hold(
    session: Session,
    request_id: int,
    each_step: Callable[[], None],
    finish_device: Callable[[], None] | None,
) -> Generator[None, int, None]:
    """Step on, ready for a window, to the step at which all ranks begin it.

    Or until the command says something else, or is gone. Meanwhile the device finishes what was
    queued before a step goes on: it needs its peers only for steps that are queued whole, and
    they go on.
    """
    if finish_device is not None:
        finish_device()
    session.send(Ready(id=request_id, n_steps=session.n_steps))
    beat = _Heartbeat(session)
    at_step: int | None = None
    while at_step is None or session.n_steps < at_step:
        if session.inbox:
            message = session.inbox[0]
            if not isinstance(message, Begin):
                return
            session.inbox.pop(0)
            at_step = message.at_step if message.id == request_id else at_step
            continue
        if session.channel.lost:
            return
        if at_step is None and finish_device is not None:
            finish_device()
        now = yield
        session.poll(now)
        each_step()
        beat.at(now)


def next_message(session: Session) -> Generator[None, int, ToChild | None]:
    """The next message while the loop steps on; None once the command is gone."""
    beat = _Heartbeat(session)
    while True:
        while session.inbox:
            message = session.inbox.pop(0)
            if not isinstance(message, Begin):  # of a window that could not be prepared here
                return message
        if session.channel.lost:
            return None
        now = yield
        session.poll(now)
        beat.at(now)


def prepare_to_stop(session: Session, message: Stop) -> None:
    """Stop now, or after the steps it names. Raises StopTraining."""
    if message.at_step is None:
        session.stop()
    elif session.n_steps > message.at_step:
        session.stop_at = None
        session.send(Ready(id=RENDEZVOUS, n_steps=session.n_steps))
    elif session.n_steps == message.at_step:
        wait_to_stop(session)
    else:
        session.stop_at = message.at_step


def wait_to_stop(session: Session) -> None:
    """All ranks meet after this step: stand still until told to stop, or where to meet instead.

    The one place where a rank waits. A peer that has gone further than this step may need us to
    get on, so the command names another step if it does not hear from all of them soon. Raises
    StopTraining.
    """
    session.stop_at = None
    session.send(Ready(id=RENDEZVOUS, n_steps=session.n_steps))
    end = perf_counter_ns() + RENDEZVOUS_NS
    while perf_counter_ns() < end:
        try:
            message = session.channel.receive(0.1)
        except ConnectionLostError:
            break
        if isinstance(message, Stop) and message.at_step != session.n_steps:
            if not message.to_end:
                prepare_to_stop(session, message)
            return
    session.stop()


class _Heartbeat:
    """Tells the command how far the loop is, a few times a second."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last_ns = perf_counter_ns()

    def at(self, now: int) -> None:
        if now - self._last_ns >= HEARTBEAT_NS:
            self._last_ns = now
            self._session.progress("stepping on")
