"""What is made of a public script's row: is it right, and the tables of all of them.

`public_scripts.py` measures rows, and stores them; `outside_page.py` judges stored ones.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from claimed import POINTS, Claim, bound_share, claimed_input, together, verdict_wrong
from public_cases import CASES, Case
from public_truth import Ended, InputTruth, Timing

DECIDES = 0.15  # beyond so much noise of both a share that agrees says nothing
KEPT = 0.15  # a promise is kept where the change gives what was said within this
KEPT_WORDS = {True: "yes", False: "**no**", None: "too short to tell"}
# That a step may be off by the script's own meter. Chosen, not derived: a meter counts the time
# between two lines over the steps between them, with whatever else is done; and the runs are two.
METER = 0.25
OF_TRUTH = re.compile(r"false \w+$|bound: input, not |no verdict$|input [+-]\d+ points$")
OURS_BROKE = re.compile(r"defect of loaderdoctor|File \".*/loaderdoctor/", re.IGNORECASE)


def said_by(report: dict[str, Any]) -> dict[str, Any]:
    ablation = report["ablation"] or {}
    seen = ablation.get("seen_ms") or {}
    claim = claimed_input(report)
    wall_ms = (report["step"] or {}).get("wall_ms")
    return {
        "bound": report["verdict"]["bound"],
        "severity": report["verdict"]["severity"],
        "summary": report["verdict"]["summary"],
        "step_ms": wall_ms,
        "bound_share": bound_share(report),
        "input": (report["shares"] or {}).get("input"),
        "claim": asdict(claim) if claim is not None else None,
        "n_rounds": ablation.get("n_rounds"),
        "wait_ms": (seen.get("wait") or [None])[0],
        "findings": [f"{f['kind']} {f['severity']}" for f in report["findings"]],
        "warnings": [w["kind"] for w in report["warnings"]],
        "advice": [r["summary"] for r in report["recommendations"]][:3],
        "promises": [
            {k: r.get(k) for k in ("setting", "to", "measured_step_ms", "predicted_step_ms")}
            for r in report["recommendations"]
        ],
    }


def kept(advice: dict[str, Any], runs: dict[str, list[Timing]]) -> dict[str, Any]:
    """What following it gave, and whether that is what was promised; None: too short to tell.

    What it gave lies between `by_hand_ms` and `by_hand_most_ms`: batches made ahead of the run.
    """
    before = statistics.mean(one.step_ms for one in runs["plain"])
    after = statistics.mean(one.step_ms for one in runs["changed"])
    most = statistics.mean(one.most_ms for one in runs["changed"])
    promised = advice["promised_ms"] or math.inf
    ok = after * (1 - KEPT) <= promised <= most * (1 + KEPT)
    known = not ok or most <= after * (1 + KEPT)
    return {
        "by_hand_before_ms": before,
        "by_hand_ms": after,
        "by_hand_most_ms": most,
        "kept": ok if known else None,
    }


def meters_in(case: Case, output: str) -> dict[str, float] | None:
    """What the script printed of itself: the mean of its steps but the first few, ms."""
    if case.meters is None:
        return None
    found = {}
    for name, pattern in (("step_ms", case.meters.step), ("wait_ms", case.meters.wait)):
        if pattern is None:
            continue
        values = [float(value) for value in re.findall(pattern, output)]
        if len(values) < 3:
            return None
        each = statistics.mean(values[min(5, len(values) // 2) :])
        found[name] = 1e3 * case.meters.unit_s * each
    return found


def why_wrong(
    case: Case, row: dict[str, Any], truth: InputTruth | None, theirs: Ended | None, ours: Ended
) -> list[str]:
    """What is not right; nothing: all is."""
    wrong = []
    if theirs is not None and theirs.code not in (None, 0):
        return [f"the script itself fails here: {last_line(theirs.output)}"]
    if OURS_BROKE.search(ours.output):
        wrong.append("a defect of loaderdoctor is told")
    if case.refuses and ours.code == 1 and "said" not in row:
        if case.refuses not in last_line(ours.output):
            wrong.append(f"not told why: {last_line(ours.output)}")
        return wrong
    if ours.code != 0 or "said" not in row:
        wrong.append(f"exit code {ours.code}: {last_line(ours.output)}")
    if "said" not in row:
        return wrong
    said = row["said"]
    if case.own_loop:
        if said["bound"] in ("input", "copy"):
            wrong.append("called input- or copy-bound, but its batches come from no loader")
        theirs_ms = (row.get("meters") or {}).get("step_ms")
        if theirs_ms is None:
            if case.meters is not None:
                wrong.append("no truth: its own meter printed nothing")
        elif abs(said["step_ms"] / theirs_ms - 1) > METER:
            wrong.append(f"step {said['step_ms']:.1f} ms, by its own meter {theirs_ms:.1f}")
        return wrong
    if truth is None:
        return [*wrong, "no truth: no loop was seen"]
    return wrong + against(said, truth.share, truth.noise)


def against(said: dict[str, Any], share: float, noise: float) -> list[str]:
    """What of the verdict a truth with this noise does not allow, and how far the share is off."""
    wrong = verdict_wrong(said, share, noise)
    off = off_by(said, share, noise_of(said, share, noise))
    return wrong if off is None else [*wrong, off]


def off_by(said: dict[str, Any], share: float, noise: float) -> str | None:
    off = (said["input"] or 0.0) - share
    return f"input {100 * off:+.0f} points" if abs(off) > max(POINTS, noise) else None


def judged_anew(row: dict[str, Any]) -> dict[str, Any]:
    """A stored row as it is judged now, beside the same truth."""
    own_loop = any(case.own_loop for case in CASES if case.name == row["name"])
    if not judged(row) or own_loop or (row.get("exit") or {}).get("theirs"):
        return row
    kept_reasons = [why for why in row["why"] if not OF_TRUTH.match(why)]
    truth = row["truth"]
    return row | {"why": kept_reasons + against(row["said"], truth["share"], truth["noise"])}


def noise_of(said: dict[str, Any], share: float, noise: float) -> float:
    """Of both: the truth's, and how far what is claimed reaches towards it."""
    claim = said.get("claim")
    return together(noise, Claim(**claim).reaches(share) if claim else 0.0)


