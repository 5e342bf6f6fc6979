"""Reads how long processes were held up for want of CPU, I/O or memory: Linux's pressure (PSI)."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from loaderdoctor.instrument.system.cgroups import ROOT

Pressure = Literal["cpu", "io", "memory"]
PRESSURES: Final[tuple[Pressure, ...]] = ("cpu", "io", "memory")


def stalled_us(what: Pressure, root: Path = ROOT) -> int | None:
    """Microseconds so far in which some process of the machine waited for it; None: not told."""
    try:
        text = (root / "proc/pressure" / what).read_text(encoding="ascii", errors="replace")
    except OSError:  # an older kernel, psi=0, or a sandbox
        return None
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"] and words[-1].startswith("total="):
            number = words[-1].removeprefix("total=")
            return int(number) if number.isdigit() else None
    return None
