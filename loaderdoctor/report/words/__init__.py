"""What the bar at the top shows, what its parts are of, and what lies outside the steps.

Parts of a step, of a batch where nothing trains, of a trace as one window, or of all the time where
that is the point: the whole wall. And the GPU and the user's own ranges in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import OutsideFacts, StepFacts, WallFacts
from loaderdoctor.facts.step import (
    HIGH_SHARE,
    MODERATE_SHARE,
    VerdictSeverity,
    shown_severity,
)
from loaderdoctor.facts.trace import BusyFacts, IdleGapFacts
from loaderdoctor.findings import Finding as FoundFinding
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.line_names import PHASES
from loaderdoctor.findings.loop_words import named, next_to_elsewhere, outside_words
from loaderdoctor.report import model, run_model
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import Outside

# The parts of a step in reading order: what can be gained first, then what the step is for.
SHARE_ORDER = ("input", "copy", "communication", "host", "compute", "other")
# What lies outside the steps, before all of them: there only where the verdict is about it.
OUTSIDE = "outside"
_ALWAYS_SHOWN = ("input", "copy", "host", "compute")
# Two lists of tensor-core kernels that differ by less tell the same.
SAME_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the whole. `share` None: not recorded or not applicable, as `text` says."""

    name: str
    share: float | None
    ms: str
    text: str
    hidden: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`title` and `time` are of what the parts make up; no parts where nothing is known."""

    title: str
    time: str  # with the noise
    unit: str  # behind it
    is_known: bool  # whether `time` is a time
    parts: tuple[Part, ...]


def is_outside(report: Report) -> bool:
    """Whether the verdict is about what lies outside the steps."""
    return report.verdict.bound == OUTSIDE


def parts_of(report: Report) -> Parts:
    """The shares, without those that are nothing and go without saying."""
    shares, whole, wall = report.shares, whole_of(report), report.wall
    values = {name: getattr(shares, name) for name in SHARE_ORDER} if shares is not None else {}
    if not is_outside(report) or wall is None or not values:
        return Parts(
            title=whole.title,
            time=whole.time,
            unit=whole.unit,
            is_known=whole.ms is not None,
            parts=_parts(report, values, whole.ms),
        )
    inside = 1.0 - wall.outside_share
    # Without windows the step's time is that of profiled steps; what lies outside is of others.
    step = whole.time if report.step.wall_ms_ci is not None else fmt.ms(wall.step_ms)
    scaled = {name: None if v is None else v * inside for name, v in values.items()}
    return Parts(
        title="A training step, with its share of what lies outside",
        time=fmt.ms(wall.total_ms),
        unit=f"a training step, {step} of it the step itself",
        is_known=True,
        parts=_parts(report, {OUTSIDE: wall.outside_share, **scaled}, wall.total_ms),
    )


def _parts(
    report: Report, values: Mapping[str, float | None], whole_ms: float | None
) -> tuple[Part, ...]:
    hidden = {"input": report.hidden.input_ms, "copy": report.hidden.copy_ms}
    found = []
    for name, share in values.items():
        if not share and name not in _ALWAYS_SHOWN:
            continue
        absent = f"{fmt.NOT_APPLICABLE} (no accelerator)" if name == "copy" else fmt.NOT_RECORDED
        behind = hidden.get(name)
        found.append(
            Part(
                name=name,
                share=share,
                ms=fmt.ms(share * whole_ms) if share is not None and whole_ms is not None else "",
                text=fmt.share(share) if share is not None else absent,
                hidden=f"and {fmt.ms(behind)} hidden behind other work" if behind else "",
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """`ms` None: its time was not recorded."""

    title: str  # of the section that shows its shares
    ms: float | None
    time: str  # with the noise
    unit: str  # behind a time: "a step"
    per: str  # in a heading, behind a unit of time


def whole_of(report: Report) -> Whole:
    step = report.step
    if step.window_ms is not None:
        return Whole(
            title="The recorded window",
            ms=step.window_ms,
            time=fmt.ms(step.window_ms),
            unit="in all",
            per="in all",
        )
    unit = "a step" if report.trains else "a batch"
    return Whole(
        title="The step" if report.trains else "A batch",
        ms=step.wall_ms,
        time=(
            fmt.step_ms(step.wall_ms, step.wall_ms_ci)
            if step.wall_ms is not None
            else f"Step time {fmt.NOT_RECORDED}"
        ),
        unit=unit if step.wall_ms is not None else "",
        per=unit,
    )


# More places than this are not named in one sentence.
_MOST_NAMED = 3


def outside_sentence(wall: WallFacts, findings: Sequence[FoundFinding]) -> str:
    """The verdict where most lies outside: how much, what, where, and what to do."""
    mine = next((f for f in findings if f.kind is Kind.TIME_OUTSIDE_STEPS), None)
    once = ""
    if wall.low_share < MODERATE_SHARE:
        once = " It was seen once only: that may be the slowest."
    advice = f" {mine.advice}" if mine is not None and mine.advice else ""
    return f"{outside_cost(wall)}{once}{advice}"


def waits_sentence(
    severity: VerdictSeverity, facts: Facts, findings: Sequence[FoundFinding]
) -> str | None:
    """The verdict where it rests on waits for other loaders that train; None where it does not."""
    mine = next((f for f in findings if f.kind is Kind.TRAINS_ELSEWHERE), None)
    told = f"{mine.summary} {mine.advice or ''}".rstrip() if mine is not None else ""
    if severity == "uncertain":
        rests = mine is not None and mine.severity is Severity.UNCERTAIN
        return told if rests and (facts.share("input") or 0.0) < MODERATE_SHARE else None
    cost = waits_cost(facts, severity)
    return f"{cost} {told}".rstrip() if cost is not None else None


def waits_cost(facts: Facts, severity: VerdictSeverity) -> str | None:
    """What all loaders that train are waited for; None where the step's bears the severity."""
    wall = facts.wall.seen_again if facts.wall is not None else None
    if wall is None or not wall.elsewhere_wait_ms or facts.step is None:
        return None
    own, scale = facts.share("input") or 0.0, wall.step_ms / wall.total_ms
    low = (facts.shares_low or {}).get("input")
    alone = shown_severity(own * scale, low * scale if low is not None else None)
    needed = HIGH_SHARE if severity == "high" else MODERATE_SHARE
    if facts.step.clock == "device" or (own * scale >= needed and alone in (severity, "high")):
        return None
    total, theirs = wall.waits_share(own), wall.waits_share(0.0)
    named = ", ".join(dict.fromkeys(p.site for p in wall.elsewhere if p.site and p.wait_share))
    others = f"steps on other loaders than the measured one{f' ({named})' if named else ''}"
    if not own:
        return f"Waiting for loaders takes {fmt.share(total)} of all the time, in {others}."
    return (
        f"Waiting for loaders takes {fmt.share(total)} of all the time: {fmt.share(theirs)} in "
        f"{others}, {fmt.share(total - theirs)} in its own."
    )


