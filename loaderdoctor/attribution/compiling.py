"""What torch.compile made while the loop was long warm -> facts."""

from __future__ import annotations

from collections.abc import Sequence

from loaderdoctor.facts.loop import CompileFacts
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.units import NS_PER_MS


def compile_facts(windows: Sequence[WindowDone]) -> CompileFacts | None:
    """Over all these windows; None where torch.compile made nothing in them."""
    records = [w.compiles for w in windows if w.compiles is not None]
    n_steps = sum(w.n_steps for w in windows)
    if not records or not n_steps:
        return None
    last = next((r for r in reversed(records) if r.reason is not None), records[-1])
    return CompileFacts(
        n=sum(r.n for r in records),
        n_steps=n_steps,
        ms_per_step=sum(r.ns for r in records) / NS_PER_MS / n_steps,
        reason=last.reason,
        function=last.function,
    )
