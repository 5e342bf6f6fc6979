"""Figures as they read inside a finding's sentence. Evidence keeps the full numbers."""

from __future__ import annotations

from loaderdoctor.findings.exposure import Cost


def ms(value: float | None) -> str:
    """Milliseconds with three significant digits at most: `10.6 ms`, `0.24 ms`, `2,147 ms`."""
    if value is None:
        return "an unknown time"
    return f"{number(value)} ms"


def seconds(value_ms: float) -> str:
    """A longer time given in milliseconds: `2.1 s`, below a second in ms."""
    return ms(value_ms) if abs(value_ms) < 1000 else f"{number(value_ms / 1000)} s"


def of_step(cost: Cost) -> str:
    """`10.6 of 13.1 ms a step`."""
    return f"{number(cost.ms)} of {number(cost.step_ms)} ms a step"


def percent(share: float) -> str:
    """`63 %`; below ten per cent with one digit."""
    value = share * 100
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def plural(n: int, noun: str) -> str:
    """`1 worker`, `4 workers`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def does(n: int, verb: str) -> str:
    """`4 workers make`, `1 worker makes`: the verb for a count."""
    return f"{verb}s" if n == 1 else verb


def size(n_bytes: float) -> str:
    """Decimal units: `77.1 MB`, `12 kB`."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= factor:
            return f"{number(n_bytes / factor)} {unit}"
    return f"{n_bytes:.0f} bytes"


def number(value: float) -> str:
    """Three significant digits at most, two below one: `1,512`, `147`, `10.6`, `0.24`."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 0.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
