"""Prints what each script was told, after the suite: script, verdict, findings, measured gain."""

from __future__ import annotations

from typing import Any

from tests.scripts.running import TABLE


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not TABLE:
        return
    rows = [("script", ("verdict", "findings", "gain")), *TABLE.items()]
    widths = [max(len(name) for name, _ in rows), *(max(len(r[i]) for _, r in rows) for i in (0,))]
    terminalreporter.section("scripts under diagnose")
    for name, (verdict, findings, gain) in rows:
        terminalreporter.write_line(
            f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {gain:>6}  {findings}"
        )
