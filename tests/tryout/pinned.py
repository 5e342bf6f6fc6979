"""Pins: every window that was asked for, in order, and what came of it, as stored in JSON.

Refreshed by LOADERDOCTOR_REFRESH_GOLDEN=1 pytest tests/tryout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from loaderdoctor.estimate import Estimate
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings

HERE = Path(__file__).parent
_LEFT_OUT = ("id", "mode", "n_steps", "limit_s", "settings", "trace_path")


def check(pins: str, name: str, found: Any) -> None:
    """Compare with what is stored under `name` in the file `pins`.json."""
    path = HERE / f"{pins}.json"
    stored = json.loads(path.read_text()) if path.is_file() else {}
    now = json.loads(json.dumps(found))
    if os.environ.get("LOADERDOCTOR_REFRESH_GOLDEN") == "1":
        stored[name] = now
        path.write_text(_text(stored))
    assert stored[name] == now


def _text(stored: dict[str, Any]) -> str:
    """A line for each request and each fact, so that a change shows as what it is."""
    parts = []
    for name, pin in sorted(stored.items()):
        lines = ",\n".join(json.dumps(line) for line in pin["asked"])
        facts = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(fact)}" for key, fact in pin["outcome"].items()
        )
        parts.append(f'{json.dumps(name)}: {{"asked": [\n{lines}\n], "outcome": {{\n{facts}\n}}}}')
    return "{" + ",\n\n".join(parts) + "}\n"


def asked(requests: Iterable[WindowRequest], trials: Sequence[Settings] = ()) -> list[str]:
    """One line a request: mode, settings (or which trial), steps, limit, what else is not usual.

    Equal ones in a row share a line.
    """
    lines = [_line(request, trials) for request in requests]
    return [
        line if (n := len(list(same))) == 1 else f"{n} x {line}" for line, same in groupby(lines)
    ]


def _line(request: WindowRequest, trials: Sequence[Settings]) -> str:
    words = [request.mode, f"{request.n_steps}"]
    if request.settings in trials:
        words.insert(1, f"#{trials.index(request.settings)}")
    elif request.settings is not None:
        words.insert(1, f"[{request.settings.label()}]")
    if request.limit_s is not None:
        words.append(f"<{request.limit_s:.3g}s")
    if request.trace_path:
        words.append(Path(request.trace_path).name)
    more = msgspec.to_builtins(request)  # of which defaults are left out
    words += [
        f"{name}={value}" for name, value in more.items() if value != {} and name not in _LEFT_OUT
    ]
    return " ".join(words)


def rounded(value: Any) -> Any:
    """Floats to five digits, in whatever is nested; estimates as value, low, high and n."""
    if isinstance(value, Estimate):
        return [*(rounded(x) for x in (value.value, value.low, value.high)), value.n]
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) != float("inf") else str(value)
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return value


def rows(structs: Iterable[msgspec.Struct]) -> list[dict[str, Any]]:
    """Rows of a report, without what is empty and without code, which is another's to decide."""
    return [
        {
            name: rounded(value)
            for name, value in msgspec.to_builtins(row).items()
            if value not in (None, [], (), {}, False) and name not in ("settings", "code")
        }
        for row in structs
    ]