def outside_cost(wall: WallFacts) -> str:
    """How much lies outside the steps, what and where, next to the step itself."""
    known = [part for part in wall.outside if part.ms_per_step]
    listed = "; ".join(_named(part) for part in known[:_MOST_NAMED])
    if len(known) == 1:  # then its milliseconds are those of all
        listed = f"{named(known[0])}, {outside_words(known[0])}"
    return (
        f"Of {fmt.number(wall.total_ms)} ms for each training step {fmt.number(wall.outside_ms)} "
        f"pass outside the steps ({fmt.share(wall.outside_share)}): {listed}. The step itself "
        f"takes {fmt.number(wall.own_ms)} ms.{next_to_elsewhere(wall)}"
    )


def wall_sentence(report: Report) -> str | None:
    """What a training step takes with all that lies outside; None where nothing is known to.

    Of what the verdict says nothing is repeated.
    """
    wall = report.wall
    if wall is None or not wall.outside:
        return None
    known = [part for part in wall.outside if part.ms_per_step]
    seen = [part for part in wall.outside if not part.ms_per_step]
    said = []
    if known and report.verdict.bound != "outside":
        listed = "; ".join(_named(part) for part in known)
        said.append(
            f"With what lies outside the steps, a training step takes {fmt.ms(wall.total_ms)}, "
            f"{fmt.share(wall.outside_share)} of it outside: {listed}."
        )
    said += [
        f"{_upper(named(part))}: {outside_words(part)}. How often it comes is not "
        f"known after {fmt.count(wall.n_steps, 'step')}."
        for part in seen
    ]
    return " ".join(said) or None


