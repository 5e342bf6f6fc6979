"""The workers of a trial's iterator: their death and their silence."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.instrument import trial
from loaderdoctor.instrument.trial import LoaderFeed, shut_down
from tests.instrument.watched import Numbers


def workers_of(dataset: Dataset[Any], *, timeout_s: float) -> tuple[LoaderFeed, Any]:
    iterator: Any = iter(DataLoader(dataset, batch_size=4, num_workers=2, timeout=timeout_s))
    return LoaderFeed(iterator, timeout_s), iterator


def all_of(feed: LoaderFeed) -> None:
    for _ in range(100):
        feed.next()


class Slow(Numbers):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.2)
        return super().__getitem__(index)


def test_a_killed_worker_is_no_error_of_what_the_loop_does_and_ends_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "POLL_S", 0.3)
    feed, iterator = workers_of(Slow(400), timeout_s=60.0)
    feed.next()
    killed, other = iterator._workers
    os.kill(killed.pid, signal.SIGKILL)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:  # the loop's own work: the handler runs in here
        sum(range(1000))
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        all_of(feed)
    shut_down(iterator, stuck=False)
    assert not other.is_alive()


def test_workers_that_are_slow_are_waited_for_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "POLL_S", 0.1)  # a batch takes 0.8 s
    feed, iterator = workers_of(Slow(16), timeout_s=20.0)
    taken = [feed.next() for _ in range(4)]
    assert [int(x[0, 0]) for x, _ in taken] == [0, 4, 8, 12]  # none was skipped
    with pytest.raises(StopIteration):
        feed.next()
    shut_down(iterator, stuck=False)
    feed, iterator = workers_of(Slow(400), timeout_s=0.3)
    with pytest.raises(TimeoutError, match=r"timed out after 0\.3 s"):
        feed.next()
    shut_down(iterator, stuck=True)


def test_an_error_of_the_dataset_is_its_own_though_it_speaks_of_time() -> None:
    class Late(Numbers):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            raise RuntimeError("the request timed out")

    feed, iterator = workers_of(Late(16), timeout_s=20.0)
    with pytest.raises(RuntimeError, match="the request timed out"):
        feed.next()
    shut_down(iterator, stuck=False)


def test_workers_that_died_with_a_lock_are_ended_in_bounded_time(nothing_is_left: None) -> None:
    """A worker asks an event whether it is to end; killed meanwhile, it leaves its lock taken."""
    iterator: Any = iter(DataLoader(range(64), batch_size=2, num_workers=2))  # type: ignore[arg-type]
    next(iterator)
    lock = iterator._workers_done_event._cond
    assert lock.acquire(timeout=10)  # as the killed worker would have it
    shut_down(iterator, stuck=True)
    assert not any(worker.is_alive() for worker in iterator._workers)
    lock.release()


def test_a_thread_whose_worker_is_killed_prints_nothing_and_others_still_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pin-memory thread may be receiving a batch from it: "Exception in thread Thread-6"."""
    shown: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: shown.append(str(ended.exc_value)))

    def fails(error: Exception, when: threading.Event) -> threading.Thread:
        def run() -> None:
            when.wait(10)
            raise error

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    iterator: Any = iter(DataLoader(range(64), batch_size=2, num_workers=1))  # type: ignore[arg-type]
    next(iterator)
    iterator._pin_memory_thread_done_event = threading.Event()
    iterator._pin_memory_thread = fails(
        ConnectionResetError("by the worker"), iterator._pin_memory_thread_done_event
    )
    now = threading.Event()
    now.set()
    shut_down(iterator, stuck=True)
    assert not iterator._pin_memory_thread.is_alive()
    fails(ConnectionResetError("of the script"), now).join()
    assert shown == ["of the script"]
