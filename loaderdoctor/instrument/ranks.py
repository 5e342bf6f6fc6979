"""One rank of several: never stands still, so that its peers never wait for it in vain.

Runs in the measuring process. The ranks of a job meet in collectives in every step. If each of
them paused where its own window ended, one could wait inside a collective for another that waits
for the command, for ever. So the loop steps on between windows, and windows begin when the
command has heard that every rank is ready.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from loaderdoctor.instrument.channel import Handover, ToChild
from loaderdoctor.instrument.protocol import Begin, Hello, Ready

if TYPE_CHECKING:
    from loaderdoctor.instrument.session import Session

HEARTBEAT_NS = 200_000_000  # the command must know where the ranks are to let them stop together


def place() -> tuple[int, int] | None:
    """Rank and number of ranks as the launcher set them for this process; None without several."""
    rank, n_ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (rank.isdigit() and n_ranks.isdigit()) or int(n_ranks) < 2:
        return None
    return int(rank), int(n_ranks)


def hello(handover: Handover) -> Hello:
    """What this rank says first. Its folder is made here: on another machine in none shared."""
    rank, n_ranks = place() or (0, 1)
    return Hello(
        rank=rank,
        n_ranks=n_ranks,
        host=socket.gethostname(),
        run_dir=str(rank_dir(Path(handover.run_dir), rank)),
    )


def rank_dir(run_dir: Path, rank: int) -> Path:
    """Where a rank's traces and its workers' records go."""
    return run_dir / f"rank{rank}"


def hold(
    session: Session, request_id: int, each_step: Callable[[], None]
) -> Generator[None, int, None]:
    """Step on, ready for a window, until the command begins it, says something else, or is gone."""
    session.send(Ready(id=request_id, n_steps=session.n_steps))
    beat = _Heartbeat(session)
    while not session.inbox and not session.channel.lost:
        now = yield
        session.poll(now)
        each_step()
        beat.at(now)
    if session.inbox and isinstance(session.inbox[0], Begin):
        session.inbox.pop(0)


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


class _Heartbeat:
    """Tells the command how far the loop is, a few times a second."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last_ns = perf_counter_ns()

    def at(self, now: int) -> None:
        if now - self._last_ns >= HEARTBEAT_NS:
            self._last_ns = now
            self._session.progress("stepping on")
