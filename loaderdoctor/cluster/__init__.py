"""The machines of a cluster: what each is made of, which are alike, and which does what next.

Imports neither torch nor Ray. The schedule is plain bookkeeping and knows no cluster: an item whose
worker or node is lost goes elsewhere, a bounded number of times; exclusive work has a machine of
its own, so two nodes of one machine are never busy at once.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from loaderdoctor import __version__
from loaderdoctor.instrument.system.machine import ROOT, gpus, memory_limit, text_of, usable_cpus

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
        cpu=cpu_model(text_of(root / "proc/cpuinfo")) or platform.processor() or None,
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
    return text_of(root / "proc/sys/kernel/random/boot_id").strip() or socket.gethostname()


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# A node lost while it ran an item is bad luck; three of them point at the item.
MAX_ATTEMPTS = 3
# A node that has not begun by then is busy with something else: the item moves where there is room.
# Starting a worker that imports us from a network disk takes some ten seconds.
PATIENCE_S = 30.0


class RefusedError(Exception):
    """Raised by work where this node can't do it, and another may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    id: str  # of the node within the cluster
    host: str
    machine: str  # nodes that share one share this
    cpus: float
    gpus: float = 0.0
    memory_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class _Item:
    at: Place | None = None  # where it runs, or waits to
    since: float = 0.0
    begun: bool = False
    n_lost: int = 0
    tried: set[str] = field(default_factory=set)  # nodes it should not go to again
    refusals: list[str] = field(default_factory=list)
    over: bool = False


class Schedule:
    """Gives items to places; the caller runs them and tells what became of each.

    `slots` says how many items a place holds at once; with `exclusive` a machine holds one.
    `allowed` says whether an item may go to a place at all.
    """

    def __init__(
        self,
        n_items: int,
        *,
        exclusive: bool = False,
        slots: Callable[[Place], int] = lambda place: max(1, int(place.cpus)),
        allowed: Callable[[int, Place], bool] = lambda index, place: True,
        max_attempts: int = MAX_ATTEMPTS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._items = [_Item() for _ in range(n_items)]
        self._queue = list(range(n_items))
        self._exclusive = exclusive
        self._slots = slots
        self._allowed = allowed
        self._max_attempts = max_attempts
        self._patience_s = patience_s
        self.failed: dict[int, str] = {}  # items given up, with the reason

    @property
    def finished(self) -> bool:
        """Whether every item is done or given up."""
        return all(item.over for item in self._items)

    @property
    def running(self) -> tuple[int, ...]:
        """Items given to a place and not yet over."""
        return tuple(i for i, item in enumerate(self._items) if item.at is not None)

    def assign(self, places: Sequence[Place], now: float) -> list[tuple[int, Place]]:
        """What starts now, where; in the order of the queue."""
        given = []
        for index in list(self._queue):
            place = self._choose(index, places)
            if place is None:
                continue
            self._queue.remove(index)
            item = self._items[index]
            item.at, item.since, item.begun = place, now, False
            given.append((index, place))
        return given

    def begun(self, index: int) -> None:
        self._items[index].begun = True

    def done(self, index: int) -> None:
        self._leave(index)
        self._items[index].over = True

    def lost(self, index: int, why: str) -> None:
        """Its worker or node died under it: again elsewhere, or given up."""
        item = self._items[index]
        host = item.at.host if item.at is not None else "?"
        self._avoid(index)
        item.n_lost += 1
        if item.n_lost >= self._max_attempts:
            times = "once" if item.n_lost == 1 else f"{item.n_lost} times"
            self._give_up(index, f"lost {times}, the last time on {host}: {why}")
        else:
            self._queue.insert(0, index)

    def refused(self, index: int, why: str) -> None:
        self._avoid(index)
        self._items[index].refusals.append(why)
        if len(self._items[index].refusals) >= self._max_attempts:
            self._give_up(index, why)
        else:
            self._queue.insert(0, index)

    def withdrawn(self, index: int) -> None:
        """Taken back from a node that did not begin."""
        self._avoid(index)
        self._queue.insert(0, index)

    def late(self, now: float) -> list[int]:
        """Items given to a node that has not begun with them."""
        waiting = (i for i in self.running if not self._items[i].begun)
        return [i for i in waiting if now - self._items[i].since >= self._patience_s]

    def stuck(self, places: Sequence[Place], now: float) -> list[int]:
        """Items that wait for a busy node while another has room."""
        found = []
        for index in self.late(now):
            item = self._items[index]
            others = [p for p in places if item.at is not None and p.id != item.at.id]
            if not self._queue and self._choose(index, others, again=False) is not None:
                found.append(index)
        return found

    def settle(self, places: Sequence[Place]) -> None:
        """Give up items that every node there is has refused."""
        for index in list(self._queue):
            item = self._items[index]
            there = [place for place in places if self._allowed(index, place)]
            if item.refusals and all(place.id in item.tried for place in there):
                self._give_up(index, item.refusals[-1])

    def can_go_on(self, places: Sequence[Place]) -> bool:
        """Whether one of these places may take what waits, now or once it is free."""
        return any(self._allowed(index, place) for index in self._queue for place in places)

    def give_up(self, why: str) -> None:
        for index in list(self._queue):
            self._give_up(index, why)

    def _choose(self, index: int, places: Sequence[Place], *, again: bool = True) -> Place | None:
        item = self._items[index]
        there = [place for place in places if self._allowed(index, place)]
        untried = [place for place in there if place.id not in item.tried]
        if not untried and again and not item.refusals:
            untried = there  # nowhere else to go
        free = [place for place in untried if self._room(place)]
        return min(free, key=self._load, default=None)

    def _room(self, place: Place) -> bool:
        busy = [self._items[i].at for i in self.running]
        if self._exclusive:
            return all(one is None or one.machine != place.machine for one in busy)
        return sum(one is not None and one.id == place.id for one in busy) < self._slots(place)

    def _load(self, place: Place) -> float:
        n_busy = sum(
            (at := self._items[i].at) is not None and at.id == place.id for i in self.running
        )
        return n_busy / max(1, self._slots(place))

    def _leave(self, index: int) -> Place | None:
        place, self._items[index].at = self._items[index].at, None
        return place

    def _avoid(self, index: int) -> None:
        place = self._leave(index)
        if place is not None:
            self._items[index].tried.add(place.id)

    def _give_up(self, index: int, why: str) -> None:
        if index in self._queue:
            self._queue.remove(index)
        self._leave(index)
        self._items[index].over = True
        self.failed[index] = why
