"""What a recorded run says to one that listens, but stands still for a while, or for good."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator

import pytest

from loaderdoctor.instrument.command import ConnectionListener, MessagePipe
from loaderdoctor.instrument.wire import channel as module
from loaderdoctor.instrument.wire.channel import Channel, ConnectionLostError, LaunchConfig
from loaderdoctor.instrument.wire.protocol import Ended, Note, Told

pytestmark = pytest.mark.skipif(os.name != "posix", reason="elsewhere it is waited for")

LONG = "y" * 4000
Ends = tuple[Channel, MessagePipe]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Of a recorded process, and of one that listens to it."""
    listener = ConnectionListener()
    config = LaunchConfig(
        address=listener.address,
        authkey=base64.b64encode(listener.authkey).decode(),
        run_dir="",
        kind="script",
        target="a.py",
        args=(),
        watch=True,
    )
    ours = Channel.open(config)
    theirs = listener.wait(10.0)
    assert theirs is not None
    yield ours, theirs
    ours.forget_in_fork()
    theirs.connection.close()
    listener.close()


def texts(pipe: MessagePipe) -> list[str]:
    """Of the notes that are there by now."""
    found = []
    while (message := pipe.receive(0.1)) is not None:
        assert isinstance(message, Note)
        found.append(message.text)
    return found


def test_what_is_said_to_one_that_stands_still_comes_whole_and_in_order_later(ends: Ends) -> None:
    ours, theirs = ends
    said = [f"{i} {LONG}" for i in range(400)]  # more than a socket takes
    for text in said:
        ours.send(Note(kind="kind", text=text))
    assert not ours.lost
    got = texts(theirs)
    assert got == said[: len(got)] and len(got) < len(said)
    while len(got) < len(said):
        assert ours.receive(0.0) is None  # looking for messages sends some more
        got += texts(theirs)
    assert got == said
    theirs.send(Told(text="heard"))
    assert ours.receive(5.0) == Told(text="heard")


def test_one_that_stands_still_for_too_long_is_gone(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 100_000)
    for i in range(400):
        ours.send(Note(kind="kind", text=f"{i} {LONG}"))
    assert ours.lost
    with pytest.raises(ConnectionLostError):
        ours.receive(0.0)
    assert texts(theirs)
    assert theirs.lost  # it does not wait for the rest of a message


def test_the_last_words_are_waited_for(ends: Ends) -> None:
    ours, theirs = ends
    heard: list[object] = []
    for i in range(100):
        ours.send(Note(kind="kind", text=f"{i} {LONG}"))

    def hear() -> None:
        while not heard or not isinstance(heard[-1], Ended):
            heard.append(theirs.receive(5.0))

    thread = threading.Thread(target=hear)
    thread.start()
    ours.send(Ended(how="script-ended", exit_code=0, n_steps=9, reason=LONG * 100))
    thread.join(20.0)
    assert len(heard) == 101
