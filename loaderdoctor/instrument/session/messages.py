"""What the command says: heard while the loop steps, while it is paused, and by ranks in step.

Runs in the measuring process, on the training thread. The ranks of a job meet in collectives in
every step. If each of them paused where its own window ended, one could wait inside a collective
for another that waits for the command, for ever. So a rank never stands still: the loop steps on
between windows. Once the command has heard that every rank is ready it names a step to come, from
which all of them measure. Where collectives run on devices, a host is held back by its queue alone
and may go through dozens of steps before that message comes; so a rank that is ready waits for its
device in each step. Only to stop do all of them wait for one another, after the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter_ns

from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.wire.channel import ConnectionLostError
from loaderdoctor.instrument.wire.protocol import RENDEZVOUS, Begin, Ready, Stop, ToRun

POLL_NS = 50_000_000  # look for a Stop this often while steps run
WAIT_S = 0.1  # a wait for the connection, while the loop is paused
RENDEZVOUS_NS = 60_000_000_000  # a rank that hears nothing for so long stops alone
HEARTBEAT_NS = 200_000_000  # the command must know where the ranks are to let them stop together


class Messages:
    """Those that came and were not answered yet, and when the loop is to stop."""

    def __init__(self, session: Session) -> None:
        self.next_poll_ns = 0  # before that, `poll` has nothing to do but for a rank of several
        self._session = session
        self._inbox: list[ToRun] = []
        self._told_ns = 0
        self._stop_at: int | None = None  # steps after which all ranks meet to stop

    def poll(self, now: int) -> None:
        """While steps run: take a message, and stop if it says so (StopTraining)."""
        if self._stop_at is not None and self._session.n_steps >= self._stop_at:
            self._wait_to_stop()
        if now < self.next_poll_ns:
            return
        self.next_poll_ns = now + POLL_NS
        try:
            message = self._session.channel.receive(0.0)
        except ConnectionLostError:
            return
        if isinstance(message, Stop) and not message.to_end:
            self._prepare_to_stop(message)
        elif message is not None:
            self._inbox.append(message)

    def next(self) -> Generator[None, int, ToRun | None]:
        """The next one, however long it takes; None once the command is gone.

        The loop stands still meanwhile. A rank of several steps on.
        """
        if not self._session.group:
            return self._paused()
        self._told_ns = perf_counter_ns()
        while True:
            while self._inbox:
                message = self._inbox.pop(0)
                if not isinstance(message, Begin):  # of a window that could not be prepared here
                    return message
            if self._session.channel.lost:
                return None
            now = yield
            self.poll(now)
            self._tell(now)

    def hold(
        self,
        request_id: int,
        each_step: Callable[[], None],
        finish_device: Callable[[], None] | None,
    ) -> Generator[None, int, None]:
        """A rank steps on, ready for a window, to the step at which all ranks begin it.

        Or until the command says something else, or is gone. Meanwhile the device finishes what
        was queued before a step goes on: it needs its peers only for steps that are queued whole,
        and they go on.
        """
        session = self._session
        if finish_device is not None:
            finish_device()
        session.send(Ready(id=request_id, n_steps=session.n_steps))
        self._told_ns = perf_counter_ns()
        at_step: int | None = None
        while at_step is None or session.n_steps < at_step:
            if self._inbox:
                message = self._inbox[0]
                if not isinstance(message, Begin):
                    return
                self._inbox.pop(0)
                at_step = message.at_step if message.id == request_id else at_step
                continue
            if session.channel.lost:
                return
            if at_step is None and finish_device is not None:
                finish_device()
            now = yield
            self.poll(now)
            each_step()
            self._tell(now)

    def _tell(self, now: int) -> None:
        """How far the loop is, a few times a second."""
        if now - self._told_ns >= HEARTBEAT_NS:
            self._told_ns = now
            self._session.progress("stepping on")

    def _paused(self) -> ToRun | None:
        while not self._inbox:
            try:
                message = self._session.channel.receive(WAIT_S)
            except ConnectionLostError:
                return None
            if message is not None:
                return message
        return self._inbox.pop(0)

    def _prepare_to_stop(self, message: Stop) -> None:
        """Stop now, or after the steps it names. Raises StopTraining."""
        session = self._session
        if message.at_step is None:
            session.stop()
        elif session.n_steps > message.at_step:
            self._stop_at = None
            session.send(Ready(id=RENDEZVOUS, n_steps=session.n_steps))
        elif session.n_steps == message.at_step:
            self._wait_to_stop()
        else:
            self._stop_at = message.at_step

    def _wait_to_stop(self) -> None:
        """All ranks meet after this step: stand still until told to stop, or where to meet instead.

        The one place where a rank waits. A peer that has gone further than this step may need us to
        get on, so the command names another step if it does not hear from all of them soon. Raises
        StopTraining.
        """
        session = self._session
        self._stop_at = None
        session.send(Ready(id=RENDEZVOUS, n_steps=session.n_steps))
        end = perf_counter_ns() + RENDEZVOUS_NS
        while perf_counter_ns() < end:
            try:
                message = session.channel.receive(0.1)
            except ConnectionLostError:
                break
            if isinstance(message, Stop) and message.at_step != session.n_steps:
                if not message.to_end:
                    self._prepare_to_stop(message)
                return
        session.stop()
