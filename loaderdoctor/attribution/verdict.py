"""Which part bounds the step and how much that matters, with what lowers its certainty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from loaderdoctor.attribution.cpu import READY_IDLE_SHARE, others_cores
from loaderdoctor.attribution.identity import (
    host_bounds,
    idle_is_recordings,
    recording_hides_waits,
    without_profiler,
)
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import batch_memory_ms
from loaderdoctor.facts.loop import WallFacts
from loaderdoctor.facts.step import (
    HIGH_SHARE,
    MODERATE_SHARE,
    Bound,
    Shares,
    VerdictSeverity,
    shown_severity,
)
from loaderdoctor.facts.trace import TraceFacts, only_workers_help, silent_behind_copies_ms

# Fewer steps say nothing about a mean whose noise is a few percent.
MIN_STEPS = 5
MOST_OF_STEP = 0.5
# Other programs make every part longer, waits and validation too: beside them a part that goes
# before the host's needs twice what is moderate.
BESIDE_OTHERS_SHARE = 2 * MODERATE_SHARE
# Ties go to the earlier one.
_FED: tuple[Literal["input", "copy", "communication"], ...] = ("input", "copy", "communication")


def judge_trace(trace: TraceFacts) -> tuple[Bound, VerdictSeverity]:
    """From the trace alone; uncertain where most of what was recorded lies outside the steps.

    And where a share is one that matters by what recording likely took, not by the least of it.
    """
    bound, severity = _judge_steps(trace)
    outside = trace.left_out.outside_share(trace.n_steps * trace.wall_ms)
    if outside >= MOST_OF_STEP and bound != "unknown":
        return bound, "uncertain"
    profiler = trace.host.profiler
    if severity == "moderate" and bound in _FED and profiler is not None:
        least = without_profiler(trace, profiler.least_ms).as_dict()[bound]
        if (least or 0.0) < MODERATE_SHARE:
            return bound, "uncertain"
    return bound, severity


def _judge_steps(trace: TraceFacts) -> tuple[Bound, VerdictSeverity]:
    """By the steps; without step marks: unknown.

    Recording slows the host and nothing else, so the verdict rests on what is left without what
    that likely took. A host verdict is high only where launches or gaps bear it out, and none where
    even the most that the host may take makes none: then the step computes, as it seems. Where no
    loader was recorded, silence at the beginning of steps counts as host but may be waiting for
    batches: a host verdict that rests on it is uncertain. So may silence behind copies: where that
    is most of the host's, and too little is left without, the step may be input-bound. One rank's
    communication may be a wait for others: uncertain, until their traces are compared. A verdict is
    uncertain that would be another if what may be memory of batches that nobody pinned is: whether
    it is the loader's, the copies' or the loop's own, no event tells. Of few steps
    the lower ends of their shares bear the severity. Where worker processes set the pace, what else
    the step waits for only shortens the wait for them.

    Workers make batches as fast as ever while the loop is recorded: where that slows it much, those
    that keep up with it may yet be too slow for it otherwise, and a host verdict is no more than
    moderate, a healthy one uncertain. Workers that crowd the CPUs stretch the host's time as well,
    and how many CPUs there are no trace says: beside them a host verdict that neither launches nor
    gaps bear out is uncertain. (A ResNet-50 with 8 workers on 6 and on 3 CPUs: 55 % host, hardly a
    wait, and ready batches make it 27 to 40 % shorter.)
    """
    nothing_but_marks = trace.host.profiler is None and not trace.fetching.recorded
    if trace.device_unseen or (nothing_but_marks and not trace.has_accelerator):
        return "unknown", "none"
    shares = without_profiler(trace)
    low = few_steps_low(trace, shares)
    unmarked_ms = trace.fetching.unmarked_wait_ms
    if unmarked_ms is not None and trace.wall_ms > 0:
        known = (trace.host.exposed_ms - unmarked_ms) / trace.wall_ms
        low["host"] = min(known, low.get("host", 1.0))
    waits, copies = shares.input or 0.0, shares.copy or 0.0
    paced = only_workers_help(trace, input_share=waits, copy_share=copies)
    if trace.n_steps and paced and waits >= HIGH_SHARE:
        return "input", shown_severity(waits, low.get("input"))
    silent = silent_behind_copies_ms(trace) / trace.wall_ms if trace.wall_ms > 0 else 0.0
    own = (shares.host or 0.0) - silent
    if silent:  # the loop's own, or a wait for the thread that pins
        low["host"] = min(own, low.get("host", 1.0) - silent)
    memory = _with_memory(trace, shares)
    for name in ("host", "copy"):
        if memory[name] != shares.as_dict()[name]:
            low[name] = min(memory[name] or 0.0, low.get(name, 1.0))
    bound, severity = verdict_from_shares(shares, low, enough_steps=trace.n_steps > 0)
    if bound != "unknown" and _largest(memory, None)[0] != bound:
        return bound, "uncertain"
    if bound == "host" and (unmarked_ms or 0.0) >= HIGH_SHARE * trace.wall_ms:
        return bound, "uncertain"  # it would be input, if all of that is
    if bound == "host" and silent and own < min(silent, HIGH_SHARE):
        return "input", "uncertain"  # if it is that thread which holds the loop up
    if bound == "copy" and trace.shared_gpu:  # it may have waited for the GPU's turn
        return bound, "uncertain"
    if bound == "communication" and not trace.peers_compared:  # or for a rank that came later
        return bound, "uncertain"
    if bound == "compute" and severity == "none" and idle_is_recordings(trace, shares):
        return bound, "uncertain"
    if bound != "host" or severity != "high":
        return bound, severity
    surely, perhaps = host_bounds(trace)
    if surely - silent >= HIGH_SHARE and not recording_hides_waits(trace):
        return bound, severity
    if perhaps < HIGH_SHARE:
        return "compute", "uncertain"
    borne_out = surely - silent >= MODERATE_SHARE or not trace.fetching.has_workers
    return bound, "moderate" if borne_out else "uncertain"


def _with_memory(trace: TraceFacts, shares: Shares) -> dict[str, float | None]:
    """The shares if all that may be memory of batches is: ready batches need none, so `input`.

    How much of a copy is a first read, and of a silence freeing, no trace says.
    """
    parts = shares.as_dict()
    for name, ms in zip(("host", "copy"), batch_memory_ms(trace), strict=True):
        taken = min(ms / trace.wall_ms, parts[name] or 0.0) if trace.wall_ms > 0 else 0.0
        parts[name] = (parts[name] or 0.0) - taken if taken else parts[name]
        parts["input"] = (parts["input"] or 0.0) + taken if taken else parts["input"]
    return parts


def few_steps_low(trace: TraceFacts, shares: Shares) -> dict[str, float]:
    """Lower ends of the shares of few steps, less the profiler's; empty where they are enough."""
    low = {}
    recorded, corrected = trace.shares.as_dict(), shares.as_dict()
    for name, estimate in trace.few_steps.items():
        before, after = recorded[name], corrected[name]
        scale = after / before if before and after is not None else 1.0
        low[name] = estimate.low * scale if estimate.bounded else -1.0
    return low


