"""The report in words: the verdict's sentence, and what the change means for a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loaderdoctor import format as fmt
from loaderdoctor.estimate import interval
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE, Bound, VerdictSeverity
from loaderdoctor.findings import CAUSE_PART, PARTS, Finding, Kind, Severity
from loaderdoctor.findings.exposure import trace_alone
from loaderdoctor.findings.input_parts import cost_beyond_wait, mapping_cost
from loaderdoctor.report import model
from loaderdoctor.report.model import Recommendation
from loaderdoctor.report.words import (
    outside_cost,
    outside_sentence,
    waits_cost,
    waits_sentence,
)
from loaderdoctor.report.words.changes import Change, changes_of
from loaderdoctor.report.words.verdict import (
    NEW_SHAPES,
    caveats,
    no_cause,
    nothing_judged,
    of_loader,
    open_sentence,
    stands_still,
    uncertain_sentence,
)

# Why, in a clause that follows "because". Kinds that are no cause of waiting are left out.
CAUSES: Mapping[Kind, str] = {
    Kind.MAIN_GUARD_MISSING: "batches are made in the training process, and the script has no main "
    "guard with which workers could start",
    Kind.LOADER_IN_MAIN_PROCESS: "batches are made in the training process",
    Kind.TOO_FEW_WORKERS: "there are too few workers to keep up",
    Kind.CPU_SATURATED_WORKERS: "the workers use all the CPUs there are",
    Kind.STORAGE_BOUND_WORKERS: "the workers wait (storage, a network, a lock) and do not compute",
    Kind.OVERHEAD_BOUND_LOADER: "what a batch costs is paid for each small sample, or for handing "
    "it over",
    Kind.WORKER_STARTUP_EACH_EPOCH: "the workers are started again each epoch",
    Kind.ITERATOR_RECREATED: "the loader's iterator is created again and again",
    Kind.HEAD_OF_LINE_STALL: "ready batches wait behind a slow one",
    Kind.SAMPLER_BOUND: "the sampler is slow",
    Kind.COLLATE_BOUND: "collating is slow",
    Kind.DATASET_FORMAT_BOUND: "the dataset converts its format for each sample",
    Kind.WORKERS_SHARE_A_CORE: "the workers share one core",
    Kind.THREAD_OVERSUBSCRIPTION: "more threads run than there are CPUs",
    Kind.IDLE_WORKERS: "some workers have nothing to do",
    Kind.GC_IN_WORKERS: "Python's garbage collector stops the workers",
    Kind.UNEVEN_SHARDS: "some workers come to the end of their shards early",
    Kind.GIL_CONTENTION: "a loading thread takes the interpreter, or memory, from the loop",
    Kind.LOOP_SLOWED_BY_WORKERS: "the loop's own work takes longer while its workers run",
    Kind.BATCH_PAGE_FAULTS: "the loop maps each batch's new shared memory page by page",
    Kind.PIN_THREAD_BOUND: "pinning the batches is slow",
    Kind.COLD_STORAGE: "the files were not cached yet",
    Kind.MANY_SMALL_FILES: "many small files are opened",
    Kind.LATENCY_BOUND_STORAGE: "each read of the storage takes long",
    Kind.BANDWIDTH_BOUND_STORAGE: "the storage gives all the bandwidth it has",
    Kind.MANY_SMALL_READS: "samples are read in many small pieces",
    Kind.RETRIED_REQUESTS: "requests fail and are sent again",
    Kind.MEMORY_SHORT: "memory is short",
    Kind.PIN_INEFFECTIVE: "the batches are not pinned although pin_memory is on",
    Kind.PAGEABLE_COPY: "batches are copied from pageable memory",
    Kind.BLOCKING_COPY: "the loop waits for each copy",
    Kind.COPY_NOT_OVERLAPPED: "copies and computing take turns",
    Kind.MANY_SMALL_COPIES: "a batch is copied in many small pieces",
    Kind.WIDE_DTYPE_COPY: "more bytes are copied than the data holds",
    Kind.SYNC_EVERY_STEP: "the loop waits for the accelerator in each step",
    Kind.LAUNCH_BOUND: "launching many small operations takes longer than they run",
    Kind.WORK_BETWEEN_STEPS: "the loop does other work between steps",
    Kind.GC_PAUSES: "Python's garbage collector stops the loop",
    Kind.SLOW_RANK: "one rank is slower than the others",
}
_CAUSE_OF = {kind.value: words for kind, words in CAUSES.items()}  # kinds as report.json has them
# Those of a part of the step, and those that explain it but are aspects of nothing in it.
_OF_BOUND: Mapping[Bound, tuple[Kind, ...]] = {
    "input": (*PARTS["input"], Kind.GC_IN_WORKERS, Kind.UNEVEN_SHARDS),
    "copy": PARTS["copy"],
    "communication": (Kind.SLOW_RANK,),
    "host": (*PARTS["host"], Kind.GC_PAUSES, Kind.GIL_CONTENTION, Kind.THREAD_OVERSUBSCRIPTION),
}
_COST: Mapping[Bound, str] = {
    "input": "Waiting for the loader costs",
    "copy": "Copying batches to the accelerator costs",
    "communication": "Communication between ranks costs",
    "host": "Python and launching cost",
    "compute": "Computing takes",
}
UNTOLD = (
    "What would help is not told by a trace alone: `loaderdoctor diagnose train.py` looks at the "
    "running loop."
)
_INPUT_UNKNOWN = "What getting batches costs is not recorded."


def verdict_sentence(
    bound: Bound,
    severity: VerdictSeverity,
    *,
    facts: Facts,
    findings: Sequence[Finding] = (),
    recommendations: Sequence[Recommendation] = (),
    unsettled: str | None = None,
    n_tried: int | None = None,
) -> str:
    """What the step is bound by, the figures, the cause, and the remedy or that there is none.

    Of a job with a rank that holds the others up, this is the rank described. `unsettled` says
    why an uncertain verdict was not made a certain one, `n_tried` how many trials showed a time.
    What must be known of a verdict from a trace alone comes last.
    """
    said = _sentence(bound, severity, facts, findings, recommendations, unsettled, n_tried)
    return f"{said} {caveats(bound, severity, facts)}".rstrip()


def _sentence(
    bound: Bound,
    severity: VerdictSeverity,
    facts: Facts,
    findings: Sequence[Finding],
    recommendations: Sequence[Recommendation],
    unsettled: str | None,
    n_tried: int | None,
) -> str:
    slow = next((f for f in findings if f.kind is Kind.SLOW_RANK), None)
    if slow is not None and bound != "unknown":
        if severity == "none" or bound == "compute":
            return slow.summary
        others = [f for f in findings if f is not slow]
        sentence = _sentence(bound, severity, facts, others, recommendations, unsettled, n_tried)
        return f"Rank {slow.evidence['rank']} holds the others up. {sentence}"
    step_ms = facts.step_ms
    if facts.only_reads and step_ms is not None:
        return _only_read(facts, step_ms, recommendations)
    if bound == "unknown" or step_ms is None:
        return nothing_judged(facts)
    if bound == "outside" and facts.wall is not None:
        return f"{outside_sentence(facts.wall, findings)} {open_sentence(facts) or ''}".rstrip()
    if severity == "none" or bound == "compute":
        said = _healthy(severity, facts, step_ms, findings, recommendations, unsettled)
        edge = next((f for f in findings if f.kind is Kind.WORKERS_JUST_KEEP_UP), None)
        return f"{said} At the edge: {edge.summary}" if edge is not None else said
    waits = waits_sentence(severity, facts, findings) if bound == "input" else None
    if waits is not None:
        change = next(iter(changes_of(recommendations)), None)
        here = _first_change(step_ms, change) if change is not None else ""
        return f"{_threads(findings)}{waits} {here}".rstrip()
    if severity == "uncertain":
        change = next(iter(changes_of(recommendations)), None)
        if change is not None and change.measured_ms is not None:  # shown to help all the same
            unsettled = _first_change(step_ms, change)
        if (silent := stands_still(facts, findings)) is not None:
            return silent
        return f"{_threads(findings)}{uncertain_sentence(bound, facts, step_ms, unsettled)}"
    cost = _cost(bound, facts, step_ms)
    threads = _threads(findings)  # say what they cost themselves
    causes = [f for f in findings if f.kind in _OF_BOUND[bound] and not _disproved(f)]
    cause = next((f for f in causes if not (threads and _of_loop(f))), None)
    if cause is not None and (cause.share or 1.0) < CAUSE_PART * (facts.share(bound) or 0.0):
        cause = None  # it is to blame for a small part of it only
    because = f", because {_why(cause, facts)}" if cause is not None else ""
    where = f" ({fmt.plain(cause.loader)})" if cause is not None and cause.loader else ""
    remedy = _remedy(step_ms, cause, recommendations, facts, findings, n_tried)
    unexplained = no_cause(bound, facts) if cause is None and not threads else ""
    return " ".join(filter(None, (f"{threads}{cost}{because}{where}.", unexplained, remedy)))


def names_cause(sentence: str, finding: model.Finding) -> bool:
    """Whether that verdict gives this finding as its reason."""
    words = _CAUSE_OF.get(finding.kind)
    return words is not None and words in sentence


def _why(cause: Finding, facts: Facts) -> str:
    """In a clause; a trace alone does not tell few workers from slow ones."""
    if cause.kind is Kind.TOO_FEW_WORKERS and trace_alone(facts):
        return "the workers are too few or too slow"
    spot, ms = cause.evidence.get("spot"), cause.evidence.get("spot_ms_per_step")
    if isinstance(spot, str) and isinstance(ms, float):
        return f"{CAUSES[cause.kind]}: {fmt.plain(spot)} takes {fmt.number(ms)} ms"
    return CAUSES[cause.kind]


def _of_loop(finding: Finding) -> bool:
    """Whether it is about the loop's own threads, memory or compilers, not about loading."""
    return (
        finding.evidence.get("threads_of") == "loop"
        or finding.kind is Kind.ALLOCATOR_PAGE_FAULTS
        or finding.kind.value in NEW_SHAPES
    )


