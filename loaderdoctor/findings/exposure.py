"""What the step pays for a part: the exposure every rule decides on, and the severity it earns.

Structure alone is not a finding: a loader without workers, a pageable copy or a missing flag is a
fault only where the step waits for it. Ablation is asked first, because it measures what the
user would gain; without it the best shares, then those of the trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import (
    HIGH_SHARE,
    MODERATE_MIN_LOW_SHARE,
    MODERATE_SHARE,
    VerdictSeverity,
    shown_severity,
)
from loaderdoctor.facts.trace import CopyFacts, silent_behind_copies_ms
from loaderdoctor.facts.trace import lead_lost_ms as lead_lost_of
from loaderdoctor.findings import EvidenceValue, Severity
from loaderdoctor.instrument.wire.records import LoaderRecord

# A blocking call holds the thread at least as long as the device copies; a non-blocking one
# returns within a small part of it.
MIN_BLOCKED_PART = 0.5

Part = Literal["input", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Exposed time of one part of the step, per step, and what it is a share of."""

    ms: float
    share: float  # ms / step_ms, 0…1
    low_share: float | None  # lower 95 % bound from ablation; None: a single trace, no interval
    step_ms: float

    @property
    def established(self) -> bool:
        """Whether the cost counts: moderate or more, and not just by a noisy point estimate."""
        if self.share < MODERATE_SHARE:
            return False
        return (
            self.share >= HIGH_SHARE
            or self.low_share is None
            or self.low_share >= MODERATE_MIN_LOW_SHARE
        )

    def part(self, ms: float) -> Cost:
        """The part of this cost that one cause explains: never more than the whole."""
        ms = min(max(ms, 0.0), self.ms)
        scale = ms / self.ms if self.ms > 0 else 0.0
        low = self.low_share * scale if self.low_share is not None and scale > 0 else self.low_share
        return Cost(ms=ms, share=self.share * scale, low_share=low, step_ms=self.step_ms)

    @property
    def of_step(self) -> str:
        """As a sentence has it: `10.6 of 13.1 ms a step`."""
        return f"{self.ms_of_step} a step"

    @property
    def ms_of_step(self) -> str:
        """As a difference: `10.6 of 13.1 ms`."""
        return f"{fmt.number(self.ms)} of {fmt.ms(self.step_ms)}"

    @property
    def as_input(self) -> dict[str, EvidenceValue]:
        """The figures of a cost of getting batches, as findings give them."""
        return {"input_ms_per_step": self.ms, "step_ms": self.step_ms}

    @property
    def severity(self) -> Severity:
        """High, moderate or a hint by the share; uncertain where the interval does not bear it."""
        return severity(self.share, self.low_share)


def severity(share: float, low_share: float | None = None) -> Severity:
    """Severity of a share of the step, given the lower end of its interval where there is one."""
    if share < MODERATE_SHARE:
        return Severity.LOW
    return Severity(shown_severity(share, low_share))


def exposed(facts: Facts, part: Part) -> Cost | None:
    """What `input` or `copy` costs the step; None where nothing measured it."""
    step_ms = facts.step_ms
    if step_ms is None or step_ms <= 0:
        return None
    low = (facts.shares_low or {}).get(part)
    share = facts.share(part)
    if share is None and facts.trace is not None:
        share = facts.trace.shares.as_dict()[part]
    if share is None:
        return None
    if part == "input" and _no_fetch_seen(facts):
        return None
    if part == "copy" and trace_alone(facts):
        share += (lead_lost_ms(facts) - unwaited_ms(facts)) / step_ms
    return Cost(
        ms=share * step_ms,
        share=share,
        low_share=low if low is None or math.isfinite(low) else -1.0,
        step_ms=step_ms,
    )


def input_cost(facts: Facts) -> Cost | None:
    """The exposed cost of getting batches where it is established, else None."""
    cost = exposed(facts, "input")
    return cost if cost is not None and cost.established else None


def copy_cost(facts: Facts) -> Cost | None:
    """The exposed cost of host-to-device copies where it is established, else None."""
    cost = exposed(facts, "copy")
    return cost if cost is not None and cost.established else None


def is_open(severity: VerdictSeverity, facts: Facts) -> bool:
    """Whether the noise leaves the verdict open: an uncertain one, or a health that may be none.

    However little is certain of the loader's part: one round of 30 of 100 ms, -40 to 97, in a loop
    seen to wait 2 ms, shows those 2 ms and says nothing of the rest.
    """
    if severity == "uncertain":
        return True
    part = facts.ablation.share("input") if facts.ablation is not None else None
    if severity != "none" or part is None:
        return False
    return part.low < MODERATE_SHARE and part.high >= HIGH_SHARE


def loader_is_open(severity: VerdictSeverity, facts: Facts) -> bool:
    """The same of what the loader costs, whatever the verdict is of.

    `super_resolution` validates for 18 % of its time, and three rounds left 1 to 43 % of its step
    to the loader: runs apart say 31 % ± 10.
    """
    return is_open(severity, facts) or is_open("none", facts)


def host_share(facts: Facts) -> float | None:
    """The `host` share of the best estimate, else of the trace."""
    share = facts.share("host")
    if share is None and facts.trace is not None:
        share = facts.trace.shares.host
    return share


