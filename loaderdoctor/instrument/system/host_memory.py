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


def unique_bytes(pid: int, proc: Path = ROOT / "proc") -> int | None:
    """What would be free if this process alone ended: pages that no other one has (USS).

    None where it is gone, or the system does not tell.
    """
    sizes = _rollup(proc / str(pid) / "smaps_rollup")
    if sizes is None:
        return None
    return sum(n for name, n in sizes.items() if name.startswith("Private_"))


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
    sizes = _rollup(path)
    return sizes.get("Pss") if sizes is not None else None


def _rollup(path: Path) -> dict[str, int] | None:
    """Bytes by name of a smaps_rollup file, which is in KiB; None where it can't be read."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    rows = (line.split() for line in text.splitlines())
    return {
        words[0].removesuffix(":"): int(words[1]) * 1024
        for words in rows
        if len(words) >= 3 and words[2] == "kB" and words[1].isdigit()
    }


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
