"""What must be known beside a verdict: no cause was found, or it rests on a trace alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE, Bound, VerdictSeverity
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import all_batches_ms, all_receiving_ms, rest_ms
from loaderdoctor.findings.exposure import num_workers, trace_alone
from loaderdoctor.findings.model import Finding, Kind


def no_cause(bound: Bound, facts: Facts) -> str:
    """Why no cause is named, in a sentence; empty for what neither loader nor copies cost."""
    if bound == "input":
        return _of_loader(facts)
    return _of_copies(facts) if bound == "copy" else ""


def _of_loader(facts: Facts) -> str:
    workers, n = facts.workers, num_workers(facts)
    if facts.step is None and workers is None:
        return (
            "Why is not told by a trace alone: how batches are made is recorded where the loop "
            "runs (loaderdoctor diagnose)."
        )
    made_ms = all_batches_ms(facts)
    if workers is None or made_ms is None:
        return "Why is not known: how its batches are made was not recorded."
    seen = [f"making a batch takes {fmt.ms(made_ms)}{' in a worker' if n else ''}"]
    received_ms, rest, wait_ms = all_receiving_ms(facts), rest_ms(facts), None
    if facts.step is not None:
        wait_ms = facts.step.raw_wait_ms
    if received_ms is not None:
        seen.append(f"receiving it {fmt.ms(received_ms)}")
    if rest is not None:
        seen.append(f"the rest of the step {fmt.ms(rest)}")
    if wait_ms is not None:
        seen.append(f"the loop waits {fmt.ms(wait_ms)} in its fetches")
    if n and workers.idle_share is not None:
        seen.append(
            f"{fmt.count(n, 'worker')} {fmt.verb(n, 'idle')} "
            f"{fmt.share(workers.idle_share)} of the time"
        )
    return f"No single cause stands out: {', '.join(seen)}."


def _of_copies(facts: Facts) -> str:
    copies = facts.trace.copies if facts.trace is not None else ()
    if not copies:
        return "Why is not known: no copy to the device was recorded one by one."
    n, n_bytes = sum(c.n_per_step for c in copies), sum(c.bytes_per_step for c in copies)
    busy_ms = sum(c.busy_ms_per_step for c in copies)
    return (
        f"No single cause stands out: {fmt.number(n)} copies a step of "
        f"{fmt.n_bytes(round(n_bytes))} together keep the device's copy engine busy for "
        f"{fmt.ms(busy_ms)}."
    )


def stands_still(facts: Facts, findings: Iterable[Finding]) -> str | None:
    """Instead of a part that may be nothing: silence that a thread of the loader may explain."""
    held = next((f for f in findings if f.kind is Kind.PIN_THREAD_BOUND), None)
    if held is None or not trace_alone(facts):
        return None
    computes = f"Computing takes {fmt.share(facts.share('compute'))} of the step."
    return f"{computes} {held.summary} `loaderdoctor diagnose train.py` tells which it is."


def caveats(bound: Bound, severity: VerdictSeverity, facts: Facts) -> str:
    """Sentences for behind the verdict's own; empty where plain windows bear it, or none is due."""
    if facts.trace is None or not trace_alone(facts) or bound == "unknown":
        return ""
    elsewhere = facts.command == "analyze"  # else that is what was asked for, as far as it can be
    return " ".join(_sentences(bound, severity, facts.trace, elsewhere=elsewhere))


def _sentences(
    bound: Bound, severity: VerdictSeverity, trace: TraceFacts, *, elsewhere: bool
) -> Iterator[str]:
    """`elsewhere`: whether `diagnose` could tell more."""
    host = trace.shares.host or 0.0
    measures = "`loaderdoctor diagnose` measures the loop without it."
    if bound == "compute" and severity == "uncertain":
        yield (
            f"Of the host's {fmt.share(host)} little need be left where nothing is recorded: "
            "recording makes operators slow and kernels not, and launching fits within the "
            f"kernels' time.{f' {measures}' if elsewhere else ''}"
        )
    elif bound == "host" and severity == "moderate":
        more = f": {measures}" if elsewhere else "."
        yield f"How much of that is the profiler's own the trace does not tell{more}"
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