def _threads(findings: Sequence[Finding]) -> str:
    """What slows the loop's own work, where nothing larger was found; else nothing."""
    mine = next((f for f in findings if _of_loop(f)), None)
    if mine is None:
        return ""
    known = [f.share or 0.0 for f in findings if f.severity is not Severity.UNCERTAIN]
    if (mine.share or 0.0) < max(known, default=0.0):
        return ""
    if mine.kind.value not in NEW_SHAPES or mine.advice is None:
        return f"{mine.summary} "
    return f"{mine.summary} To change: {mine.advice[:1].lower()}{mine.advice[1:]} "


def cost_sentence(bound: Bound, severity: VerdictSeverity, facts: Facts) -> str:
    """What the bound costs, for who says something else of the remedy; "" where nothing is sure."""
    step_ms = facts.step_ms
    if step_ms is None or severity not in ("high", "moderate"):
        return ""
    if bound == "outside" and facts.wall is not None:
        return outside_cost(facts.wall)
    if bound not in _COST:
        return ""
    theirs = waits_cost(facts, severity) if bound == "input" else None
    return theirs or f"{_cost(bound, facts, step_ms)}."


def _disproved(cause: Finding) -> bool:
    """Whether a trial refuted this cause: of all, the one that is itself a forecast."""
    return cause.kind is Kind.TOO_FEW_WORKERS and any(t.refuted for t in cause.tested)