def _named(part: OutsideFacts | Outside) -> str:
    """`validation (train.py:57) 36.4 ms, 0.2 s every 5 steps, seen 40 times`."""
    return f"{named(part)} {fmt.ms(part.ms_per_step)}, {outside_words(part)}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def device_figures(device: run_model.GpuDevice) -> tuple[tuple[str, str], ...]:
    """(what, figure) of one device, those that were recorded."""
    figures = [
        ("utilisation", device.utilization_share),
        ("est. SM efficiency", device.sm_efficiency_share),
        ("est. achieved occupancy", device.occupancy_share),
    ]
    shown = [(name, fmt.share(value)) for name, value in figures if value is not None]
    own, plugin = device.tensor_core_share, device.plugin_tensor_core_share
    if own is not None:
        shown.append(("tensor cores", f"{fmt.share(own)} of kernel time"))
        if plugin is not None and abs(plugin - own) >= SAME_SHARE:
            shown.append(("by TensorBoard's list", fmt.share(plugin)))
    return tuple(shown)


def memory_figures(gpu: run_model.Gpu) -> tuple[tuple[str, str], ...]:
    """(what, figure) of the peaks; of the device's memory where its size is known."""
    if gpu.peak_allocated_bytes is None:
        return ()
    sizes = [device.memory_bytes for device in gpu.devices if device.memory_bytes is not None]
    whole = f" of {fmt.n_bytes(sizes[0])}" if sizes else ""
    shown = [("peak memory", f"{fmt.n_bytes(gpu.peak_allocated_bytes)} allocated")]
    if gpu.peak_reserved_bytes is not None:
        shown.append(("reserved", f"{fmt.n_bytes(gpu.peak_reserved_bytes)}{whole}"))
    return tuple(shown)


def device_heading(device: run_model.GpuDevice, n_devices: int) -> str:
    """Which device figures are of; empty where there is one."""
    if n_devices < 2:
        return ""
    return f"GPU {device.index}" + (f" ({fmt.plain(device.name)})" if device.name else "")


def named_lines(made: model.Workers) -> list[run_model.HotLine]:
    """Lines of the code that makes batches, those that were seen often enough."""
    return [line for line in made.lines if line.named]


def line_words(line: run_model.HotLine) -> str:
    """`71 % (71 of 100 stack samples of fetching)`."""
    seen = f"{line.n_looks} of {line.of_looks} stack samples of {PHASES[line.phase]}"
    return f"{fmt.share(line.share)} ({seen})"


def no_line_sentence(made: model.Workers) -> str | None:
    """For where some were seen, and none often enough."""
    if not made.lines or named_lines(made):
        return None
    if made.spread is not None:
        return f"No line alone; most of it: {fmt.plain(made.spread)}."
    seen = fmt.count(sum(line.n_looks for line in made.lines), "stack sample")
    return f"{seen} of its code: too few, or too spread, to name a line."


