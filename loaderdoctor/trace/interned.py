"""Names and threads of a trace as numbers, in the order first seen."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

from loaderdoctor.trace.events import Complete
from loaderdoctor.trace.source import BYTES_PER_NAME


class _Ids(dict[Any, int]):
    """Numbers things in the order first seen."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Names(_Ids):
    """Names, which may be many and long."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def __missing__(self, key: Any) -> int:
        self.n_bytes += BYTES_PER_NAME + 2 * getsizeof(key)
        return super().__missing__(key)


class Threads:
    """Numbers threads in the order first seen; by pid, then tid, as ints are found fastest."""

    def __init__(self) -> None:
        self.keys: list[tuple[int | str, int | str]] = []
        self._numbers: dict[int | str, dict[int | str, int]] = {}

    def of(self, rows: list[Complete]) -> list[int]:
        """The number of each row's thread."""
        numbers = self._numbers
        try:
            return [numbers[e.pid][e.tid] for e in rows]
        except KeyError:
            for pid, tid in dict.fromkeys((e.pid, e.tid) for e in rows):
                self.number(pid, tid)
            return [numbers[e.pid][e.tid] for e in rows]

    def number(self, pid: int | str, tid: int | str) -> int:
        """The number of a thread, a new one where it was not seen before."""
        of_process = self._numbers.setdefault(pid, {})
        if tid not in of_process:
            of_process[tid] = len(self.keys)
            self.keys.append((pid, tid))
        return of_process[tid]
