"""The wait for the interpreter is short for looks alone, and the script's again after them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from loaderdoctor.instrument import system
from loaderdoctor.instrument.system import SOON_BESIDE_ANY_S, SOON_S, ask_as_usual, ask_soon

THEIRS_S = 0.004


@pytest.fixture(autouse=True)
def theirs() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(THEIRS_S)
    yield
    ask_as_usual()
    sys.setswitchinterval(before)


def is_soon() -> bool:
    return sys.getswitchinterval() == pytest.approx(SOON_S)


def test_it_is_short_while_one_thread_is_looked_at_and_the_scripts_own_afterwards() -> None:
    ask_soon()
    ask_soon()
    assert is_soon()
    ask_as_usual()
    ask_as_usual()
    assert sys.getswitchinterval() == pytest.approx(THEIRS_S)


def test_it_is_short_also_where_no_process_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_forgets_in_children", False)
    monkeypatch.delattr(os, "register_at_fork")  # as on Windows
    assert ask_soon()
    assert is_soon()


def test_beside_threads_of_the_script_it_stays_theirs() -> None:
    done = threading.Event()
    ask_soon()
    thread = threading.Thread(target=done.wait)
    thread.start()
    ask_soon()
    beside = sys.getswitchinterval()
    done.set()
    thread.join()
    assert beside == pytest.approx(THEIRS_S)
    ask_soon()
    assert is_soon()


def test_threads_that_send_for_queues_are_looked_past_where_asked_for() -> None:
    queue: multiprocessing.Queue[int] = multiprocessing.Queue()
    queue.put(1)  # starts its thread
    try:
        assert not ask_soon()
        assert sys.getswitchinterval() == pytest.approx(THEIRS_S)
        assert ask_soon(beside_queues=True)
        assert is_soon()
        assert queue.get(timeout=30) == 1
    finally:
        queue.close()
        queue.join_thread()


def test_beside_threads_that_may_compute_turns_are_longer_than_alone() -> None:
    done = threading.Event()
    ask_soon(beside_any=True)
    assert is_soon()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert ask_soon(beside_any=True)
    beside = sys.getswitchinterval()
    done.set()
    thread.join()
    assert beside == pytest.approx(SOON_BESIDE_ANY_S)
    ask_as_usual()
    assert sys.getswitchinterval() == pytest.approx(THEIRS_S)


def test_what_the_script_sets_meanwhile_stays() -> None:
    ask_soon()
    sys.setswitchinterval(0.002)
    ask_as_usual()
    assert sys.getswitchinterval() == pytest.approx(0.002)


def test_children_begin_with_what_the_script_had() -> None:
    ask_soon()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(sys.getswitchinterval()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(reader, 100)) == pytest.approx(THEIRS_S)
    os.close(reader)
    os.close(writer)
    assert is_soon()
