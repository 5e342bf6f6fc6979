"""What torch.compile did in a window, by its own counters: code made anew, how long, and why.

Nothing is imported for it: where the script never compiled, torch's compiler is not even loaded.
"""

from __future__ import annotations

import re
import sys
from types import CodeType
from typing import Any

from loaderdoctor.instrument.wire.records import CompileRecord
from loaderdoctor.units import NS_PER_S

# Phases as torch names them (2.5 to 2.14; before, the first had another name). The first is one
# entry for each piece of code, its backend included; the second, where backward passes are compiled
# at their first call, comes on top.
_COMPILING = ("_compile.compile_inner", "entire_frame_compile")
_LAZY = ("backward._backward_impl",)
_CACHE_ENTRY = re.compile(r"^\d+(?:_\d+)?/\d+: ")  # "0/3: ": which piece of code was not right
MAX_REASON = 200


class CompileCount:
    """torch.compile's counters, from here on."""

    def __init__(self) -> None:
        self._phases = {name: len(times) for name, times in _phases().items()}
        self._failures = {code: len(reasons) for code, reasons in _failures().items()}

    def since(self) -> CompileRecord | None:
        """What was compiled since; None where nothing was, or torch's counters are not known."""
        phases = _phases()
        compiled = [t for name in _COMPILING for t in self._new(phases, name)]
        if not compiled:
            return None
        seconds = sum(compiled) + sum(t for name in _LAZY for t in self._new(phases, name))
        why, where = self._why()
        return CompileRecord(
            n=len(compiled), ns=int(seconds * NS_PER_S), reason=why, function=where
        )

    def _new(self, phases: dict[str, list[float]], name: str) -> list[float]:
        return phases.get(name, [])[self._phases.get(name, 0) :]

    def _why(self) -> tuple[str | None, str | None]:
        """Of the code that failed its guards most often since: the latest reason, and its place."""
        grown = {
            code: reasons
            for code, reasons in _failures().items()
            if len(reasons) > self._failures.get(code, 0)
        }
        if not grown:
            return None, None
        code = max(grown, key=lambda x: len(grown[x]) - self._failures.get(x, 0))
        reason = _CACHE_ENTRY.sub("", str(grown[code][-1]).splitlines()[0])
        return reason[:MAX_REASON], _place(code)


def _place(code: object) -> str | None:
    """`forward (model.py:12)`; None for torch's own code, which wraps a module that is compiled."""
    if not isinstance(code, CodeType) or "/torch/" in code.co_filename:
        return None
    file = code.co_filename.rpartition("/")[2]
    return f"{code.co_name} ({file}:{code.co_firstlineno})"


def _phases() -> dict[str, list[float]]:
    found = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None)
    return found if isinstance(found, dict) else {}


def _failures() -> dict[Any, list[Any]]:
    found = getattr(sys.modules.get("torch._dynamo.utils"), "guard_failures", None)
    return found if isinstance(found, dict) else {}