# An interval of a share that is this part of it to either side is told where the share is.
NOISY_PART = 0.25


def _cost(bound: Bound, facts: Facts, step_ms: float) -> str:
    """`Waiting for the loader costs 11.3 of 13.1 ms a step (86 %)`."""
    part = facts.share(bound) or 0.0
    costs = _COST[bound]
    if bound == "input" and (cost_beyond_wait(facts) or mapping_cost(facts)) is not None:
        costs = "The loader costs"  # by ablation: the loop hardly waits for it
    plain = ""  # of a step that nothing records, where a verdict rests on that
    if facts.trace is not None and facts.trace.plain_shares is not None and trace_alone(facts):
        estimate = facts.trace.plain_shares.as_dict().get(bound) or 0.0
        if estimate - part >= MODERATE_SHARE or part < MODERATE_SHARE <= estimate:
            plain = f", about {fmt.share(estimate)} where nothing is recorded"
    measured = facts.ablation.share(bound) if facts.ablation is not None else None
    noisy = measured is not None and measured.bounded and measured.margin >= NOISY_PART * part
    shown = fmt.share_within(part, interval(measured)) if noisy else fmt.share(part)
    if bound == "host" and (theirs := facts.host_of_others):  # waiting for their CPUs
        plain = f", {fmt.number(theirs * step_ms)} ms of it perhaps other programs' doing"
    return (
        f"{costs} {fmt.number(part * step_ms)} of {fmt.number(step_ms)} ms a step "
        f"({shown.replace(' (', ', ').rstrip(')')}{plain})"
    )


