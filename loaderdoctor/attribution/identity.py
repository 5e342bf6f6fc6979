"""The one identity: each instant of the window in exactly one share.

The order of subtraction is the definition. All sets are in ns on the trace's clock; overlaps and
parts outside the window are fine.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor.facts.step import Shares
from loaderdoctor.intervals import EMPTY, Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Disjoint sets whose union is the window; None = not applicable or not recorded."""

    window: Intervals
    compute: Intervals
    communication: Intervals
    copy: Intervals | None
    input: Intervals | None
    host: Intervals
    other: Intervals

    def parts(self) -> dict[str, Intervals]:
        """The sets that there are, by the names of their shares."""
        named = {
            "compute": self.compute,
            "communication": self.communication,
            "copy": self.copy,
            "input": self.input,
            "host": self.host,
            "other": self.other,
        }
        return {name: part for name, part in named.items() if part is not None}

    def shares(self) -> Shares:
        """As parts of the window; an empty window is all `other`."""
        total = self.window.total_ns
        if total == 0:
            return Shares(
                compute=0.0,
                communication=0.0,
                copy=None if self.copy is None else 0.0,
                input=None if self.input is None else 0.0,
                host=0.0,
                other=1.0,
            )
        return Shares(
            compute=self.compute.total_ns / total,
            communication=self.communication.total_ns / total,
            copy=None if self.copy is None else self.copy.total_ns / total,
            input=None if self.input is None else self.input.total_ns / total,
            host=self.host.total_ns / total,
            other=self.other.total_ns / total,
        )


def with_accelerator(
    *,
    window: Intervals,
    kernels: Intervals,
    collectives: Intervals,
    copies: Intervals,
    copy_calls: Intervals,
    getting: Intervals | None,
    recorded: Intervals,
    held_up: Intervals = EMPTY,
) -> Partition:
    """Kernel that is no collective > collective > copy itself > held up > copy call > input > host.

    `kernels` holds memsets and D2D copies too. `copy_calls` is when the training thread is inside
    the runtime call of an H2D copy or its stream sync: only where the accelerator idles does it
    count. `recorded` is when the host was recorded: idle time outside it is nobody's (`other`), and
    so is `held_up`, in which the accelerator had work and served another process.
    """
    left = window
    compute, left = _take(left, kernels)
    communication, left = _take(left, collectives)
    elsewhere = held_up.subtract(copies)
    copy, left = _take(left, copies.union(copy_calls).subtract(elsewhere))
    elsewhere, left = _take(left, elsewhere)
    got, left = _take(left, EMPTY if getting is None else getting)
    host, left = _take(left, recorded)
    return Partition(
        window=window,
        compute=compute,
        communication=communication,
        copy=copy,
        input=None if getting is None else got,
        host=host,
        other=left.union(elsewhere),
    )


def without_accelerator(
    *,
    window: Intervals,
    getting: Intervals | None,
    communicating: Intervals,
    computing: Intervals,
    recorded: Intervals,
) -> Partition:
    """Input > communication > compute > host; there is no copy."""
    left = window
    got, left = _take(left, EMPTY if getting is None else getting)
    communication, left = _take(left, communicating)
    compute, left = _take(left, computing)
    host, left = _take(left, recorded)
    return Partition(
        window=window,
        compute=compute,
        communication=communication,
        copy=None,
        input=None if getting is None else got,
        host=host,
        other=left,
    )


def _take(left: Intervals, claimed: Intervals) -> tuple[Intervals, Intervals]:
    """What a share takes of the instants still left, and what it leaves."""
    return left.intersect(claimed), left.subtract(claimed)