def judge_run(facts: Facts) -> tuple[Bound, VerdictSeverity]:
    """From plain windows and ablation where they ran, else from the trace."""
    if facts.only_reads:
        return "unknown", "none"  # reading is all there is: nothing waits for it
    n_steps = facts.step.n_steps if facts.step is not None else 0
    cost = facts.ablation.input_ms if facts.ablation is not None else None
    # The rounds of an ablation hold steps enough, however few a short sweep had for ranking.
    ablated = n_steps > 0 and cost is not None and cost.bounded
    if n_steps < MIN_STEPS and not ablated:
        if facts.trace is not None and n_steps == 0:
            whole = _of_all_time(facts) if facts.wall is not None else None
            return whole if whole and whole[0] == "outside" else judge_trace(facts.trace)
        return "unknown", "none"
    if facts.shares is None:
        return "unknown", "none"
    bound, severity = _of_all_time(facts)
    if bound == "outside" and _loader_may_cost_more(facts):
        return bound, "uncertain"
    if facts.unsteady and bound != "outside":  # which rests on no trace
        return bound, _of_unsteady(bound, severity, facts)
    if bound == "input" and severity == "uncertain" and _computes_at_the_edge(facts):
        return "compute", "none"
    if bound == "input" and severity == "moderate" and _little_beside_others(facts):
        return "input", "uncertain"
    return bound, severity