def copies_from(facts: Facts, source: str) -> tuple[CopyFacts, ...]:
    """The trace's host-to-device copies from this kind of memory; empty where not recorded."""
    copies: Iterable[CopyFacts] = facts.trace.copies if facts.trace is not None else ()
    return tuple(c for c in copies if c.source == source)


def explained_by(facts: Facts, cost: Cost, copies: Iterable[CopyFacts]) -> Cost:
    """The part of the copy cost that these copies pay, as the trace divides it among all."""
    alone = trace_alone(facts)
    silent = alone and facts.trace is not None and silent_behind_copies_ms(facts.trace) > 0

    def ms(copies: Iterable[CopyFacts]) -> float:
        return sum(
            c.exposed_ms_per_step
            + (c.idle_after_ms_per_step - c.unwaited_ms_per_step if alone else 0.0)
            - (c.silent_after_ms_per_step if silent else 0.0)
            for c in copies
        )

    all_ms, mine_ms = ms(facts.trace.copies if facts.trace is not None else ()), ms(copies)
    return cost.part(cost.ms * mine_ms / all_ms) if all_ms > 0 else cost.part(0.0)


def bandwidth_gb_per_s(copies: Iterable[CopyFacts]) -> float | None:
    """Bytes over device time of these copies; None where none ran."""
    copies = tuple(copies)
    busy_ms = sum(c.busy_ms_per_step for c in copies)
    n_bytes = sum(c.bytes_per_step for c in copies)
    return n_bytes / busy_ms / 1e6 if busy_ms > 0 else None


def has_accelerator(facts: Facts) -> bool:
    """Whether the loop has one: by its trace, else by the machine."""
    if facts.trace is not None and facts.trace.has_accelerator:
        return True
    return facts.machine is not None and facts.machine.device_name is not None


def cold_ms(facts: Facts) -> float:
    """CPU time of the page faults that the loop took at first and no longer while settings ran.

    0 with an accelerator, behind which they may be hidden.
    """
    ablation, machine = facts.ablation, facts.machine
    if ablation is None or machine is None or machine.fault_us is None or has_accelerator(facts):
        return 0.0
    return (ablation.shed_faults_per_step or 0.0) * machine.fault_us / 1e3


def loader_id(facts: Facts) -> str | None:
    """The loader a finding about fetching belongs to."""
    return facts.main_loader.id if facts.main_loader is not None else None


def num_workers(facts: Facts) -> int | None:
    """Workers of the loader that feeds the step; None where neither run nor trace says.

    Where several feed it, of the one whose batches are the dearest: `facts.workers` is about it.
    """
    loader, feeding = facts.main_loader, facts.feeding
    if facts.workers is not None and len(feeding) > 1:
        loader = next((x for x in feeding if x.id == facts.workers.loader), loader)
    if loader is not None and loader.settings.num_workers is not None:
        return loader.settings.num_workers
    if facts.workers is not None:
        return facts.workers.n_workers
    if facts.trace is not None and facts.trace.fetching.kind == "single-process":
        return 0
    return None


def pool_size(facts: Facts) -> int | None:
    """Workers of all loaders that feed the step together."""
    if len(facts.feeding) < 2:
        return num_workers(facts)
    return sum(x.settings.num_workers or 0 for x in facts.feeding)


def spawned_by(facts: Facts) -> str | None:
    """How workers start that import the script again (spawn, forkserver); None: they don't."""
    loader, machine = facts.main_loader, facts.machine
    default = machine.start_method if machine is not None else None
    method = (loader.settings.start_method if loader is not None else None) or default
    return method if method in ("spawn", "forkserver") else None


def needs_guard(facts: Facts) -> bool:
    """Whether workers need a main guard that the script lacks."""
    loader = facts.main_loader
    missing = loader is not None and loader.safety.guard_missing is not None
    return missing and spawned_by(facts) is not None


def started_anew(facts: Facts) -> tuple[LoaderRecord, ...]:
    """Loaders of the step whose workers end with each epoch."""
    return tuple(
        x for x in facts.feeding if x.settings.num_workers and not x.settings.persistent_workers
    )


def in_background(facts: Facts) -> bool:
    """Whether a background thread of the training process fetches the batches."""
    loader = facts.main_loader
    return loader is not None and loader.settings.background in ("host", "device")


def trace_alone(facts: Facts) -> bool:
    """Whether a trace is all there is: no plain window, no ablation."""
    return facts.step is None and facts.ablation is None and facts.trace is not None


def lead_lost_ms(facts: Facts) -> float:
    """Idle time, ms a step, that blocking copies leave by waiting for all the work before them."""
    return lead_lost_of(facts.trace) if facts.trace is not None else 0.0


def unwaited_ms(facts: Facts) -> float:
    """Exposed copies, ms a step, that nothing waited for: no change of theirs gains it."""
    copies = facts.trace.copies if facts.trace is not None else ()
    return sum(c.unwaited_ms_per_step for c in copies)


def _no_fetch_seen(facts: Facts) -> bool:
    """A trace alone without one loader event: its input share means nothing."""
    return trace_alone(facts) and facts.trace is not None and not facts.trace.fetching.recorded
