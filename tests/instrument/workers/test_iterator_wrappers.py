"""Threads look for the iterator that they pin for while others open and drop theirs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.instrument.workers import iterator_wrappers, worker


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Path]:
    """Recording is on, and threads take turns all the time."""
    usual_s = sys.getswitchinterval()
    worker.install(tmp_path / "records")
    sys.setswitchinterval(1e-6)
    yield tmp_path / "records"
    sys.setswitchinterval(usual_s)
    worker.remove()


@pytest.mark.usefixtures("records")
def test_an_iterator_is_looked_for_while_others_open_theirs() -> None:
    loader: DataLoader[int] = DataLoader([0, 1])  # type: ignore[arg-type]  # a list is a dataset
    end_s = time.monotonic() + 0.5

    def opens() -> None:
        while time.monotonic() < end_s:
            living = [iter(loader) for _ in range(20)]
            living.clear()

    thread = threading.Thread(target=opens)
    thread.start()
    while time.monotonic() < end_s:
        assert iterator_wrappers.wrapper_of_queue(object()) is None
    thread.join()
