"""A verdict in few words, an uncertain one in a sentence, and what must be known beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from loaderdoctor import format as fmt
from loaderdoctor.estimate import interval
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import batch_memory_ms
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE, Bound, VerdictSeverity
from loaderdoctor.facts.trace import TraceFacts, may_be_crowded
from loaderdoctor.findings import Finding, Kind
from loaderdoctor.findings.capacity import all_batches_ms, all_receiving_ms, rest_ms
from loaderdoctor.findings.exposure import is_open, num_workers, trace_alone
from loaderdoctor.report.model import Report, Shares
from loaderdoctor.report.words.first_screen import sentences

# How a step that computes is told which does so for each new shape; keys are kinds.
NEW_SHAPES: Mapping[str, str] = {
    Kind.RECOMPILATION.value: "torch.compile compiles again and again",
    Kind.AUTOTUNING_EACH_SHAPE.value: "cuDNN is tuned for each new shape",
    Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES.value: "each new shape costs it again",
}
_BOUND_WORDS = {
    "input": "Input-bound",
    "copy": "Copy-bound",
    "communication": "Communication-bound",
    "compute": "Compute-bound",
    "host": "Host-bound",
    "outside": "Outside the steps",
    "unknown": "No verdict",
}
TAKES = {
    "compute": "Computing takes",
    "communication": "Communication takes",
    "copy": "Copying takes",
    "input": "The loader takes",
    "host": "Python and launching take",
}
_SEEMS = {
    "input": "the loader seems to take",
    "copy": "copying seems to take",
    "communication": "communication seems to take",
    "host": "Python and launching seem to take",
}
# A part that takes most of the step is what is known of it, whatever another part may cost.
_MOST = 0.5
# Kinds of warnings that decide how far the first screen can be trusted, the gravest first: what
# was not measured, then what else the machine did meanwhile.
_DOUBTS = (
    "interrupted",
    "malformed-events",
    "outside-the-steps",
    "evidence-missing",
    "script-ended-early",
    "script-killed",
    "not-compared",
    "ranks-missing",
    "process-alone",
    "ranks-not-matched",
    "rank-not-read",
    "captures-left-out",
    "processes-left-out",
    "unexplained-time",
    "noisy-machine",
    "not-steady",
    "busy-machine",
    "shared-gpu",
    "core-contention",
    "unlike-hardware",
    "shortened",
    "drift",
)
# What follows of it, where its first sentence does not say so.
_SO: Mapping[str, str] = {
    "busy-machine": "; alone it may be faster, and another setting best",
    "noisy-machine": "; small gains can't be seen",
    "not-compared": "; what its loader costs is told by its waits alone",
}
# Fewer steps say nothing about a mean whose noise is a few percent.
MIN_STEPS = 5
_SWEEP_CUT_SHORT = "sweep-"  # and how it ended


def headline(report: Report) -> tuple[str, str]:
    """(what, how sure): `Input-bound`, `high`; the second is empty where there is no verdict.

    Of an uncertain verdict the first words are what is known, not the bound that may be none.
    """
    verdict = report.verdict
    if verdict.bound == "unknown":
        only_reads = not report.trains and not report.calls_model
        return "No training seen" if only_reads else _BOUND_WORDS["unknown"], ""
    bound = _BOUND_WORDS[verdict.bound] + ("" if report.trains else " inference")
    if verdict.bound == "outside":
        bound += _mostly(report)
    if verdict.severity != "uncertain":
        if verdict.severity != "none" and not _is_largest(report):
            bound = f"Partly {bound[:1].lower()}{bound[1:]}"
        how = _if_nothing(report) if verdict.severity == "none" else verdict.severity
        return bound, how
    if verdict.bound == "outside":  # certain but for how long it takes the next time
        return bound, "seen once"
    known = largest_part(report.shares)
    if known is None or known[0] == verdict.bound or known[1] < _MOST:
        return f"Perhaps {bound.lower()}", "uncertain"
    return f"{TAKES[known[0]]} {fmt.share(known[1])}", f"{verdict.bound} uncertain"


def _mostly(report: Report) -> str:
    """What takes most of the time outside the steps, where that has a name."""
    parts = [part for part in report.wall.outside if part.ms_per_step] if report.wall else []
    largest = max(parts, key=lambda part: part.ms_per_step or 0.0, default=None)
    return f": {largest.what}" if largest is not None and largest.what != "other" else ""


def _is_largest(report: Report) -> bool:
    """Whether the bound is what takes most: nobody calls a step that computes input-bound."""
    known = largest_part(report.shares)
    own = getattr(report.shares, report.verdict.bound, None)
    return known is None or own is None or own >= known[1]


def _if_nothing(report: Report) -> str:
    """Of a step that waits for nothing known: healthy, if its threads and memory are in order."""
    for finding in report.findings:
        if finding.kind == Kind.ALLOCATOR_PAGE_FAULTS.value:
            return "its memory is fetched again each step"
        if finding.kind in NEW_SHAPES:
            return NEW_SHAPES[finding.kind]
        if finding.evidence.get("threads_of") == "loop":
            certain = finding.severity in ("high", "moderate")
            return "its threads compete" if certain else "its threads may compete"
    if any(finding.kind == Kind.WORKERS_JUST_KEEP_UP.value for finding in report.findings):
        return "at the edge"
    known = report.shares is not None and report.shares.input is not None
    return "healthy" if known else "input not recorded"


def largest_part(shares: Shares | Mapping[str, float | None] | None) -> tuple[str, float] | None:
    """(name, share) of the part that takes most of the step."""
    if shares is None:
        return None
    read = shares.get if isinstance(shares, Mapping) else lambda name: getattr(shares, name)
    known = [(name, value) for name in TAKES if (value := read(name)) is not None]
    return max(known, key=lambda item: item[1], default=None)


def of_loader(facts: Facts) -> str:
    """How a verdict on a loop that does not wait begins: with what is known of its loader."""
    if (still_open := open_sentence(facts)) is not None:
        return f"{still_open} "
    if facts.ablation is None and not trace_alone(facts):  # its waits alone were seen
        return ""
    return "Nothing is wrong with the loader. "


def open_sentence(facts: Facts) -> str | None:
    """What the loader may cost, where the noise leaves that open; else None."""
    part = facts.ablation.share("input") if facts.ablation is not None else None
    if part is None or not is_open("none", facts):
        return None
    return (
        "What the loader costs is still open: "
        f"{fmt.share_within(part.value, interval(part))} of the step."
    )


def uncertain_sentence(bound: Bound, facts: Facts, step_ms: float, why: str | None) -> str:
    """What takes most of the step, and the part that may be none: with its noise.

    `why` says what kept it from being settled.
    """
    share = facts.share(bound) or 0.0
    waiting_ms = facts.trace.fetching.unmarked_wait_ms if facts.trace is not None else None
    if bound == "host" and waiting_ms is not None:
        return (
            f"{_SEEMS[bound]} {fmt.share(share)} of {fmt.number(step_ms)} ms a step; but "
            f"{fmt.number(waiting_ms)} ms of it may be making batches or waiting for them, of "
            "which this trace has no event."
        )
    if bound == "communication" and trace_alone(facts) and facts.trace is not None:
        told = "one rank's trace does not tell: analyze the folder with the traces of all ranks"
        return (
            f"Collectives seem to take {fmt.share(share)} of {fmt.number(step_ms)} ms a step: "
            "moving data, or waiting for a rank that comes later. Which of the two, "
            f"{'these traces do not tell' if facts.ranks else told}."
        )
    if trace_alone(facts) and (new := _new_memory(facts, step_ms)) is not None:
        return new
    if trace_alone(facts) and may_be_crowded(bound, "uncertain", facts.trace):
        return (
            f"{_SEEMS[bound]} {fmt.share(share)} of {fmt.number(step_ms)} ms a step: launching "
            "that takes as long by itself, or workers that crowd the CPUs and slow it down. No "
            "trace tells which: it does not say how many CPUs there are."
        )
    measured = facts.ablation.share(bound) if facts.ablation is not None else None
    seems = (
        f"{_SEEMS.get(bound, f'{bound} seems to take')} "
        f"{fmt.share_within(share, interval(measured))}"
    )
    perhaps = "perhaps nothing" if measured is None or measured.low <= 0 else "perhaps little"
    noise = "the noise is as large"
    if facts.unsteady:
        noise = "the machine or the loop was not steady meanwhile"
    elif bound == "host" and "host" in (facts.shares_low or {}):
        noise = "it may be waiting for a CPU that other programs have"
    whole = f"of {fmt.number(step_ms)} ms a step"
    known = largest_part(facts.shares.as_dict() if facts.shares is not None else None)
    if known is None or known[0] == bound:
        sentence = f"{seems[:1].upper()}{seems[1:]} {whole}, {perhaps}: {noise}."
    else:
        sentence = f"{TAKES[known[0]]} {fmt.share(known[1])} {whole}; {seems}, {perhaps}."
    return f"{sentence} {why}" if why else sentence


def _new_memory(facts: Facts, step_ms: float) -> str | None:
    """Of batches that nobody pinned: copying, memory new each time, or own work; None: not it."""
    trace = facts.trace
    if trace is None:
        return None
    freeing_ms, mapped_ms = batch_memory_ms(trace)
    if freeing_ms + mapped_ms < MODERATE_SHARE * trace.wall_ms:
        return None
    copy_ms = sum(c.exposed_ms_per_step for c in trace.copies if c.source == "pageable")
    copying = f"copying batches that nobody pins takes {fmt.ms(copy_ms)}"
    first_read = f"up to {fmt.ms(mapped_ms)} of it the first read of memory that is new each time"
    if freeing_ms < MODERATE_SHARE * trace.wall_ms:
        return (
            f"Of {fmt.number(step_ms)} ms a step {copying}, {first_read}, which is the loader's "
            "cost: whether that or copying is more, no trace tells."
        )
    return (
        f"Of {fmt.number(step_ms)} ms a step {copying}, {first_read}, and next to it the thread is "
        f"silent for {fmt.ms(freeing_ms)}: freeing the batch before (the loader's cost, as the "
        "first read is), or the loop's own Python. Which of the three it is most, no trace tells."
    )


def nothing_judged(facts: Facts) -> str:
    """Why there is no verdict, and what to record for one."""
    n_steps = facts.step.n_steps if facts.step is not None else None
    if facts.trace is not None and facts.trace.device_unseen:
        return (
            "No verdict: no kernel of the accelerator beside the loop was recorded, and what it "
            "waits for may cost nothing behind those. Record it too (ProfilerActivity.CUDA)."
        )
    if n_steps is None and facts.trace is not None:
        n_steps = facts.trace.n_steps
        if facts.trace.step_clock == "window":
            return (
                "No verdict: the trace marks no two steps (profiler.step(), batch or optimizer "
                "spans), so the shares are those of the whole window."
            )
    if not n_steps:
        return "No verdict: no whole step was recorded. Record some steps of the loop."
    if n_steps < MIN_STEPS:
        seen = fmt.count(n_steps, "step")
        return f"No verdict: not enough steps ({seen} recorded). Record more of them."
    no_loader = facts.trace and not facts.trace.fetching.recorded and facts.step is None
    in_none = (facts.share("other") or 0.0) > HIGH_SHARE and trace_alone(facts)
    if in_none and not (no_loader and facts.share("host") is None):
        part = fmt.share(facts.share("other"))
        return (
            f"No verdict: {part} of the step is in no share. Either part of the loop was not "
            "recorded, or the accelerator's clock is not the host's."
        )
    if no_loader:
        return (
            "No verdict: the trace holds no loader events, so what the loop waits for is not "
            "recorded. Profile the CPU too (ProfilerActivity.CPU)."
        )
    return "No verdict: too little was recorded to judge."


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
    elif bound == "host" and (severity == "moderate" or may_be_crowded(bound, severity, trace)):
        more = f": {measures}" if elsewhere else "."
        yield f"How much of that is the profiler's own the trace does not tell{more}"
    slowed = bound == "host" or (bound == "compute" and severity == "uncertain")
    if slowed and trace.fetching.has_workers:
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


def trust_sentence(report: Report) -> str | None:
    """What makes this report less than certain, in a line; None where nothing is known to."""
    found = [w for w in report.warnings if _doubt(w.kind) is not None]
    if not found:
        return None
    first = min(found, key=lambda w: _doubt(w.kind) or 0)
    said = sentences(first.text)[0].rstrip(".")
    then = _SO.get(first.kind, "")
    more = len(found) - 1
    also = f" ({fmt.count(more, 'more warning')} in the whole report)" if more else ""
    return f"{said[:1].upper()}{said[1:]}{then}.{also}"


def _doubt(kind: str) -> int | None:
    if kind.startswith(_SWEEP_CUT_SHORT):
        return 0
    return _DOUBTS.index(kind) if kind in _DOUBTS else None
