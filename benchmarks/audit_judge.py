"""A report beside the truth of its loop: what was said, whether that is right, and why not.

Pure: a report.json as it was read and a `Truth` come in, a `Row` goes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from audit_loops import AuditLoop
from audit_truth import Truth

POINTS = 0.03  # a share may be off by this or by the noise
HIGH, MODERATE = 0.20, 0.05
WALL = 0.10  # the wall time may be off by this part of it or by the noise
# A truth less certain than this decides nothing: the machine was too busy for it.
MOST_NOISE = 0.10
UNDECIDED = "truth uncertain"
# Findings that can't be true of these loops, or only where the loader or the copy costs this much.
NEVER = (
    "iterator-recreated", "main-guard-missing", "sampler-bound", "idle-workers", "slow-rank",
    "data-parallel", "cold-storage", "many-small-files",
)  # fmt: skip
OF_INPUT = (
    "loader-in-main-process", "too-few-workers", "cpu-saturated-workers", "storage-bound-workers",
    "overhead-bound-loader", "worker-startup-each-epoch", "head-of-line-stall", "collate-bound",
    "dataset-format-bound", "batch-page-faults", "pin-thread-bound", "gil-contention",
    "loop-slowed-by-workers",
)  # fmt: skip
OF_COPY = ("pageable-copy", "blocking-copy", "copy-not-overlapped", "many-small-copies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a report says; shares are of all the time of a training step."""

    bound: str
    severity: str
    wall_ms: float | None
    shares: dict[str, float | None]  # input, copy
    noise: dict[str, float]  # half the interval of each
    high: tuple[str, ...]  # kinds of findings
    kinds: tuple[str, ...]
    summary: str


def said_by(report: dict[str, Any]) -> Said:
    """What counts of a report; where it knows nothing of the whole wall, the step is all."""
    step_ms = report["step"]["wall_ms"]
    whole_ms = (report.get("wall") or {}).get("total_ms") or step_ms
    scale = step_ms / whole_ms if step_ms and whole_ms else 1.0
    ablation = report["ablation"] or {}
    shares, noise = {}, {}
    for part in ("input", "copy"):
        share = (report["shares"] or {}).get(part)
        shares[part] = share * scale if share is not None else None
        interval = (ablation.get("ci_ms") or {}).get(f"{part}_ms")
        noise[part] = (interval[1] - interval[0]) / 2 / whole_ms if interval and whole_ms else 0.0
    findings = report["findings"]
    return Said(
        bound=report["verdict"]["bound"],
        severity=report["verdict"]["severity"],
        wall_ms=whole_ms,
        shares=shares,
        noise=noise,
        high=tuple(f["kind"] for f in findings if f["severity"] == "high"),
        kinds=tuple(f["kind"] for f in findings),
        summary=report["verdict"]["summary"],
    )


def shares_by_bound(truth: Truth) -> dict[str, float]:
    """The most that may be called each bound: what can be told two ways counts for both.

    The loop's work between epochs is host or outside the steps; what is `either` is computing or
    host, `either_copy` copy or what it names.
    """
    of, hidden = truth.shares, truth.either_copy

    def most(name: str) -> float:
        return of[name] + of["between"] + min(hidden[name] + hidden["between"], truth.hidden)

    return {
        "input": of["input"],
        "copy": of["copy"],
        "host": most("host") + truth.either,
        "outside": most("outside"),
    }


def least_largest(truth: Truth) -> float:
    """The largest cause, the copy divided among what it may be called so that this is smallest."""
    of, hidden = truth.shares, truth.either_copy
    low = max(share for cause, share in of.items() if cause != "copy")
    high = max(low, of["copy"])
    for _ in range(40):
        level = (low + high) / 2
        given = sum(min(part, level - of[cause]) for cause, part in hidden.items())
        low, high = (low, level) if of["copy"] - given <= level else (level, high)
    return high


def right_bounds(truth: Truth) -> tuple[str, ...]:
    """Every verdict that is right: the largest cause, all as large within the noise.

    `compute` where no cause reaches its threshold: 5 % for input and copy, 20 % for what is the
    loop's own.
    """
    most = shares_by_bound(truth)
    of = truth.shares
    largest = least_largest(truth)
    slack = {name: max(POINTS, truth.noise[name]) for name in most}
    right = [
        name
        for name, share in most.items()
        if share >= MODERATE - slack[name] and share >= largest - slack[name]
    ]
    thresholds = {"input": MODERATE, "copy": MODERATE, "host": HIGH, "outside": MODERATE}
    own = {**of, "host": of["host"] + of["between"]}
    if all(own[name] < at + slack[name] for name, at in thresholds.items()):
        right.append("compute")
    return tuple(right)


