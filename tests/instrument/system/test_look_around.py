"""Memory seen from outside: what a forked worker grows by, and not what it got at its start."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from loaderdoctor.instrument.system import look_around
from loaderdoctor.instrument.system.look_around import LookAround

MB = 1_000_000
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="Linux alone tells what is shared"
)


def worker(asked: Connection, inherited: bytearray) -> None:
    """Keeps as many bytes as it is told; copies what it has from its parent when told 0."""
    kept = []
    while True:
        n = asked.recv()
        if n:
            kept.append(bytearray(b"x" * n))
        else:
            for at in range(0, len(inherited), 4096):
                inherited[at] = 1
        asked.send(None)


def test_bytes_received_are_those_of_every_interface_but_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = {"lo": 0, "eth0": 1_000, "ib0": 0}

    def counters(*, pernic: bool) -> dict[str, SimpleNamespace]:
        assert pernic
        return {name: SimpleNamespace(bytes_recv=n) for name, n in received.items()}

    monkeypatch.setattr(psutil, "net_io_counters", counters)
    look = LookAround(os.getpid())
    look.look()
    received.update(lo=10**12, eth0=3_000, ib0=4_000)
    told = look.look()
    assert told is not None and told.received_bytes_per_s is not None
    assert told.received_bytes_per_s * told.took_s == pytest.approx(6_000)
    received.clear()
    untold = look.look()
    assert untold is not None and untold.received_bytes_per_s is None


def test_walking_pages_is_told_apart_from_what_the_rest_of_a_look_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def walk(*_: object) -> int:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return 1000

    monkeypatch.setattr(look_around, "bytes_of", walk)
    look, began_s = LookAround(os.getpid()), time.thread_time()
    looks = [look.look() for _ in range(2)]  # the first only begins
    rest_s = time.thread_time() - began_s - look.walked_s
    assert looks[1] is not None
    assert looks[1].run_bytes == 2000
    assert look.walked_s >= 0.1 > rest_s
    again = look.look()  # too early for another walk, not for the rest
    assert again is not None
    assert again.run_bytes is None
    assert again.run_private_bytes is not None
    assert look.walked_s == 0.0


def test_a_forked_worker_has_grown_by_what_it_keeps_and_not_by_what_it_copies() -> None:
    inherited = bytearray(b"x" * 40 * MB)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=worker, args=(there, inherited), daemon=True
    )
    process.start()
    assert process.pid is not None
    look = LookAround(os.getpid())

    def seen() -> tuple[int, int]:
        found = look.look([process.pid or 0])
        assert found is not None
        assert found.workers_grown_bytes is not None
        assert found.run_private_bytes is not None
        return found.workers_grown_bytes, found.run_private_bytes

    def told(n: int) -> None:
        here.send(n)
        here.recv()

    try:
        told(1000)  # what it takes to begin
        look.look([process.pid])
        before = seen()
        told(0)
        copied = seen()
        told(60 * MB)
        grown = seen()
    finally:
        process.kill()
        process.join()
    assert copied[0] - before[0] < 10 * MB
    assert 55 * MB < grown[0] - copied[0] < 75 * MB
    assert grown[1] - copied[1] > 55 * MB
