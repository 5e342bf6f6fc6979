"""The machines of a cluster's sweep in words, for the console and the page alike."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.report.model import Cluster, Group

HEADINGS = ("machine", "measured", "own settings", "what happened")


def group_rows(cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """A row for each group of trials, in the order they were made; "" where nothing is known."""
    several = len(cluster.hardware) > 1
    return tuple(
        (
            _where(group, several=several),
            f"{'confirmed' if group.purpose == 'confirm' else 'trials'} "
            f"{', '.join(map(str, group.trials))}",
            f"own settings {fmt.ms(group.baseline_ms)}" if group.baseline_ms is not None else "",
            _happened(group),
        )
        for group in cluster.groups
    )


def hardware_lines(cluster: Cluster) -> tuple[str, ...]:
    """What each kind of machine is made of."""
    several = len(cluster.hardware) > 1
    return tuple(
        f"{f'Hardware {kind.name}: ' if several else ''}{kind.usable_cpus:g} CPUs "
        f"({kind.cpu or 'not known'}), {fmt.n_bytes(kind.memory_bytes)}, "
        f"{' + '.join(kind.gpus) or 'no GPU'}, torch {kind.torch or 'not known'}"
        for kind in cluster.hardware
    )


def _where(group: Group, *, several: bool) -> str:
    kind = f" (hardware {group.hardware})" if several and group.hardware else ""
    return f"{group.node or 'no machine'}{kind}"


def _happened(group: Group) -> str:
    parts = []
    if group.n_lost:
        parts.append(f"begun again {fmt.count(group.n_lost, 'time')}")
    if group.status != "ok":
        parts.append(f"{group.status}{f': {group.reason}' if group.reason else ''}")
    return ", ".join(parts)
