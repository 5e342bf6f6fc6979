"""Places to run commands in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.running import Place, mounted, why_no_mounts


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder whose processes are marked."""
    return Place(tmp_path)


@pytest.fixture
def own_shm(tmp_path: Path) -> Iterator[Place]:
    """A place with a /dev/shm of its own, of usual size."""
    reason = why_no_mounts()
    if reason is not None:
        pytest.skip(reason)
    with mounted(tmp_path, [("size=1g", "/dev/shm")]) as found:
        yield found