def _of_all_time(facts: Facts) -> tuple[Bound, VerdictSeverity]:
    """Of the step, what lies outside it, and what trains on other loaders.

    A pass elsewhere that was seen once carries no severity, as how often it comes is not known: of
    what is otherwise healthy it leaves open whether loaders are waited for.
    """
    values, low, wall = of_wall(facts), _low_of_wall(facts), facts.wall
    if own := _own_work(facts):
        low = {**(low or {}), "own": own}
    if wall is None or facts.step is None or facts.step.clock == "device":
        # With an accelerator nothing tells what of waits elsewhere is hidden.
        return _judged(values, low)
    known = wall.seen_again
    bound, severity = _judged(*with_elsewhere(values, low, known))
    open_ = severity == "none" and known.elsewhere != wall.elsewhere
    if open_ and _judged(*with_elsewhere(values, low, wall))[0] == "input":
        return "input", "uncertain"
    return bound, severity


def _judged(
    values: Mapping[str, float | None], low: Mapping[str, float] | None
) -> tuple[Bound, VerdictSeverity]:
    bound, severity = _largest(values, low)
    host_low = _bound(low, "host")
    if bound == "host" and host_low is not None:
        return _beside_others(values, low, host_low)
    own = _bound(low, "own") or 0.0
    if own >= MODERATE_SHARE and (bound == "compute" or own >= (values.get(bound) or 1.0)):
        return "host", "high" if own >= HIGH_SHARE else "moderate"
    return bound, severity


def _own_work(facts: Facts) -> float:
    """What the loop's own work takes for certain, of all the time; 0 where nothing shows it.

    Stack samples of plain windows show it, which no profiler inflates. With an accelerator what
    runs while that is busy costs nothing, and what does not is within the host's share, which an
    ablation knows: there it counts where it is no less than what the step waits for, of which a
    copy from pageable memory takes more the more of the device's work it leaves unhidden. (An H200
    computing 21 ms beside 33 ms of the loop's own: 55 ms; without the copy 39, without that 21.)
    """
    step, trace = facts.step, facts.trace
    lines = facts.loop_lines
    if lines is None or not lines.places or step is None:
        return 0.0
    own = min(lines.own_low_share, facts.share("host") or 0.0)
    if step.clock == "device" or (trace is not None and trace.has_accelerator):
        fed = max(facts.share(name) or 0.0 for name in _FED)
        if facts.ablation is None or not MODERATE_SHARE <= fed <= own:
            return 0.0
    wall = facts.wall
    return own * wall.step_ms / wall.total_ms if wall is not None and wall.total_ms > 0 else own


def _beside_others(
    values: Mapping[str, float | None], low: Mapping[str, float] | None, host_low: float
) -> tuple[Bound, VerdictSeverity]:
    """Where the host takes most, and all but `host_low` of it may be waiting for others' CPUs.

    What is surely the host's bears its severity. A part that is larger than that and certain goes
    before it: `gan` beside three busy programs on two CPUs read 44 % host, of it surely 9 %, and
    19 % input; alone it is 34 % input and 14 % host.
    """
    if host_low >= HIGH_SHARE:
        return "host", "high"
    other, severity = _largest({**values, "host": host_low}, low)
    share = values.get(other) or 0.0
    if severity not in ("none", "uncertain") and share >= max(host_low, BESIDE_OTHERS_SHARE):
        return other, severity
    return "host", "moderate" if host_low >= MODERATE_SHARE else "uncertain"


