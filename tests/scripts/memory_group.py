"""A control group with little memory, which this process and what it starts are in for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def little_memory(n_bytes: int) -> Iterator[None]:
    """At most `n_bytes` for processes started meanwhile; skips where no group can be made.

    That takes root, and on a system of the second version a group at the top whose children may be
    limited.
    """
    first = (ROOT / "memory").is_dir()
    root = ROOT / "memory" if first else ROOT
    was, group = _own(root, first=first), root / f"loaderdoctor-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if first else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(n_bytes))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield
    finally:
        (was / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _own(root: Path, *, first: bool) -> Path:
    """The group that this process is in."""
    for row in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = row.split(":", 2)
        if ("memory" in controllers.split(",")) if first else not controllers:
            return root / path.strip("/")
    return root
