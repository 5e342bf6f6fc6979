"""What Python's garbage collector did in a window: how often, how long, and who asked for it."""

from __future__ import annotations

import gc
import linecache
import re
import sys
from pathlib import Path
from time import perf_counter_ns
from types import CodeType
from typing import Any

from loaderdoctor.instrument.system.call_sites import library_of
from loaderdoctor.instrument.wire.records import CollectionRecord

N_GENERATIONS = 3
_FULL = N_GENERATIONS - 1
_ASKS = re.compile(r"(?:\bgc\.|(?<![\w.]))collect\(")  # not polars' frame.collect()
_MAX_PAUSES = 256  # full collections told one by one: of more than this the sums say enough


class CollectionCount:
    """Collections of this process from here to `stop`, on whichever thread: all hold its lock.

    A callback of the collector itself, twice for each collection; nothing is called in between.
    """

    def __init__(self) -> None:
        self._began_ns = 0
        self._n = [0] * N_GENERATIONS
        self._ns = [0] * N_GENERATIONS
        self._pauses: list[int] = []
        self._places: dict[tuple[CodeType, int], int] = {}
        gc.callbacks.append(self._called)

    def stop(self) -> CollectionRecord | None:
        """Remove the callback; what was collected since, or None where nothing was."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)
        if not any(self._n):
            return None
        asked_ns, site, code, library = self._asked()
        return CollectionRecord(
            n=tuple(self._n),
            ns=tuple(self._ns),
            full_ns=tuple(self._pauses),
            asked_ns=asked_ns,
            site=site,
            code=code,
            library=library,
        )

    def _called(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_ns = perf_counter_ns()
            return
        if not self._began_ns:
            return  # under way when we began
        took_ns, self._began_ns = perf_counter_ns() - self._began_ns, 0
        generation = min(info["generation"], _FULL)
        self._n[generation] += 1
        self._ns[generation] += took_ns
        if generation < _FULL:
            return
        if len(self._pauses) < _MAX_PAUSES:
            self._pauses.append(took_ns)
        frame = sys._getframe().f_back  # what ran when it began; None: a thread without Python code
        if frame is not None:
            place = (frame.f_code, frame.f_lineno)
            self._places[place] = self._places.get(place, 0) + took_ns

    def _asked(self) -> tuple[int, str | None, str | None, str | None]:
        """Of full collections that a line of code asked for: how long, and the dearest line."""
        asked = {x: ns for x, ns in self._places.items() if _ASKS.search(_line(x))}
        if not asked:
            return 0, None, None, None
        place = max(asked, key=lambda x: asked[x])
        file = place[0].co_filename
        site = f"{Path(file).name}:{place[1]}"
        return sum(asked.values()), site, _line(place), library_of(file)


def _line(place: tuple[CodeType, int]) -> str:
    return linecache.getline(place[0].co_filename, place[1]).strip()
