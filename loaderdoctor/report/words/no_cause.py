"""An input- or copy-bound verdict without a cause: what was looked at, and what is missing."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import Bound
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import all_batches_ms, all_receiving_ms, rest_ms
from loaderdoctor.findings.exposure import num_workers


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
