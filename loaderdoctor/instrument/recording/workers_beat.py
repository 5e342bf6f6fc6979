"""What all workers did since the last look, from the sums that each keeps in a file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from loaderdoctor.instrument.wire.beats import WorkersBeat
from loaderdoctor.instrument.wire.record_file import WorkerSums, read_sums


class WorkersReader:
    """Of one process's workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, WorkerSums] = {}

    def take(self) -> WorkersBeat | None:
        """Since the last call; None where no worker ever kept sums."""
        found = dict(read_sums(self._folder))
        if not found and not self._known:
            return None
        n_started = n_ended = n_died = n_batches = make = cpu = idle = longest = 0
        alive = []
        for path, now in found.items():
            before = self._known.get(path)
            n_started += before is None
            n_batches += now.n_batches - (before.n_batches if before else 0)
            make += now.make_ns - (before.make_ns if before else 0)
            cpu += now.cpu_ns - (before.cpu_ns if before else 0)
            idle += now.idle_ns - (before.idle_ns if before else 0)
            longest = max(longest, now.longest_ns)
            if now.ended:
                n_ended += 1
            elif _lives(now.pid):
                alive.append(now.pid)
                continue
            else:
                n_died += 1
            with suppress(OSError):
                path.unlink()
        self._known = {path: now for path, now in found.items() if now.pid in alive}
        return WorkersBeat(
            n_alive=len(alive),
            n_started=n_started,
            n_ended=n_ended,
            n_died=n_died,
            n_batches=n_batches,
            make_ns=make,
            cpu_ns=cpu,
            idle_ns=idle,
            longest_ns=longest,
            pids=tuple(alive),
        )


def _lives(pid: int) -> bool:
    """Whether this child runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True  # no /proc: what the signal said
    return state not in ("Z", "X")
