"""The verdict of a trace or of a run, with what lowers its certainty."""

from __future__ import annotations

from loaderdoctor.attribution.shares import Bound
from loaderdoctor.attribution.verdict import VerdictSeverity, verdict_from_shares
from loaderdoctor.facts import Facts, TraceFacts

# Fewer steps say nothing about a mean whose noise is a few percent.
MIN_STEPS = 5


def judge_trace(trace: TraceFacts) -> tuple[Bound, VerdictSeverity]:
    """From the trace alone. Without step marks, or with too few steps: unknown.

    Where no loader was recorded, silence at the beginning of steps counts as host but may be
    waiting for batches: a host verdict that rests on it is uncertain.
    """
    low = None
    if trace.unmarked_wait_ms is not None and trace.wall_ms > 0:
        low = {"host": (trace.host_exposed_ms - trace.unmarked_wait_ms) / trace.wall_ms}
    return verdict_from_shares(trace.shares, low, enough_steps=trace.n_steps >= MIN_STEPS)


def judge_run(facts: Facts) -> tuple[Bound, VerdictSeverity]:
    """From plain windows and ablation where they ran, else from the trace."""
    if facts.step is None or facts.step.n_steps < MIN_STEPS:
        n_steps = facts.step.n_steps if facts.step is not None else 0
        if facts.trace is not None and facts.trace.n_steps >= MIN_STEPS and n_steps == 0:
            return judge_trace(facts.trace)
        return "unknown", "none"
    return verdict_from_shares(facts.shares, facts.shares_low)