def _remedy(
    step_ms: float,
    cause: Finding | None,
    recommendations: Sequence[Recommendation],
    facts: Facts,
    findings: Sequence[Finding],
    n_tried: int | None,
) -> str:
    changes = changes_of(recommendations)
    change = next(iter(changes), None)
    faster = next((t for f in findings for t in f.tested if t.outcome.came == "faster"), None)
    untried = all(x.is_untried for x in changes)
    mine = cause.tested if cause is not None else ()
    near = next((t for t in mine if t.prediction.gains and t.refuted), None)
    if change is not None and n_tried and untried:
        # What was measured goes before what is only predicted, and before its figure.
        said = f"Tried: {fmt.count(n_tried, 'setting')}, none measurably faster here."
        said += f" One {near.sentence}" if near is not None else ""
        said = said if faster is None else f"A trial {faster.sentence}"
        return f"{said} {_not_tested(change)}"
    of_host = cause is not None and cause.kind in PARTS["host"]
    measured = next((x for x in changes if of_host and x.measured_ms is not None), None)
    if change is not None and change.is_untried and measured is not None:  # of another cause
        return f"{_not_tested(change)} Next to it: {_first_change(step_ms, measured)}"
    if change is not None:
        return _first_change(step_ms, change, inconclusive=_inconclusive(change, findings))
    if cause is not None and (near is not None or cause.advice is not None):
        said = f"Tried {near.sentence}" if near is not None else ""
        return f"{said} {cause.advice or ''}".strip()
    if faster is not None:
        return f"A trial {faster.sentence}"
    ablation = facts.ablation
    none = "No setting tried here was faster beyond the noise"
    tried = none if n_tried else "No setting was tried"
    if ablation is not None and ablation.no_input_ms is not None:
        shown = ablation.share("input")
        if shown is None or shown.low <= 0.0:  # one round, or noise: no loader is shown to cost
            return f"{tried}."
        floor = fmt.number(ablation.no_input_ms.value)
        return f"{tried}; an instant loader would bring the step to {floor} ms."
    if facts.share("input") is None:
        return _INPUT_UNKNOWN
    if trace_alone(facts) and not any(f.tested for f in findings):
        return UNTOLD
    return f"{tried}."


def _not_tested(change: Change) -> str:
    return f"Not tested: {change.words()[:1].lower()}{change.words()[1:]}."


def _inconclusive(change: Change, findings: Sequence[Finding]) -> bool:
    """Whether it was tried, in too few windows to say what came of it."""
    wanted = {(row.setting, row.to) for row in change.rows}
    return any(
        wanted <= set(test.outcome.settings.changed().items())
        for finding in findings
        for test in finding.tested
    )


