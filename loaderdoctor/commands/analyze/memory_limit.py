"""`--max-memory`: how much a command that reads others' traces may take, counted and enforced."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.system.machine import memory_available_bytes

# By default half of what is available now, so that whoever works on the machine goes on.
DEFAULT_SHARE = 0.5
LEAST_BYTES = 1 << 30
# What counting does not see: threads' stacks, the allocator's slack, libraries loaded on the way.
SLACK_BYTES = 512 << 20
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?\s*$", re.IGNORECASE)


def memory_limit(text: str | None) -> int:
    """The bytes that `--max-memory` allows; the default without it. Raises UsageError."""
    if text is None:
        available = memory_available_bytes()
        return max(LEAST_BYTES, int((available or 0) * DEFAULT_SHARE))
    match = _SIZE.match(text)
    if match is None or not 0 < float(match[1]) < 1e9:
        raise UsageError(f"--max-memory {text!r}: write a size, for example 4GB or 512MiB.")
    unit = 1024 if match[3] else 1000
    return int(float(match[1]) * unit ** " KMGT".index(match[2].upper() or " "))


@contextmanager
def enforced(n_bytes: int, paths: tuple[Path, ...]) -> Iterator[None]:
    """Within the block this process, and each it starts, can't take more than `n_bytes` and slack.

    The second line of defence, where counting was wrong: the kernel then refuses memory (Linux),
    and that is told like any trace that is too large. Raises UsageError.
    """
    named = str(paths[0]) if len(paths) == 1 else f"{len(paths)} traces"
    try:
        with _limited(n_bytes + SLACK_BYTES):
            yield
    except MemoryError:
        raise UsageError(
            f"{named}: needs more than {n_bytes / 1e9:.1f} GB of memory, the limit. Profile fewer "
            "steps, or allow more with --max-memory."
        ) from None


@contextmanager
def _limited(n_more_bytes: int) -> Iterator[None]:
    """Private memory of this process is bounded to what it has now and `n_more_bytes`."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # a lower limit is set already, or none may be
        limit = _data_bytes() + n_more_bytes
        if before[1] != resource.RLIM_INFINITY:
            limit = min(limit, before[1])
        resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int:
    """Private memory that this process has mapped, as RLIMIT_DATA counts it."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmData:\s*([0-9]+) kB", status, re.MULTILINE)
    if found is None:
        raise OSError("VmData is not told")
    return int(found[1]) * 1024