def _loader_may_cost_more(facts: Facts) -> bool:
    """Whether rounds leave the loader anything, and more than what lies outside the steps.

    Of the step, `super_resolution` gave its loader 1 to 43 % by three rounds, and 18 % of all the
    time to validation: runs apart say 31 % ± 10.
    """
    part = facts.ablation.share("input") if facts.ablation is not None else None
    wall = facts.wall
    if part is None or wall is None or wall.total_ms <= 0:
        return False
    of_all = wall.step_ms / wall.total_ms
    return part.low < MODERATE_SHARE and part.high * of_all > max(HIGH_SHARE, wall.outside_share)


def _little_beside_others(facts: Facts) -> bool:
    """Whether other programs may be why input takes what makes it moderate.

    Of workers that idle, and whose CPU time is all that a step can have waited for, more than of
    others: beside one busy program on two CPUs, and what else ran at times, rounds said 8 to 15 %
    of four loops (lower ends 5 to 8), runs apart 1 to 4 % ± 5 to 21.
    """
    cpus = facts.machine.usable_cpus if facts.machine is not None else None
    if others_cores(facts.step, cpus) is None:
        return False
    idle = facts.workers.all_idle_share if facts.workers is not None else None
    ready = idle is not None and idle >= READY_IDLE_SHARE
    return (facts.share("input") or 0.0) < (HIGH_SHARE if ready else BESIDE_OTHERS_SHARE)


def _computes_at_the_edge(facts: Facts) -> bool:
    """Whether workers that only just keep up are late at times, and computing is most of it all."""
    return facts.edge is not None and (facts.share("compute") or 0.0) >= MOST_OF_STEP


def _of_unsteady(bound: Bound, severity: VerdictSeverity, facts: Facts) -> VerdictSeverity:
    """What is left of a severity where the trace and the times are of two speeds.

    Paired windows still compare: it stands where their lower bound alone earns it. What rests on
    the trace is uncertain; host does, unless stack samples alone show as much of the loop's own
    work.
    """
    needed = {"high": HIGH_SHARE, "moderate": MODERATE_SHARE}.get(severity)
    if needed is None:
        return severity
    low = (facts.shares_low or {}).get(bound)
    if bound == "host" and facts.loop_lines is not None:
        low = facts.loop_lines.own_low_share
    return severity if low is not None and low >= needed else "uncertain"


def verdict_from_shares(
    shares: Shares | None, low: Mapping[str, float] | None = None, *, enough_steps: bool = True
) -> tuple[Bound, VerdictSeverity]:
    """The first line that applies.

    Too little recorded: unknown. Largest of input, copy, communication at least 20 %: that one,
    high. Host at least 20 %: host, high. Largest of the three at least 5 %: that one, moderate.
    Else compute: health, not a disease; unknown where more than 20 % is `other`. Input goes
    before host because profiling inflates host: of a run whose stack samples show as much of the
    loop's own work for certain, host goes from 5 % on before what is smaller (`_judged`).

    `low` holds lower confidence bounds of shares by name, where there are any: the severity follows
    them (`shown_severity`); where they bear none the bound stands, `uncertain`.
    Shares that were not recorded can't win.
    """
    if shares is None or not enough_steps:
        return "unknown", "none"
    return _largest(shares.as_dict(), low)


