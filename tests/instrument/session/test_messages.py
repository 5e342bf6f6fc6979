"""A rank that is ready: steps on, its device with it, to the step at which all ranks begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loaderdoctor.instrument.command import MessagePipe
from loaderdoctor.instrument.command.rank_connection import RankConnection, beginning
from loaderdoctor.instrument.session.messages import Messages
from loaderdoctor.instrument.wire.protocol import Begin, Measure, Progress, Ready

MEASURE = Measure(requests=())


class Arriving(Messages):
    """Messages that arrive in these steps, until the connection is lost."""

    def __init__(self, session: Any, arriving: dict[int, list[Any]], lost_at: int | None) -> None:
        super().__init__(session)
        self._arriving, self._lost_at = arriving, lost_at
        self._inbox = list(arriving.get(session.n_steps, ()))

    def poll(self, now: int) -> None:
        self._inbox += self._arriving.get(self._session.n_steps, ())
        self._session.channel.lost = self._session.n_steps == self._lost_at  # type: ignore[misc]


def held(arriving: dict[int, list[Any]], lost_at: int | None = None) -> tuple[int, int, list[Any]]:
    """Steps held, waits for the device, and messages left."""
    session = SimpleNamespace(n_steps=100, sent=[], channel=SimpleNamespace(lost=False))
    session.send = session.sent.append
    session.progress = lambda text: None
    messages = Arriving(session, arriving, lost_at)
    waits: list[int] = []
    steps = messages.hold(7, lambda: None, lambda: waits.append(session.n_steps))
    for _ in steps_of(steps, session):
        pass
    assert session.sent == [Ready(id=7, n_steps=100)]
    return session.n_steps - 100, len(waits), messages._inbox


def steps_of(steps: Any, session: Any) -> Any:
    try:
        next(steps)
        while True:
            session.n_steps += 1
            yield
            steps.send(0)
    except StopIteration:
        return


@pytest.mark.parametrize(
    ("arriving", "expected"),
    [
        # With the device until it is named, then without waiting for it.
        ({102: [Begin(id=7, at_step=110)]}, 10),
        # Past it already: at once.
        ({105: [Begin(id=7, at_step=103)]}, 5),
        # What was meant for a window before is no beginning.
        ({101: [Begin(id=6, at_step=90)], 104: [Begin(id=7, at_step=106)]}, 6),
    ],
)
def test_a_window_begins_with_the_step_named(arriving: dict[int, list[Any]], expected: int) -> None:
    n_steps, _, left = held(arriving)
    assert (n_steps, left) == (expected, [])


def test_the_device_is_waited_for_until_the_step_is_known() -> None:
    # At the start, before the step of each boundary, and no more once the message has come.
    assert held({103: [Begin(id=7, at_step=150)]})[:2] == (50, 4)


def test_another_message_or_its_end_lets_the_rank_go() -> None:
    assert held({104: [MEASURE]}) == (4, 5, [MEASURE])
    assert held({102: [Begin(id=7, at_step=120)], 104: [MEASURE]})[0] == 4
    assert held({}, lost_at=103)[0] == 3


def test_the_step_named_is_still_to_come_for_every_rank() -> None:
    connections = [RankConnection(MessagePipe(None)) for _ in range(2)]  # type: ignore[arg-type]
    for connection, n_steps in zip(connections, (200, 231), strict=True):
        connection.hear(Progress(text="", n_steps=n_steps))
    assert beginning(connections) > 231
    connections[1].pipe.lost = True
    assert 200 < beginning(connections) < 231
