"""The fuzzer itself: it notices what hangs it or takes it down, and keeps the input."""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import fuzz
from tests.fuzz import targets
from tests.fuzz.targets import Hints
from tests.fuzz.worker import Fuzzer


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hung() -> None:
    """As in a call that no signal interrupts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(1000)


def slow() -> None:
    time.sleep(1000)


def wrong() -> None:
    raise ZeroDivisionError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "n_inputs", "failure"),
    [
        (killed, 5, "took the process down (status 9)"),
        (hung, 5, "hung"),
        (slow, 20, "SlowError"),
        (wrong, 20, "ZeroDivisionError"),
    ],
    ids=["killed", "hung", "slow", "wrong"],
)
def test_the_fifth_input_fails_and_is_kept(
    fails: Callable[[], None],
    n_inputs: int,
    failure: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = os.getpid()
    seen: list[bytes] = []

    def judge(kind: str, data: bytes, place: Path, hints: Hints | None = None) -> str:
        seen.append(data)
        if len(seen) == 5 and os.getpid() != here:
            fails()
        return "refused"

    monkeypatch.setattr(targets, "judge", judge)
    fuzzer = Fuzzer(1, limit_s=1.0, save=tmp_path, shm=tmp_path)
    tally = fuzz._supervised(fuzzer, Namespace(limit=1.0, engine="random"), 20, 100.0)
    assert sum(tally.inputs.values()) == n_inputs
    (found,) = tally.failures
    assert failure in found
    (kept,) = [path for path in tmp_path.iterdir() if path.is_file()]
    # The same inputs again, in this process: the fifth is the one.
    again = Fuzzer(1, limit_s=1.0, save=tmp_path / "none", shm=tmp_path)
    for _ in range(5):
        again.one()
    assert seen[-1] == kept.read_bytes()
