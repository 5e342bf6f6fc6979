"""What a machine is made of, and which machines are alike enough to compare times between them.

Runs on every node; imports neither torch nor Ray.
"""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from loaderdoctor import __version__
from loaderdoctor.instrument.system.cgroups import ROOT, memory_limit
from loaderdoctor.instrument.system.machine import gpus, usable_cpus

# Machines of one type differ in memory by what firmware and kernel keep for themselves.
ALIKE_MEMORY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine as a process on it sees it. None where it does not tell."""

    host: str
    machine: str  # the running kernel's own number: containers of one machine share it
    cpu: str | None  # model
    usable_cpus: float
    memory_bytes: int
    gpus: tuple[str, ...]
    torch: str | None
    version: str  # of loaderdoctor

    def differences(self, other: Hardware) -> list[str]:
        """In what they differ, as `8 usable CPUs against 4`; empty where they are alike."""
        found = []
        for name, one, two in (
            ("CPU", self.cpu, other.cpu),
            ("usable CPUs", f"{self.usable_cpus:g}", f"{other.usable_cpus:g}"),
            ("GPUs", ", ".join(self.gpus) or "none", ", ".join(other.gpus) or "none"),
            ("torch", self.torch, other.torch),
        ):
            if one != two:
                found.append(f"{name} {one or 'not known'} against {two or 'not known'}")
        sizes = sorted((self.memory_bytes, other.memory_bytes))
        if sizes[0] < (1 - ALIKE_MEMORY) * sizes[1]:
            a, b = (n / 2**30 for n in (self.memory_bytes, other.memory_bytes))
            found.append(f"memory {a:.3g} GiB against {b:.3g} GiB")
        return found


@dataclass(slots=True)
class Kinds:
    """Machines sorted into kinds A, B, … of those that are alike, in order of appearance."""

    first: list[tuple[Hardware, str]] = field(default_factory=list)  # of each kind

    def of(self, one: Hardware, loop: str = "") -> str:
        """The kind's name; a new one where no machine before was like it.

        `loop` is what the script makes of the machine (its own settings): that must be equal too.
        """
        for number, (known, known_loop) in enumerate(self.first):
            if loop == known_loop and not one.differences(known):
                return kind_name(number)
        self.first.append((one, loop))
        return kind_name(len(self.first) - 1)

    def items(self) -> list[tuple[str, Hardware, str]]:
        """(name, first machine, the loop's own settings there) of each kind."""
        return [(kind_name(i), one, loop) for i, (one, loop) in enumerate(self.first)]

    def difference(self) -> str:
        """In what the kinds differ, each against the first; "" where there is one."""
        if not self.first:
            return ""
        first, first_loop = self.first[0]
        told = []
        for name, one, loop in self.items()[1:]:
            parts = first.differences(one)
            if loop != first_loop:
                parts.append(f"the loop's own settings {first_loop} against {loop}")
            told.append(f"A and {name}: {', '.join(parts)}")
        return "; ".join(told)


def kind_name(number: int) -> str:
    """A to Z, then A1, B1 and so on."""
    letter = chr(ord("A") + number % 26)
    return letter if number < 26 else f"{letter}{number // 26}"


def look_here(root: Path = ROOT) -> Hardware:
    """What the machine we run on is, now."""
    limit = memory_limit(root)
    total: int = psutil.virtual_memory().total
    return Hardware(
        host=socket.gethostname(),
        machine=_machine(root),
        cpu=cpu_model(_text(root / "proc/cpuinfo")) or platform.processor() or None,
        usable_cpus=usable_cpus(root),
        memory_bytes=min(total, limit.limit_bytes) if limit is not None else total,
        gpus=tuple(gpu.name for gpu in gpus()),
        torch=_installed("torch"),
        version=__version__,
    )


def cpu_model(cpuinfo: str) -> str | None:
    """The model in /proc/cpuinfo: x86's name, or ARM's implementer and part."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    if model := fields.get("model name"):
        return model
    part = (fields.get("CPU implementer"), fields.get("CPU part"))
    return f"ARM {part[0]}/{part[1]}" if all(part) else None


def _machine(root: Path) -> str:
    return _text(root / "proc/sys/kernel/random/boot_id").strip() or socket.gethostname()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
