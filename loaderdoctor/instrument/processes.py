"""CPU time of this process's children: the DataLoader's workers."""

from __future__ import annotations

import os

import psutil


def children_cpu_ns() -> int | None:
    """User and system time of all children, ended ones included, so that differences add up.

    A worker that ends between two readings moves from "alive" to what the system sums for
    children that were waited for. None where the system tells neither.
    """
    try:
        times = os.times()
        total = times.children_user + times.children_system
        for child in psutil.Process().children(recursive=True):
            try:
                cpu = child.cpu_times()
            except psutil.Error:
                continue
            total += cpu.user + cpu.system
    except (OSError, psutil.Error):
        return None
    return round(total * 1e9)