def _first_change(step_ms: float, change: Change, *, inconclusive: bool = False) -> str:
    """What the list of changes begins with, and what it gains."""
    measured_ms, prediction = change.measured_ms, change.prediction()
    if measured_ms is not None:
        ratio = change.times_as_fast(step_ms)
        if measured_ms < step_ms and ratio is not None and ratio > 1.0:
            of = "" if change.per == "a step" else f" {change.per}"
            about, between = "", ""
            if change.is_loose:
                low, high = (fmt.number(end) for end in change.first.measured_ci_ms or ())
                about, between = "about ", f" ({low} to {high})"
            return (
                f"{change.opening} brings the step to {about}{fmt.number(measured_ms)} ms"
                f"{between}{of}, {about}{fmt.ratio(ratio)} as fast{change.compared(step_ms)}, "
                f"{change.measured_here}."
            )
        return (
            f"{change.opening} was faster than the loop as it is in the same rounds: "
            f"{fmt.number(measured_ms)} ms {change.per}, {change.measured_here}."
        )
    figure = f" ({prediction})" if prediction is not None else ""
    if change.is_code:
        title = change.words()
        if change.first.untested is not None and prediction is not None:
            return f"To try: {title[:1].lower()}{title[1:]}, {prediction}."
        return f"To change: {title[:1].lower()}{title[1:]}{figure}."
    if change.first.seen_step_ms is not None:
        return f"Tried {change.words()}: {prediction}."
    figure = f": {prediction}" if prediction is not None else ""
    if change.first.tuned is not None:
        return f"{change.opening}{figure}."
    how = "tried here in too few windows to tell" if inconclusive else "not tried here"
    return f"Try {change.words()}{figure}; it was {how}."


def _healthy(
    severity: VerdictSeverity,
    facts: Facts,
    step_ms: float,
    findings: Sequence[Finding],
    recommendations: Sequence[Recommendation],
    unsettled: str | None,
) -> str:
    threads = _threads(findings)
    change = next(iter(changes_of(recommendations)), None)
    best_ms = change.measured_ms if change is not None else None
    known = (facts.share("compute") or 0.0) > 0.0  # none at all was not seen, as too few steps
    busy = _cost("compute", facts, step_ms) if known else f"A step takes {fmt.number(step_ms)} ms"
    costs = [
        f"{name} {fmt.number(part * step_ms)} ms"
        for name, part in (("loader", facts.share("input")), ("copies", facts.share("copy")))
        if part is not None
    ]
    busy += f"; {' and '.join(costs)}." if costs else "."
    if change is not None and best_ms is not None and best_ms < step_ms:
        of = "" if change.per == "a step" else f" {change.per}"
        return (
            f"{of_loader(facts)}{threads}{busy} {change.opening} still brings the "
            f"step to {fmt.number(best_ms)} ms{of}, {change.measured_here}."
        )
    if threads:
        return f"{of_loader(facts)}{busy} {threads}".rstrip()
    matters = any(finding.severity in ("high", "moderate") for finding in findings)
    if change is not None and (matters or change.first.untested is not None):
        return f"{of_loader(facts)}{busy} {_first_change(step_ms, change)}"
    if (still_open := open_sentence(facts)) is not None:
        said = f"Nothing is shown to be worth changing. {busy} {still_open} {unsettled or ''}"
        return said.rstrip()
    if facts.share("input") is None:
        return f"{busy} {_INPUT_UNKNOWN}"
    return busy if severity == "uncertain" else f"Nothing worth changing. {busy}"


def _only_read(facts: Facts, step_ms: float, recommendations: Sequence[Recommendation]) -> str:
    """Of a pass in which no model is called: what reading takes, and no word on training."""
    main = facts.main_loader
    change = next(iter(changes_of(recommendations)), None)
    faster = ""
    if change is not None and change.measured_ms is not None:
        faster = f" {_first_change(step_ms, change)}"
    return (
        f"Batches{f' of {fmt.plain(main.id)}' if main is not None else ''} are only read, one in "
        f"{fmt.number(step_ms)} ms: no model was called and nothing trained for as long as was "
        f"waited for it. If training follows, this says nothing of it.{faster}"
    )
