"""Host memory of processes. Imports no torch.

Pages shared between processes count once (PSS), so a forked worker doesn't count its parent's data
again. Bytes throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from loaderdoctor.instrument.system.cgroups import ROOT


def host_bytes(pid: int, proc: Path = ROOT / "proc") -> int | None:
    """Memory of a process and all its descendants; None where the process is gone.

    Proportional set size where /proc has `smaps_rollup` for all of them (Linux >= 4.14), else the
    sum of resident sizes, which counts shared pages once for each process.
    """
    return bytes_of(_tree(pid), proc)


def bytes_of(processes: Sequence[psutil.Process], proc: Path = ROOT / "proc") -> int | None:
    """The same of these processes; None where all are gone."""
    if not processes:
        return None
    shares = [_pss_bytes(proc / str(process.pid) / "smaps_rollup") for process in processes]
    if all(share is not None for share in shares):
        return sum(share for share in shares if share is not None)
    # Unreadable because it ended meanwhile: its memory is gone. Else PSS can't be had for all.
    alive = [process for process in processes if _alive(process)]
    if not alive:
        return None
    shares = [_pss_bytes(proc / str(process.pid) / "smaps_rollup") for process in alive]
    if all(share is not None for share in shares):
        return sum(share for share in shares if share is not None)
    return sum(_rss_bytes(process) for process in alive)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _pss_bytes(path: Path) -> int | None:
    """`Pss:` of a smaps_rollup file, which is in KiB."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "Pss:" and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