def memory_history_sentence(history: model.MemoryHistory) -> str:
    """Where the snapshot is, how much it holds and what recording it cost."""
    entries = fmt.count(history.n_entries, "entry", "entries")
    if history.n_entries >= history.max_entries:
        entries += ", the latest: older ones were dropped"
    size = f"{fmt.n_bytes(history.n_bytes)}, " if history.n_bytes is not None else ""
    text = f"{fmt.plain(history.path)} ({size}{entries})"
    if history.overhead is None:
        return f"{text}; what recording it cost was not measured."
    ratio = fmt.ratio(history.overhead)
    if history.overhead_ci is not None:
        low, high = map(fmt.ratio, history.overhead_ci)
        ratio += f" (95 %: {low} to {high})"
    return f"{text}. While it was recorded, steps took {ratio} as long."


def idle_gaps_sentence(busy: BusyFacts) -> str:
    """How the GPU's use runs over the window: even, or with idle gaps of which depth and period."""
    window = fmt.seconds(busy.window_ms / 1e3)
    idle_gaps = busy.idle_gaps
    if idle_gaps is None:
        mean = fmt.share(fmean(busy.shares) if busy.shares else None)
        return (
            f"GPU-busy runs evenly at {mean} over the {window} profiled: it falls idle nowhere for "
            "longer than in every step."
        )
    usual, low = fmt.share(idle_gaps.usual_share), fmt.share(idle_gaps.low_share)
    depth = f"GPU-busy falls from {usual} to {low}"
    if idle_gaps.period_ms is None:
        often = f"once in the {window} profiled"
    elif idle_gaps.regular or idle_gaps.matches is not None:
        often = f"about every {fmt.seconds(idle_gaps.period_ms / 1e3)}"
    else:
        often = f"{fmt.count(idle_gaps.n, 'time')} in the {window} profiled"
    each = " each" if idle_gaps.n > 1 else ""
    text = (
        f"{depth} {often}{_matched(idle_gaps)}, for {fmt.seconds(idle_gaps.mean_ms / 1e3)}{each}."
    )
    if idle_gaps.waiting_share is not None:
        text += f" {fmt.share(idle_gaps.waiting_share)} of that time the loop waits for a batch."
    return text


def _matched(idle_gaps: IdleGapFacts) -> str:
    steps = idle_gaps.match_steps
    if idle_gaps.matches == "epoch":
        length = f" of {fmt.count(steps, 'step')}" if steps else ""
        return f" (where an epoch{length} begins)"
    if idle_gaps.matches == "worker-cycle" and steps:
        return f" (in each cycle of {fmt.count(steps, 'step')}, one batch from every worker)"
    if idle_gaps.regular and idle_gaps.period_steps:
        return f" ({fmt.count(round(idle_gaps.period_steps), 'step')})"
    return ""


def epoch_sentence(busy: BusyFacts, step: StepFacts | None) -> str:
    """Idle gaps at epochs that the window is too short to show, by plain windows; or none."""
    if step is None or step.boundary_ms is None or not step.steps_per_epoch:
        return ""
    epoch_ms = step.wall_ms.value * step.steps_per_epoch
    shown = busy.idle_gaps is not None and busy.idle_gaps.matches == "epoch"
    # As for idle gaps of the window: no less than a step, or nobody sees them.
    if shown or epoch_ms <= busy.window_ms or step.boundary_ms < step.within_epoch_ms.value:
        return ""
    return (
        f" An epoch is longer than the window: one begins about every "
        f"{fmt.seconds(epoch_ms / 1e3)}, and its first step takes "
        f"{fmt.seconds(step.boundary_ms / 1e3)} longer."
    )


# Under a table in which some ranges lie in others.
NESTED = "An outer range holds what its inner ones took."


def range_headings(per: str) -> tuple[str, ...]:
    """Of the table of ranges; `per`: what their times are of."""
    return ("range", "calls", f"host ms {per}", f"GPU ms {per}")


def range_rows(ranges: Sequence[model.UserRange]) -> tuple[tuple[str, str, str, str], ...]:
    """One row a range, costliest first."""
    return tuple(
        (
            fmt.plain(found.name),
            f"{found.n_calls:,}",
            fmt.number(found.host_ms_per_step),
            "–" if found.gpu_ms_per_step is None else fmt.number(found.gpu_ms_per_step),
        )
        for found in ranges
    )
