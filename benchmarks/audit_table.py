"""The table of an audit or of false alarms, from rows as `audit.py` writes them.

    python benchmarks/audit_table.py FILE.jsonl …     rows of several processes, judged anew

A row that has the times of its variants is judged by them again; one that has not stays as it is.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from audit_judge import UNDECIDED, Said, right_bounds, why_of
from audit_loops import AuditLoop
from audit_truth import Truth, truth_of

RIGHT_SHARE = 39 / 40


def main() -> int:
    lines = [line for name in sys.argv[1:] for line in Path(name).read_text().splitlines()]
    rows = {row["loop"]: judged_anew(row) for row in map(json.loads, lines)}
    ordered = [rows[name] for name in sorted(rows)]
    print_table(ordered, sys.stdout)
    print()
    audited = any("truth" in row and "before_ms" in row for row in ordered)
    return judged("audit" if audited else "false-alarms", ordered)


def judged_anew(row: dict[str, Any]) -> dict[str, Any]:
    """The same row by today's judgement."""
    if "before_ms" not in row or "said" not in row:
        return row
    loop = AuditLoop(**row["params"])
    runs = {name: ms + row["after_ms"][name] for name, ms in row["before_ms"].items()}
    truth, said = truth_of(loop, runs), Said(**row["said"])
    wrong = why_of(loop, truth, said)
    return row | truth_cells(truth) | {"ok": not wrong, "why": wrong}


def truth_cells(truth: Truth) -> dict[str, Any]:
    return {"truth": asdict(truth), "right": right_bounds(truth)}


def print_table(rows: list[dict[str, Any]], out: TextIO) -> None:
    """Markdown; shares in percent of all the time, truth before what was said."""
    heads = ("loop", "ms a step: truth / said", "right", "said", "input %", "copy %", "noise %")
    print("| " + " | ".join((*heads, "other truths %", "findings", "")) + " |", file=out)
    print("|---|---:|---|---|---:|---:|---:|---|---|---|", file=out)
    for row in rows:
        print("| " + " | ".join(cells_of(row)) + " |", file=out)


def cells_of(row: dict[str, Any]) -> list[str]:
    ok = "ok" if row["ok"] and not row["why"] else "; ".join(row["why"])
    name = f"`{row['loop']}` {row['told']}"
    said, truth = row.get("said"), row.get("truth")
    if said is None:
        return [name, *("–" for _ in range(8)), f"**{ok.splitlines()[-1] if ok else ''}**"]
    shares: dict[str, float] = truth["shares"] if truth else {}

    def pair(part: str) -> str:
        ours = said["shares"][part]
        true = f"{100 * shares[part]:.1f}" if truth else "–"
        return f"{true} / {'–' if ours is None else f'{100 * ours:.1f}'}"

    other = [f"{n} {100 * shares[n]:.0f}" for n in ("host", "outside", "between") if shares.get(n)]
    wall = "–" if said["wall_ms"] is None else f"{said['wall_ms']:.1f}"
    return [
        name,
        f"{truth['wall_ms']:.1f} / {wall}" if truth else f"– / {wall}",
        " or ".join(row["right"]) if truth else "compute",
        f"{said['bound']} {said['severity']}",
        pair("input"),
        pair("copy"),
        f"{100 * max(truth['noise'].values()):.1f}" if truth else "–",
        ", ".join(other) or "–",
        ", ".join(said["kinds"]) or "–",
        ok if row["ok"] else f"**{ok}**",
    ]


def judged(command: str, rows: list[dict[str, Any]]) -> int:
    """Prints what it came to; the exit code."""
    n_ok = sum(row["ok"] for row in rows)
    slow = statistics.median([row["took_s"] for row in rows if "took_s" in row] or [0.0])
    print(f"{n_ok} of {len(rows)} right; half of the diagnoses took {slow:.0f} s or more")
    if command == "false-alarms":
        confirmed = sum(bool(row["why"]) and row["ok"] for row in rows)
        print(f"{confirmed} alarms that separate runs confirm")
        return 0 if n_ok == len(rows) else 1
    said = [row for row in rows if "said" in row]
    verdicts = sum(
        not any(why.startswith(("bound", UNDECIDED)) for why in row["why"]) for row in said
    )
    high = [row["loop"] for row in rows if any("false high" in why for why in row["why"])]
    print(f"{verdicts} verdicts right; false ● high: {', '.join(high) or 'none'}")
    enough = verdicts >= RIGHT_SHARE * len(rows) and n_ok >= RIGHT_SHARE * len(rows)
    return 0 if enough and not high else 1


if __name__ == "__main__":
    sys.exit(main())
