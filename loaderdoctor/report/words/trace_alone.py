"""What must be known of a verdict that rests on a trace and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE, Bound, VerdictSeverity
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import trace_alone


def caveats(bound: Bound, severity: VerdictSeverity, facts: Facts) -> str:
    """Sentences for behind the verdict's own; empty where plain windows bear it, or none is due."""
    if facts.trace is None or not trace_alone(facts) or bound == "unknown":
        return ""
    return " ".join(_sentences(bound, severity, facts.trace))


def _sentences(bound: Bound, severity: VerdictSeverity, trace: TraceFacts) -> Iterator[str]:
    host = trace.shares.host or 0.0
    if bound == "compute" and severity == "uncertain":
        yield (
            f"Of the host's {fmt.share(host)} little need be left where nothing is recorded: "
            "recording makes operators slow and kernels not, and launching fits within the "
            "kernels' time. `loaderdoctor diagnose` measures the loop without it."
        )
    elif bound == "host" and severity == "moderate":
        yield (
            "How much of that is the profiler's own the trace does not tell: "
            "`loaderdoctor diagnose` measures the loop without it."
        )
    slowed = bound == "host" or (bound == "compute" and severity == "uncertain")
    if slowed and trace.fetching.kind in ("multi-process", "mixed"):
        yield (
            "Workers that keep up with the recorded loop may be too slow for it where nothing is "
            "recorded."
        )
    if trace.few_steps:
        yield _few(bound, trace)
    if trace.host.profiler is not None and trace.host.profiler.has_stacks:
        waits = (trace.shares.input or 0.0) >= MODERATE_SHARE
        yield (
            "Recording Python stacks slows the loop and no worker: what it waits for its loader is "
            f"understated{'' if waits else ', and may be more than nothing'}."
        )


def _few(bound: Bound, trace: TraceFacts) -> str:
    n, estimate = fmt.count(trace.n_steps, "step"), trace.few_steps.get(bound)
    is_one = "is" if trace.n_steps == 1 else "are"
    if estimate is None or not estimate.bounded:
        return f"{n} {is_one} few: how much others differ is not known. Record more of them."
    return (
        f"{n} {is_one} few: by them {bound} is {fmt.share(estimate.low)} to "
        f"{fmt.share(estimate.high)} of the loop's steps. Record more of them."
    )