def of_wall(facts: Facts) -> dict[str, float | None]:
    """Shares of all the time, and what lies `outside` the steps; of the step where only that is.

    What every step holds of it is the thread's, and counts as host or else as compute within the
    step: it is taken out there.
    """
    assert facts.shares is not None
    values, wall = facts.shares.as_dict(), facts.wall
    if wall is None or wall.total_ms <= 0 or not wall.outside_ms:
        return values
    scale = wall.step_ms / wall.total_ms
    scaled = {k: None if v is None else v * scale for k, v in values.items()}
    within = wall.outside_share - (1.0 - scale)
    for name in ("host", "compute", "other"):
        known = scaled[name]
        if known is not None:
            scaled[name] = max(0.0, known - within)
            within = max(0.0, within - known)
    return {**scaled, "outside": wall.outside_share}


def with_elsewhere(
    values: Mapping[str, float | None], low: Mapping[str, float] | None, wall: WallFacts
) -> tuple[Mapping[str, float | None], Mapping[str, float] | None]:
    """Shares of all the time and their lower ends -> the same with other loaders' training in it.

    Its passes wait as was counted. Of the rest no other part takes more than it does of the step,
    and computing what is left: none is graver than what is told of it.
    """
    if not wall.elsewhere_ms:
        return values, low
    all_ms = wall.total_ms + wall.elsewhere_ms
    scale, waits = wall.total_ms / all_ms, wall.elsewhere_wait_ms / all_ms
    factors = {"input": scale, "outside": scale}
    joined: dict[str, float | None] = {
        k: None if v is None else v * factors.get(k, 1.0 - waits) for k, v in values.items()
    }
    joined["input"] = (joined["input"] or 0.0) + waits
    rest = "other" if values["compute"] is None else "compute"
    left = 1.0 - sum(v for k, v in joined.items() if v is not None and k != rest)
    joined[rest] = max(0.0, left)
    bounds = {"input": values["input"] or 0.0, **(low or {})}
    scaled = {k: v * factors.get(k, 1.0 - waits) for k, v in bounds.items()}
    return joined, {**scaled, "input": max(0.0, scaled["input"]) + waits}


def _low_of_wall(facts: Facts) -> Mapping[str, float] | None:
    """The lower ends of these; none above its share, of which what is outside may be taken."""
    wall, low = facts.wall, facts.shares_low
    if wall is None or wall.total_ms <= 0 or not wall.outside_ms:
        return low
    scale, values = wall.step_ms / wall.total_ms, of_wall(facts)
    scaled = {k: min(v * scale, values.get(k) or 0.0) for k, v in (low or {}).items()}
    return {**scaled, "outside": wall.low_share}


def _largest(
    values: Mapping[str, float | None], low: Mapping[str, float] | None
) -> tuple[Bound, VerdictSeverity]:
    """`verdict_from_shares`, of all the time where some of it is `outside` the steps.

    That is no estimate of one part by another: where it is the largest of all it goes first.
    """
    largest = max(_FED, key=lambda name: values[name] or 0.0)
    share = values[largest] or 0.0
    outside = values.get("outside") or 0.0
    if outside >= HIGH_SHARE and outside >= max(share, values["host"] or 0.0):
        return "outside", shown_severity(outside, _bound(low, "outside"))
    if share >= HIGH_SHARE:
        return largest, shown_severity(share, _bound(low, largest))
    if (values["host"] or 0.0) >= HIGH_SHARE:
        # Its lower end is no noise, but what is left if all silence was waiting.
        host_low = _bound(low, "host")
        return "host", "high" if host_low is None or host_low > MODERATE_SHARE else "uncertain"
    if outside >= MODERATE_SHARE and outside >= share:
        return "outside", shown_severity(outside, _bound(low, "outside"))
    if share >= MODERATE_SHARE:
        return largest, shown_severity(share, _bound(low, largest))
    if (values["other"] or 0.0) > min(values["compute"] or 0.0, HIGH_SHARE):
        return "unknown", "none"  # of too much nothing was recorded, least of all health
    return "compute", "none"


def _bound(low: Mapping[str, float] | None, name: str) -> float | None:
    return None if low is None else low.get(name)