def too_noisy(truth: Truth) -> str:
    """Why the truth itself is too uncertain to judge by; empty: it is not."""
    noise = max(truth.noise.values())
    return f"{UNDECIDED}: ± {100 * noise:.0f} points" if noise > MOST_NOISE else ""


def does_not_confirm(truth: Truth, said: Said) -> str:
    """Why a truth that allows an alarm does not confirm it.

    Its noise reaches below what the alarm needs, or the share that was said is beyond the noise of
    both.
    """
    needed = HIGH if said.severity == "high" else MODERATE
    share, noise = truth.shares[said.bound], truth.noise[said.bound]
    if share - noise < needed - POINTS:
        return f"{UNDECIDED}: {100 * share:.0f} ± {100 * noise:.0f} %"
    most, ours = shares_by_bound(truth)[said.bound], said.shares.get(said.bound) or 0.0
    if ours - most > max(POINTS, noise + said.noise.get(said.bound, 0.0)):
        return f"false alarm: {said.bound} {100 * (ours - most):+.0f} points"
    return ""


def why_of(loop: AuditLoop, truth: Truth, said: Said) -> list[str]:
    """What is wrong with a row, be it the truth's noise; nothing: the report is right."""
    noisy = too_noisy(truth)
    return [noisy] if noisy else why_wrong(loop, truth, said)


def why_wrong(loop: AuditLoop, truth: Truth, said: Said) -> list[str]:
    """What of the report is not so; nothing: it is right."""
    wrong = []
    right, most = right_bounds(truth), shares_by_bound(truth)
    if said.bound not in right:
        wrong.append(f"bound: {' or '.join(right)}")
    needed = {"high": HIGH, "moderate": MODERATE}.get(said.severity)
    if needed is not None and said.bound in most:
        slack = max(POINTS, truth.noise[said.bound] + said.noise.get(said.bound, 0.0))
        if most[said.bound] < needed - slack:
            wrong.append(f"false {said.severity}")
    for part, share in said.shares.items():
        ours, true = share or 0.0, truth.shares[part]
        if part == "copy":  # what may be called either is no error
            true = min(true, max(ours, true - truth.hidden))
        off = ours - true
        if abs(off) > max(POINTS, truth.noise[part] + said.noise[part]):
            wrong.append(f"{part} {100 * off:+.0f} points")
    if said.wall_ms is None:
        wrong.append("no wall time")
    elif abs(said.wall_ms / truth.wall_ms - 1) > max(WALL, 2 * truth.noise["wall"]):
        wrong.append(f"wall {said.wall_ms:.1f} ms")
    wrong += false_findings(loop, truth, said)
    return wrong


def false_findings(loop: AuditLoop, truth: Truth, said: Said) -> list[str]:
    """Findings that are false at the severity that they are given."""
    never = set(NEVER)
    if loop.shapes != "plan":
        never.add("recompilation")
    false = [f"false {kind}" for kind in said.kinds if kind in never]
    for kinds, part in ((OF_INPUT, "input"), (OF_COPY, "copy")):
        slack = max(POINTS, truth.noise[part] + said.noise[part])
        if truth.shares[part] < HIGH - slack:
            false += [f"false high {kind}" for kind in said.high if kind in kinds]
    return false


def false_own_work(loop: AuditLoop, said: Said) -> list[str]:
    """Why a loop is not bound by work of its own, where that is said to matter much; else empty.

    What was built into a step is known, and the step's length is taken from the report: nothing
    else is timed for it. On a CPU all of it takes longer alike beside busy processes.
    """
    if said.bound not in ("host", "outside") or said.severity not in ("moderate", "high"):
        return []
    built_in = loop.within_host_ms + loop.plan_ms + loop.between_ms + loop.outside_ms
    whole_ms = said.wall_ms or 0.0
    if loop.device == "cpu":
        made_ms = 0.0 if loop.workers else loop.n_loaders * loop.batch_ms
        whole_ms = min(whole_ms, built_in + loop.compute_ms + made_ms)
    share = built_in / whole_ms if whole_ms else 0.0
    needed = HIGH if said.severity == "high" else MODERATE
    return [f"false {said.severity} {said.bound}"] if share < needed - POINTS else []


def alarm_of(said: Said) -> bool:
    """Whether a compute-bound loop is called input- or copy-bound, moderately or more."""
    return said.bound in ("input", "copy") and said.severity in ("moderate", "high")
