"""`worker_cpus`: which CPUs the workers of a trial run on. Linux alone lets a process choose."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from loaderdoctor.errors import TrialRefused

_NODES = Path("/sys/devices/system/node")
MIN_CPUS = 2  # or there is nothing to choose


class OnCpus:
    """A worker_init_fn that binds worker `i` to the `i`-th set of CPUs, then calls the user's."""

    def __init__(
        self, sets: tuple[frozenset[int], ...], init: Callable[[int], None] | None
    ) -> None:
        self._sets, self._init = sets, init

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker, before its first sample."""
        os.sched_setaffinity(0, self._sets[worker_id % len(self._sets)])
        if self._init is not None:
            self._init(worker_id)


def cpu_sets(how: str, nodes: Path = _NODES) -> tuple[frozenset[int], ...]:
    """What workers are bound to in turns: `all` CPUs, one `apart` for each, or a `numa` node each.

    `apart` and `numa` keep to the CPUs that this process may use; `all` are those that the machine,
    or the container, has. Raises TrialRefused where there is nothing to choose.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise TrialRefused("this system lets no process choose its CPUs")
    if how == "all":
        return (frozenset(range(os.cpu_count() or 1)),)
    usable = frozenset(os.sched_getaffinity(0))
    if len(usable) < MIN_CPUS:
        raise TrialRefused("the process may use one CPU only: there is none to choose")
    if how == "apart":
        return tuple(frozenset({cpu}) for cpu in sorted(usable))
    found = [cpus & usable for cpus in _of_nodes(nodes)]
    sets = tuple(cpus for cpus in found if cpus)
    if len(sets) < 2:
        raise TrialRefused(
            "the CPUs that the process may use lie on one NUMA node: binding workers to it changes "
            "nothing"
        )
    return sets


def _of_nodes(nodes: Path) -> list[frozenset[int]]:
    """The CPUs of each NUMA node; empty where the system doesn't tell."""
    found = []
    for node in sorted(nodes.glob("node[0-9]*"), key=lambda x: int(x.name.removeprefix("node"))):
        try:
            text = (node / "cpulist").read_text().strip()
        except OSError:
            continue
        cpus: set[int] = set()
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
        found.append(frozenset(cpus))
    return found