def undecided(row: dict[str, Any]) -> str | None:
    """Why a row with nothing wrong in it is not right either; None: it is, or something is wrong.

    By so wide a claim of ours any share agrees: how far it is off a sharp truth alone is told.
    """
    if row["why"] or not judged(row):
        return None
    said, share, noise = row["said"], row["truth"]["share"], row["truth"]["noise"]
    if noise_of(said, share, noise) <= DECIDES:
        return None
    alone = off_by(said, share, noise) if noise <= DECIDES else None
    return "decides nothing" + (f" (by the truth alone: {alone})" if alone else "")


def last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "")[:200]


HEADS = (
    "script", "ms a step: truth / said", "input %: truth", "said [claimed]",
    "wait, ms: its meters / stopwatch / said", "verdict", "findings", "",
)  # fmt: skip


def cells_of(row: dict[str, Any]) -> list[str]:
    def number(value: float | None, scale: float = 1.0) -> str:
        return "–" if value is None else f"{scale * value:.1f}"

    truth, said, meters = row.get("truth") or {}, row.get("said") or {}, row.get("meters") or {}
    plain = (row.get("runs") or {}).get("plain") or []
    step_ms = truth.get("step_ms") or (plain[0]["step_ms"] if plain else meters.get("step_ms"))
    verdict = f"{said['bound']} {said['severity']}" if said else "–"
    why = "; ".join(row["why"])
    claim = said.get("claim") or {}
    between = f" [{100 * claim['low']:.1f}, {100 * claim['high']:.1f}]" if claim else ""
    return [
        f"`{row['name']}`",
        f"{number(step_ms)} / {number(said.get('step_ms'))}",
        f"{number(truth.get('share'), 100)} ± {number(truth.get('noise'), 100)}",
        f"{number(said.get('input'), 100)}{between}",
        " / ".join(number(of.get("wait_ms")) for of in (meters, truth, said)),
        verdict,
        ", ".join(kind.split()[0] for kind in said.get("findings", ())) or "–",
        f"**{why}**" if why else undecided(row) or "ok",
    ]


def judged(row: dict[str, Any]) -> bool:
    """Whether its input share is compared with a truth."""
    return (row.get("truth") or {}).get("share") is not None and "said" in row


def n_right(rows: Sequence[dict[str, Any]]) -> int:
    return sum(not row["why"] and undecided(row) is None for row in rows)


def print_tables(rows: list[dict[str, Any]]) -> None:
    """Markdown, in the order of the cases."""
    order = [case.name for case in CASES]
    rows = sorted(rows, key=lambda row: order.index(row["name"]))
    print("| " + " | ".join(HEADS) + " |")
    print("|---|---:|---:|---:|---:|---|---|---|")
    for row in rows:
        print("| " + " | ".join(cells_of(row)) + " |")
    n_judged, n_open = sum(map(judged, rows)), sum(undecided(row) is not None for row in rows)
    print(
        f"\n{len(rows)} scripts: {n_right(rows)} right, {n_open} decide nothing, "
        f"{sum(bool(row['why']) for row in rows)} wrong; {n_judged} are judged beside a truth."
    )
    advised = [row for row in rows if row.get("advice")]
    if advised:
        print("\n| script | option | said: now → promised, ms | by hand, ms | kept |")
        print("|---|---|---:|---:|---|")
    for row in advised:
        of = row["advice"]
        how = "measured" if of["measured"] else "at best"
        print(
            f"| `{row['name']}` | {of['option']} | {of['now_ms']:.1f} → "
            f"{of['promised_ms'] or 0:.1f} ({how}) | "
            f"{of['by_hand_before_ms']:.1f} → {of['by_hand_ms']:.1f} to "
            f"{of['by_hand_most_ms']:.1f} | "
            f"{KEPT_WORDS[of['kept']]} |"
        )
