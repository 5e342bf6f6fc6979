"""What a trace alone lets us advise: untested changes, by what each gains at best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from loaderdoctor.advice import CodeAdvice
from loaderdoctor.advice.ideas import CHANGES, Change
from loaderdoctor.advice.prescription import code_advice
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import work_between
from loaderdoctor.facts.step import HIGH_SHARE, Bound, VerdictSeverity
from loaderdoctor.facts.trace import may_be_crowded, only_workers_help
from loaderdoctor.findings import Finding, Kind
from loaderdoctor.findings.exposure import copy_cost, input_cost, trace_alone

# Of a copy this long a quarter of the bytes is worth asking for (batches of images; label vectors
# take microseconds whatever their type).
MIN_BATCH_BYTES = 4 << 20
# Of float32 that was 8-bit.
BYTES_SAVED = 0.75


# Of a trace no line of the script is known, and no run's settings.
_CPUS = (
    "Helps as long as CPUs are left. Where the workers use all of them already, only less work for "
    "each batch does."
)
_WORKERS = Change(
    title="Let worker processes make the batches",
    idea="`DataLoader(…, num_workers=n, persistent_workers=True)`, n up to the CPUs that there are "
    "less one for the loop.",
    axis="num_workers",
    caution=_CPUS,
)
_MORE_WORKERS = Change(
    title="Give the loader more workers",
    idea="A larger `num_workers` of its DataLoader, up to the CPUs that there are less one for the "
    "loop.",
    axis="num_workers",
    caution=_CPUS,
)
_IF_CROWDED = (
    "Helps only where the workers crowd the CPUs, which a trace does not tell from launching that "
    "takes as long by itself."
)
_FEWER_WORKERS = Change(
    title="Give the loader fewer workers",
    idea="A `num_workers` of its DataLoader below the CPUs that there are: workers that fill all "
    "of them slow down the thread that launches the work.",
    axis="num_workers",
    caution=f"{_IF_CROWDED} Workers that fill all CPUs by themselves make too little then.",
)
_LESS_WORK = Change(
    title="Do less for each batch",
    idea="Decode, resize or parse once and store the result (packed, or in memory); apply random "
    "transforms to whole batches on the device.",
)
_ANY_ORDER = Change(
    title="Take batches as they are ready, whatever their order",
    idea="`DataLoader(…, in_order=False)` (torch 2.6).",
    axis="in_order",
    caution="Only where some samples take far longer than others, and the order is free.",
)
_KEPT_WORKERS = Change(
    title="Keep the workers from epoch to epoch",
    idea="`DataLoader(…, persistent_workers=True)`, built once before the loop over the epochs.",
    axis="persistent_workers",
)
_PINNED = Change(
    title="Pin the batches, and copy them without waiting",
    idea="`DataLoader(…, pin_memory=True)` and `.to(device, non_blocking=True)` for each tensor of "
    "the batch: either without the other does not help.",
    axis="pin_memory",
)
_NON_BLOCKING = Change(
    title="Copy the batches without waiting",
    idea="`.to(device, non_blocking=True)` for each tensor of the batch, the labels too.",
    axis="non_blocking",
)
_SIDE_STREAM = Change(
    title="Copy the next batch on a stream of its own",
    idea="Call `.to(device, non_blocking=True)` for the next, pinned batch under "
    "`torch.cuda.stream(side)` while this one computes, and let the current stream wait for it "
    "(`wait_stream`) before that one is used.",
    axis="side_stream",
)
_FEWER_BYTES = CHANGES[Kind.WIDE_DTYPE_COPY]

# Of findings that settings answer; `code_advice` has the others. In the order of equal gains.
_ANSWERS: Mapping[Kind, tuple[Change, ...]] = {
    Kind.LOADER_IN_MAIN_PROCESS: (_WORKERS, _LESS_WORK),
    Kind.TOO_FEW_WORKERS: (_MORE_WORKERS, _LESS_WORK),
    Kind.PIN_THREAD_BOUND: (_FEWER_BYTES,),
    Kind.WORKER_STARTUP_EACH_EPOCH: (_KEPT_WORKERS,),
    Kind.PAGEABLE_COPY: (_PINNED, _FEWER_BYTES),
    Kind.BLOCKING_COPY: (_NON_BLOCKING, _SIDE_STREAM),
    Kind.COPY_NOT_OVERLAPPED: (_SIDE_STREAM, _FEWER_BYTES),
}
# Where no finding says who makes the batches, or from what memory they are copied.
_OF_BOUND: Mapping[Bound, tuple[Change, ...]] = {
    "input": (_MORE_WORKERS, _LESS_WORK),
    "copy": (_PINNED, _SIDE_STREAM, _FEWER_BYTES),
}


def trace_advice(
    facts: Facts,
    findings: Iterable[Finding],
    bound: Bound,
    severity: VerdictSeverity | None = None,
) -> tuple[CodeAdvice, ...]:
    """Changes for what a trace shows, the one that gains most at best first.

    At best is the step without all that the change can touch, and without what recording took; of a
    loop at the pace of its workers that is the step as it is, unless they get faster. `axis` is
    what `diagnose` tries it by, if anything. A host verdict that may be of workers which crowd the
    CPUs (`severity`: uncertain) gets less work for them, and fewer of them, with no bound: in
    simulated loops less work always helped, fewer workers where they were not short of CPUs
    themselves.
    """
    found = tuple(findings)
    ways = [way for finding in found for way in _of(finding, facts)]
    ways += code_advice(facts, [x for x in found if x.kind not in _ANSWERS])
    cost = copy_cost(facts) if bound == "copy" else input_cost(facts)
    if not ways and cost is not None:
        ways += _ways(None, _OF_BOUND.get(bound, ()), cost.ms, facts)
    if may_be_crowded(bound, severity, facts.trace):
        crowding = _ways(None, (_LESS_WORK, _FEWER_WORKERS), 0.0, facts)
        ways += [replace(x, bound_ms=None, caution=x.caution or _IF_CROWDED) for x in crowding]
    if _only_workers_help(facts):
        ways = [way if way.kind in _OF_POOL else _afterwards(way) for way in ways]
    ranks = {x.kind: _ms(x, facts) for x in found if x.evidence.get("gb_per_s") is not None}
    freeing_ms = facts.trace.host.freeing_ms if facts.trace is not None else 0.0

    def rank_ms(way: CodeAdvice) -> float:
        perhaps_freed = way.kind is Kind.WORK_BETWEEN_STEPS and bound != "host"
        return _rank_ms(way, ranks) - (freeing_ms if perhaps_freed else 0.0)

    ways.sort(key=lambda way: -rank_ms(way))
    return tuple(_at_the_very_best(way, facts) for way in ways)


_OR_OWN = (
    "At best counts the silence next to the copies as memory that is freed: if it is the loop's "
    "own Python, that stays."
)
_OR_FREED = "Where the silence next to the copies is memory that is freed, this gains nothing."


def _at_the_very_best(way: CodeAdvice, facts: Facts) -> CodeAdvice:
    """With a bound that no step goes below: 14 of 57 of the recorded and simulated traces did.

    They were bounded by what their finding explains. Fewer or smaller tensors are made, sent and
    received for less too, and fewer pages are touched; other copies end the silence behind them;
    workers that are kept wait for nothing that a start has left undone; and no later step is
    recorded. Without an accelerator the loop computes faster where its workers take less of the
    CPUs: by how much, a trace does not tell.
    """
    trace, step_ms = facts.trace, facts.step_ms
    if not way.bound_ms or trace is None or step_ms is None:
        return way
    if not trace.has_accelerator and trace.fetching.has_workers:
        return replace(way, bound_ms=None, predicted_from=None)
    bound_ms, input_ms = way.bound_ms, (trace.shares.input or 0.0) * step_ms
    silent_ms = sum(c.silent_after_ms_per_step for c in trace.copies)
    silent_ms = max(silent_ms, trace.host.freeing_ms)
    if way.kind is Kind.MANY_SMALL_COPIES or way.axis == _FEWER_BYTES.axis:
        bound_ms += input_ms + max(silent_ms, work_between(trace)[0])
    elif way.axis in (_PINNED.axis, _NON_BLOCKING.axis, _SIDE_STREAM.axis):
        bound_ms += silent_ms
        if trace.host.freeing_ms:
            way = replace(way, caution=f"{_OR_OWN} {way.caution or ''}".rstrip())
    elif way.kind is Kind.WORK_BETWEEN_STEPS:
        place = work_between(trace)[1]  # of a frame, its launches too
        bound_ms = max(bound_ms, place.ms_per_step if place is not None else 0.0)
        if trace.host.freeing_ms:
            way = replace(way, caution=f"{_OR_FREED} {way.caution or ''}".rstrip())
    elif way.axis == _KEPT_WORKERS.axis:
        bound_ms = max(bound_ms, input_ms)
    # Of few steps, what others may differ by.
    bound_ms += step_ms * max((x.high - x.value for x in trace.few_steps.values()), default=0.0)
    return replace(way, bound_ms=min(step_ms, bound_ms + _recording_ms(way, facts, step_ms)))


def _recording_ms(way: CodeAdvice, facts: Facts, step_ms: float) -> float:
    """The most that recording took of what the step waited for; of a plain step nothing."""
    trace = facts.trace
    if not trace_alone(facts) or trace is None or trace.host.profiler is None:
        return 0.0
    slowed = (trace.shares.host or 0.0) + (
        0.0 if trace.has_accelerator else trace.shares.compute or 0.0
    )
    left_ms = slowed * step_ms
    if way.kind is Kind.MANY_SMALL_COPIES:  # whose ops are in its bound
        left_ms -= sum(c.op_host_ms_per_step for c in trace.copies)
    return min(trace.host.profiler.most_ms, max(0.0, left_ms))


def _rank_ms(way: CodeAdvice, ranks: Mapping[Kind, float]) -> float:
    """What the change gains at best; of fewer bytes, for which that is not known, the whole cost.

    It comes before others of that cost as both loops that were recorded waiting at such a rate gain
    most by it (`traces/h200`).
    """
    if way.bound_ms is None and way.axis == _FEWER_BYTES.axis and way.kind is not None:
        return ranks.get(way.kind, 0.0)
    return way.bound_ms or 0.0


def _ms(finding: Finding, facts: Facts) -> float:
    return (finding.share or 0.0) * (facts.step_ms or 0.0)


def _only_workers_help(facts: Facts) -> bool:
    trace = facts.trace
    if trace is None:
        return False
    shares = trace.plain_shares or trace.shares
    if not trace.has_accelerator and (shares.input or 0.0) < HIGH_SHARE:
        return False  # what the loop computes on CPUs, its workers wait for
    return only_workers_help(trace, input_share=shares.input or 0.0, copy_share=shares.copy or 0.0)


# Where workers set the pace, what is no cause of that gains nothing by itself.
_OF_POOL = (None, Kind.TOO_FEW_WORKERS, Kind.ITERATOR_RECREATED)
_MOVED = "Where moving the bytes holds the workers up, more of them gain nothing."
_BYTES = "How much of the step is waiting for bytes, a trace does not tell."


def _afterwards(way: CodeAdvice) -> CodeAdvice:
    said = "Gains nothing while the loop waits for its workers: it would wait the longer."
    return replace(way, bound_ms=0.0, caution=f"{said} {way.caution or ''}".rstrip())


def _of(finding: Finding, facts: Facts) -> Iterator[CodeAdvice]:
    changes, cost_ms = _ANSWERS.get(finding.kind, ()), _ms(finding, facts)
    if finding.evidence.get("in_bursts"):
        changes += (_ANY_ORDER,)
    if finding.evidence.get("gb_per_s") is None:
        yield from _ways(finding.kind, changes, cost_ms, facts)
        return
    if _FEWER_BYTES not in changes:
        changes = (_FEWER_BYTES, *changes)
    for way in _ways(finding.kind, changes, cost_ms, facts):
        if way.axis == _FEWER_BYTES.axis:
            caution = f"{way.caution} {_BYTES}"
            yield replace(way, bound_ms=None, predicted_from=None, caution=caution)
        elif way.axis == _MORE_WORKERS.axis:
            yield replace(way, caution=f"{_MOVED} {way.caution}")
        else:
            yield way


# From pinned memory (`traces/`, H100); at best all of it.
PINNED_BYTES_PER_MS = 50e6
# One argument that gains as much comes before a stream to write.
NEARLY_ALL = 0.8


def _at_best_ms(change: Change, ms: float, facts: Facts) -> float:
    """What of the cost a change may save: the copy stays where it is only made faster."""
    copies = facts.trace.copies if facts.trace is not None else ()
    if change is _FEWER_BYTES:
        return BYTES_SAVED * ms
    if change is _NON_BLOCKING:  # the copy still takes its turn on the stream that computes
        lead_ms = sum(c.idle_after_ms_per_step for c in copies)
        waits_ms = sum(max(0.0, c.exposed_ms_per_step - c.busy_ms_per_step) for c in copies)
        return ms if lead_ms + waits_ms >= NEARLY_ALL * ms else lead_ms + waits_ms
    if change is _PINNED:
        pageable = sum(c.bytes_per_step for c in copies if c.source == "pageable")
        return max(0.0, ms - pageable / PINNED_BYTES_PER_MS)
    return ms


def _ways(
    kind: Kind | None, changes: tuple[Change, ...], ms: float, facts: Facts
) -> Iterator[CodeAdvice]:
    copies = facts.trace.copies if facts.trace is not None else ()
    are_large = max((c.median_bytes for c in copies), default=0.0) >= MIN_BATCH_BYTES
    for change in changes:
        if change is _FEWER_BYTES and not are_large:
            continue
        yield CodeAdvice(
            kind=kind,
            title=change.title,
            idea=change.idea,
            code=None,
            bound_ms=_at_best_ms(change, ms, facts),
            predicted_from="trace",
            caution=change.caution,
            axis=change.axis,
        )
