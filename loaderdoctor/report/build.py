"""Facts, findings and trials -> the Report that every view shows. Converts; decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import msgspec

from loaderdoctor.estimate import Estimate, Interval, interval
from loaderdoctor.facts import Facts, RankFacts, RankStep
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.facts.loop import AblationFacts, Mechanisms, StepFacts, WallFacts
from loaderdoctor.facts.step import Bound, Shares, VerdictSeverity
from loaderdoctor.facts.trace import BusyFacts
from loaderdoctor.findings import Finding, Tested
from loaderdoctor.findings.capacity import workers_forecast_bytes
from loaderdoctor.findings.line_names import seen_enough, spread_words
from loaderdoctor.instrument.wire.records import Environment
from loaderdoctor.report import model, plain_value, run_model
from loaderdoctor.report.model import Trial
from loaderdoctor.report.run_model import Cpu, Outside, Wall, script_of
from loaderdoctor.report.words import epoch_sentence, idle_gaps_sentence
from loaderdoctor.report.words.method import method_sentences, of_inference, warnings_of
from loaderdoctor.report.words.summary import verdict_sentence
from loaderdoctor.settings import Settings

Mirror = TypeVar("Mirror", bound=msgspec.Struct)

_CLOCK_DEFINITIONS = {
    "device": "a profiler step of the trace, as the accelerator reached it",
    "host-annotations": "a profiler step of the trace",
    "fetches": "one batch fetched",
    "optimizer": "one optimizer step",
    "window": "the trace marks no steps, so all of it is one window",
}
_ABLATED = ("no_input_ms", "no_copy_ms", "input_ms", "copy_ms")
_OF_POOL = ("num_workers", "start_method")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a run was found to be.

    `summary` replaces the composed sentence; `unsettled` says why an uncertain verdict was not
    settled by measuring longer.
    """

    bound: Bound
    severity: VerdictSeverity
    findings: Sequence[Finding] = ()
    summary: str | None = None
    unsettled: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was tried, where, and what is advised of it."""

    trials: Sequence[model.Trial] = ()
    best: model.Best | None = None
    recommendations: Sequence[model.Recommendation] = ()
    not_advised: Sequence[model.NotAdvised] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    cluster: model.Cluster | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotes:
    """What else there is to know of a run. `method` is added to what facts and trials say of it."""

    environment: Environment | None = None
    warnings: Sequence[model.ReportWarning] = ()
    method: Sequence[str] = ()
    ranks: Sequence[model.Rank] = ()
    memory_history: model.MemoryHistory | None = None


def build_report(
    facts: Facts,
    *,
    target: str,
    judged: Judged,
    tried: Tried = Tried(),
    notes: RunNotes = RunNotes(),
) -> model.Report:
    """The report of one run. Never raises for missing evidence: what is None stays None."""
    if facts.trace is None:
        tried = replace(tried, recommendations=tuple(map(_by_times, tried.recommendations)))
    report = model.Report(
        command=facts.command,
        target=target,
        verdict=model.Verdict(
            bound=judged.bound,
            severity=judged.severity,
            summary=judged.summary
            or verdict_sentence(
                judged.bound,
                judged.severity,
                facts=facts,
                findings=judged.findings,
                recommendations=tried.recommendations,
                unsettled=judged.unsettled,
                n_tried=sum(t.step_ms is not None for t in tried.trials[1:]),
            ),
        ),
        step=step_of(facts),
        loaders=tuple(
            _like(model.Loader, x, settings=x.settings.as_dict(), dataset=x.dataset or None)
            for x in facts.loaders
        ),
        shares=shares_of(facts.shares),
        trace_shares=shares_of(facts.trace.shares if facts.trace is not None else None),
        hidden=_hidden(facts),
        ablation=_ablation(facts.ablation),
        profiler_overhead=facts.profiler_overhead,
        workers=_workers(facts.workers),
        other_workers=tuple(w for x in facts.other_workers if (w := _workers(x)) is not None),
        gpu=gpu_of(facts),
        ranges=tuple(_like(model.UserRange, x) for x in facts.trace.ranges) if facts.trace else (),
        memory_history=notes.memory_history,
        cpu=_cpu(facts),
        trains=facts.trains,
        calls_model=facts.calls_model,
        before_training=tuple(_like(model.PassBeforeTraining, x) for x in facts.before_training),
        loop_lines=asdict(facts.loop_lines) if facts.loop_lines is not None else None,
        wall=_wall(facts.wall),
        script=script_of(facts.script),
        findings=tuple(_finding(finding) for finding in judged.findings),
        recommendations=tuple(tried.recommendations),
        not_advised=tuple(tried.not_advised),
        trials=tuple(with_forecast(facts, trial) for trial in tried.trials),
        best=tried.best,
        claims=tuple(dict(claim) for claim in tried.claims),
        ranks=tuple(notes.ranks),
        cluster=tried.cluster,
        warnings=(*notes.warnings, *warnings_of(facts)),
        environment=_environment(notes.environment),
        method=(*method_sentences(facts, tried.trials), *notes.method),
    )
    return of_inference(report)


def _by_times(row: model.Recommendation) -> model.Recommendation:
    """Of a run without a trace: what rests on no ablation rests on times alone."""
    by_trace = row.predicted_from == "trace"
    return msgspec.structs.replace(row, predicted_from="times") if by_trace else row


def shares_of(shares: Shares | None) -> model.Shares | None:
    return model.Shares(**shares.as_dict()) if shares is not None else None


def step_of(facts: Facts) -> model.Step:
    """The step: plain windows where they ran, else the trace."""
    step, trace = facts.step, facts.trace
    if step is not None:
        return step_of_plain(step)
    if trace is None:
        return model.Step(count=0, wall_ms=None, wall_ms_ci=None, definition="no step was seen")
    wall_ms = trace.wall_ms if math.isfinite(trace.wall_ms) else None
    return model.Step(
        count=trace.n_steps,
        wall_ms=wall_ms if facts.has_steps else None,
        window_ms=None if facts.has_steps else wall_ms,
        wall_ms_ci=None,  # steps of one window are correlated: they give no interval
        definition=_CLOCK_DEFINITIONS[trace.step_clock],
    )


def step_of_plain(step: StepFacts) -> model.Step:
    """The step as plain windows measured it."""
    # A loop that drops its iterator pays in each step what else an epoch's end costs: its steps
    # have no other boundary, however long an epoch would be.
    each_step = step.n_iterators_created >= step.n_steps and (step.steps_per_epoch or 0) > 1
    return model.Step(
        count=step.n_steps,
        wall_ms=step.wall_ms.value,
        wall_ms_ci=interval(step.wall_ms),
        within_epoch_ms=step.within_epoch_ms.value,
        boundary_ms=None if each_step else step.boundary_ms,
        loader_boundary_ms=None if each_step else step.loader_boundary_ms,
        steps_per_epoch=step.steps_per_epoch,
        definition=step.definition,
    )


def rank_rows(
    ranks: Sequence[RankFacts], definition: str, measured: Sequence[RankStep] = ()
) -> tuple[model.Rank, ...]:
    """In order of rank: those of the traces, with steps measured without the profiler if given."""
    plain = {one.rank: one for one in measured}
    traced = {one.rank: one for one in ranks}
    return tuple(
        _rank(rank, traced.get(rank), plain.get(rank), definition)
        for rank in sorted({*plain, *traced})
    )


def _rank(rank: int, one: RankFacts | None, plain: RankStep | None, definition: str) -> model.Rank:
    step = step_of_plain(plain.step) if plain is not None and plain.step is not None else None
    if one is None:
        none = model.Step(count=0, wall_ms=None, wall_ms_ci=None, definition=definition)
        host = plain.host if plain is not None else ""
        return model.Rank(rank=rank, host=host, step=step or none, shares=None, peer_wait_ms=None)
    traced = model.Step(
        count=one.n_steps,
        wall_ms=one.wall_ms if math.isfinite(one.wall_ms) else None,
        wall_ms_ci=None,
        definition=definition,
    )
    return model.Rank(
        rank=rank,
        host=one.host or (plain.host if plain is not None else ""),
        step=step or traced,
        shares=shares_of(one.shares),
        peer_wait_ms=one.peer_wait_ms,
        own_ms=one.own_ms if math.isfinite(one.own_ms) else None,
        trace=one.source,
    )


def _like(kind: type[Mirror], facts: object, /, **changed: Any) -> Mirror:
    """A row of report.json with the fields that these facts have by the same names."""
    names = (name for name in kind.__struct_fields__ if name not in changed)
    same = {name: getattr(facts, name) for name in names if hasattr(facts, name)}
    return kind(**same, **changed)


def _hidden(facts: Facts) -> model.Hidden:
    hidden = facts.hidden or (facts.trace.hidden if facts.trace is not None else None)
    if hidden is None:
        return model.Hidden(input_ms=None, copy_ms=None)
    return _like(model.Hidden, hidden)


def _ablation(claimed: AblationFacts | None) -> model.Ablation | None:
    """As measured; what was bounded of it, and the step without, are its claims."""
    if claimed is None:
        return None
    facts = claimed.raw or claimed
    new, seen = facts.new_shapes, facts.mechanisms
    parts = {name: getattr(facts, name) for name in _ABLATED}
    ci = {"plain_ms": facts.plain_ms, **parts}
    if new is not None:
        ci["new_shape_ms"] = new.cost_ms
    bounded = {} if claimed.raw is None else {name: getattr(claimed, name) for name in _ABLATED}
    return _like(
        model.Ablation,
        facts,
        plain_ms=facts.plain_ms.value,
        **{name: estimate and estimate.value for name, estimate in parts.items()},
        ci_ms={name: interval(estimate) for name, estimate in ci.items()},
        by_loader_ms={loader: estimate.value for loader, estimate in facts.by_loader_ms},
        new_shape_part=new.new_part if new is not None else None,
        new_shape_ms=new.cost_ms.value if new is not None and new.cost_ms is not None else None,
        claims=_figures(bounded),
        seen_ms=_figures(_seen(seen) if seen is not None else {}),
    )


def _seen(mechanisms: Mechanisms) -> dict[str, Estimate | None]:
    """Each mechanism by the name that report.json has for it."""
    return {
        "wait": mechanisms.wait_ms,
        "receiving_cpu": mechanisms.got_ms,
        "queued": mechanisms.queued_ms,
        "loader_cpu": mechanisms.work_ms,
        "run_queue": mechanisms.run_queue_ms,
        "cpu": mechanisms.cpu_ms,
        "interpreter": mechanisms.interpreter_ms,
        "mapping": Estimate.around(mechanisms.mapping_ms, 0.0, n=1),
    }


def _figures(parts: Mapping[str, Estimate | None]) -> dict[str, tuple[float, Interval | None]]:
    """Those that were recorded, with their intervals."""
    return {name: (x.value, interval(x)) for name, x in parts.items() if x is not None}


def _workers(facts: WorkerFacts | None) -> model.Workers | None:
    if facts is None:
        return None
    return _like(
        model.Workers,
        facts,
        transforms=dict(facts.transforms),
        spread=spread_words(facts.lines),
        lines=tuple(
            _like(
                run_model.HotLine,
                hotspot,
                n_looks=hotspot.n_stack_samples,
                of_looks=hotspot.of_stack_samples,
                named=seen_enough((hotspot,)),
            )
            for hotspot in facts.lines
        ),
    )


def gpu_of(facts: Facts) -> run_model.Gpu | None:
    """None where neither a device nor its memory was seen."""
    trace, step = facts.trace, facts.step
    devices = trace.gpu_devices if trace is not None else ()
    busy = trace.busy if trace is not None else None
    allocated = step.gpu_peak_allocated_bytes if step is not None else None
    reserved = step.gpu_peak_reserved_bytes if step is not None else None
    if allocated is None:  # no plain window with a device: what the trace's memory events say
        recorded = [d for d in devices if d.peak_allocated_bytes is not None]
        allocated = max((d.peak_allocated_bytes or 0 for d in recorded), default=None)
        reserved = max((d.peak_reserved_bytes or 0 for d in recorded), default=None)
    if not devices and busy is None and allocated is None:
        return None
    return run_model.Gpu(
        devices=tuple(_like(run_model.GpuDevice, device) for device in devices),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        busy=_busy(busy, step) if busy is not None else None,
    )


def _busy(busy: BusyFacts, step: StepFacts | None) -> run_model.GpuBusy:
    gaps = busy.idle_gaps
    return _like(
        run_model.GpuBusy,
        busy,
        summary=idle_gaps_sentence(busy) + epoch_sentence(busy, step),
        idle_gaps=_like(run_model.GpuIdleGaps, gaps) if gaps is not None else None,
    )


def _cpu(facts: Facts) -> Cpu | None:
    step = facts.step
    if step is None:
        return None
    return Cpu(
        usable=facts.machine.usable_cpus if facts.machine is not None else None,
        training=step.main_cpu_cores,
        workers=step.worker_cpu_cores,
        others=step.cpu.other_cores if step.cpu is not None else None,
        waiting_threads=step.cpu.waiting_threads if step.cpu is not None else None,
        throttled_share=step.cpu.throttled_share if step.cpu is not None else None,
    )


def _wall(facts: WallFacts | None) -> Wall | None:
    if facts is None:
        return None
    return _like(
        Wall,
        facts,
        outside=tuple(_like(Outside, x) for x in facts.outside),
        elsewhere=tuple(_like(Outside, x) for x in facts.elsewhere),
    )


def _finding(finding: Finding) -> model.Finding:
    return _like(
        model.Finding,
        finding,
        kind=finding.kind.value,
        severity=finding.severity.value,
        evidence=plain_value(finding.evidence),
        aspect_of=finding.aspect_of.value if finding.aspect_of is not None else None,
        tested=tuple(_test(tested) for tested in finding.tested),
    )


def _test(tested: Tested) -> model.FindingTest:
    outcome, prediction = tested.outcome, tested.prediction
    return model.FindingTest(
        setting=prediction.setting,
        predicted_step_ms=prediction.step_ms,
        tried=outcome.settings.label(),
        step_ms=outcome.step_ms,
        own_step_ms=outcome.own_ms,
        outcome=outcome.came,
        refuted=tested.refuted,
        confirmed=outcome.confirmed,
    )


def _environment(environment: Environment | None) -> dict[str, Any]:
    """Every field by name, also those that are None: msgspec would leave defaults out."""
    if environment is None:
        return {}
    return {name: plain_value(getattr(environment, name)) for name in environment.__struct_fields__}


def with_forecast(facts: Facts, trial: Trial) -> Trial:
    """The row as it is where nothing was seen of its workers' memory."""
    if trial.workers_bytes is None:
        return trial
    settings = Settings(**{k: v for k, v in trial.settings.items() if k in _OF_POOL})
    forecast = workers_forecast_bytes(facts, settings)
    return msgspec.structs.replace(trial, workers_forecast_bytes=forecast)
