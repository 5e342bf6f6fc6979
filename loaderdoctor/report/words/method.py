"""What a report's figures rest on: how each was measured, and what the report says against itself.

And its sentences in other words, of a loop that does not train, or that replays its first epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.trace import ProfilerFacts, TraceFacts
from loaderdoctor.findings.exposure import trace_alone
from loaderdoctor.report import model
from loaderdoctor.report.model import Report, Trial

_CLOCKS = {
    "device": "the accelerator's own progress, since the host runs ahead of it",
    "host-annotations": "the profiler's step marks",
    "fetches": "the fetch of each batch, as the trace has no step marks",
    "optimizer": "optimizer steps, as the trace has no step marks and no fetches",
}


def method_sentences(facts: Facts, trials: Sequence[Trial] = ()) -> Iterator[str]:
    """What the figures of a report rest on."""
    step = facts.step
    if step is not None:
        clock = "accelerator" if step.clock == "device" else "host"
        yield (
            f"Step time: {fmt.count(step.n_steps, 'step')} in "
            f"{fmt.count(step.wall_ms.n, 'window')} without the profiler, timed on the {clock}; "
            "± is the 95 % interval of the windows' mean."
        )
        if step.boundary_ms is not None:
            spread = (
                f", spread over {fmt.count(step.steps_per_epoch, 'step')}"
                if step.steps_per_epoch
                else ""
            )
            yield f"Epoch boundary: {fmt.ms(step.boundary_ms)} each{spread}."
        else:
            yield "Epoch boundary: none was seen, so worker start-up is not in the step time."
    if step is not None and step.cpu is not None and step.cpu.other_cores is not None:
        used = f"the training process used {step.main_cpu_cores or 0.0:.1f}"
        if step.worker_cpu_cores:
            used += f", its workers {step.worker_cpu_cores:.1f}"
        yield f"CPUs meanwhile: {used}, other programs {step.cpu.other_cores:.1f}."
    if facts.trace is not None:
        yield _trace(facts.trace, has_plain=step is not None)
        if step is None and facts.trace.host.profiler is not None:
            yield _recording(facts.trace.host.profiler)
        if facts.trace.gpu_devices:
            yield (
                "GPU utilisation, SM efficiency and occupancy: from kernel events, by the "
                "definitions of TensorBoard's PyTorch plugin; the last two are estimated from how "
                "kernels were launched. GPU-busy leaves copies out."
            )
    if step is not None and step.gpu_peak_allocated_bytes is not None:
        yield (
            "GPU memory: peaks of torch's allocator in the first window (of a run recorded to its "
            "end: up to that window's end), before anything was substituted."
        )
    if facts.profiler_overhead is not None:
        yield (
            f"The profiler made steps take {fmt.ratio(facts.profiler_overhead)} as long; times "
            "and rankings come from windows without it."
        )
    if facts.loop_lines is not None:
        yield (
            f"Lines of the loop: {fmt.count(facts.loop_lines.n_samples, 'stack sample')} of its "
            "thread, in windows that no time was taken from."
        )
    if facts.ablation is not None:
        yield (
            f"What loader and copies cost: {fmt.count(facts.ablation.n_rounds, 'round')} of plain "
            "windows and windows with batches already in memory, interleaved in the same "
            "process."
        )
        if facts.ablation.reason:
            yield f"Not measured by ablation: {fmt.plain(facts.ablation.reason)}"
    if trials:
        measurements = [trial.n_windows for trial in trials if trial.n_windows]
        each = f", up to {fmt.count(max(measurements), 'window')} each" if measurements else ""
        yield (
            f"Trials: {fmt.count(len(trials), 'combination')} of settings{each}, in shuffled "
            "rounds; batches made under the previous settings are dropped first."
        )


def _trace(trace: TraceFacts, *, has_plain: bool) -> str:
    what = "Profiled window" if has_plain else "Trace"
    if trace.step_clock == "window":
        return f"{what}: it marks no steps, so its shares are those of one window."
    clock = _CLOCKS[trace.step_clock]
    text = f"{what}: {fmt.count(trace.n_steps, 'step')}, told apart by {clock}."
    left_out = trace.left_out
    if left_out.n_edge_steps:
        steps = fmt.count(left_out.n_edge_steps, "step")
        text += f" Left out: {steps} at its edges, not recorded whole."
    if left_out.pause_ms:
        text += f" Left out: one that stood still, {fmt.ms(left_out.pause_ms)} long."
    return text


def _recording(profiler: ProfilerFacts) -> str:
    """How far the profiler itself made the host's part longer."""
    what = [fmt.count(round(profiler.n_ops), "operator")]
    if profiler.has_stacks:
        what.append(fmt.count(round(profiler.n_frames), "Python frame"))
    if profiler.n_memory_events:
        what.append(fmt.count(round(profiler.n_memory_events), "memory event"))
    listed = what[0] if len(what) == 1 else f"{', '.join(what[:-1])} and {what[-1]}"
    return (
        f"Recording {listed} a step took about {fmt.ms(profiler.likely_ms)} of the host's time "
        f"({fmt.number(profiler.least_ms)} to {fmt.ms(profiler.most_ms)}): host is smaller where "
        "nothing is recorded, and what the loop waits for a larger part. The verdict allows for it."
    )


# DESIGN: more than 2 % of the step in no share is a defect of ours, and the report says so.
MAX_OTHER_SHARE = 0.02


def warnings_of(facts: Facts) -> Iterator[model.ReportWarning]:
    """What a report says against itself: time in no share, and names that it left out."""
    other, trace = facts.share("other"), facts.trace
    if other is not None and trace is not None and trace.shared_gpu:
        other -= trace.kernels.held_up_ms / trace.wall_ms  # another process had it
    # Without a trace the rest was not recorded, which the shares say themselves.
    traced = facts.share("compute") is not None or facts.share("host") is not None
    if other is not None and other > MAX_OTHER_SHARE and traced:
        whole = "step" if facts.has_steps else "window"
        text = (
            f"{fmt.share(other)} of the {whole} is in no share. That is a defect of loaderdoctor: "
            "please report it with the trace."
        )
        yield model.ReportWarning(kind="unexplained-time", text=text)
    if trace is not None and trace_alone(facts):
        yield from _left_out(trace)
    if trace is not None and trace.n_ranges_left_out:
        names = fmt.count(trace.n_ranges_left_out, "more name")
        text = (
            f"{names} of record_function ranges are not listed. Give ranges names that do not "
            "change from step to step."
        )
        yield model.ReportWarning(kind="ranges-left-out", text=text)


# Of the recorded time, outside the steps: below, the steps are most of what there is.
MIN_OUTSIDE = 0.3


def _left_out(trace: TraceFacts) -> Iterator[model.ReportWarning]:
    """What a trace has that is in no figure of its steps."""
    left_out = trace.left_out
    outside = left_out.outside_share(trace.n_steps * trace.wall_ms)
    if outside >= MIN_OUTSIDE:
        text = (
            f"{fmt.share(outside)} of the recorded time lies outside the training steps "
            "(validation, saving, other work of the loop's) and in none of these figures. "
            "`loaderdoctor diagnose` tells what it is, and how much of a step."
        )
        yield model.ReportWarning(kind="outside-the-steps", text=text)
    if left_out.pause_ms:
        text = (
            f"One step of {trace.n_steps + 1} stood still, {fmt.ms(left_out.pause_ms)} long: "
            "nothing was fetched, computed or copied, and it is in none of these figures. What is "
            "built at its first use looks so, or a saved file: if it comes again, record more."
        )
        yield model.ReportWarning(kind="pause-left-out", text=text)


# Fields of report.json that hold sentences; names, code and figures stay as they are.
_SENTENCES = frozenset({"summary", "advice", "caution", "reason", "text", "method"})
_WORDS = (
    (r"\b([Aa]|[Ee]ach|[Ee]very|[Pp]er) step\b", r"\1 batch"),
    (r"\btraining (process|thread|loop)\b", r"main \1"),
    (r"A bigger batch changes training: warm the learning rate up\. ?", ""),
    (r"\b(which )?changes training\b", r"\1changes the results"),
    (r"\bahead of training\b", "ahead of time"),
    (r"\bbefore training\b", "beforehand"),
)


def of_inference(report: Report) -> Report:
    """The report of a loop that does not train, its sentences in words that fit that."""
    if report.trains:
        return report
    return msgspec.convert(_reworded(msgspec.to_builtins(report)), Report)


def _reworded(value: Any, *, sentence: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _reworded(one, sentence=key in _SENTENCES) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_reworded(one, sentence=sentence) for one in value]
    if sentence and isinstance(value, str):
        for pattern, words in _WORDS:
            value = re.sub(pattern, words, value)
    return value


def of_first_epoch(report: Report) -> Report:
    """The report of a loop that replays its first epoch from memory: its first words say so.

    What the loader costs, it costs there alone, and then nothing for however long training is.
    Copies and computing go on: of a verdict on those nothing is said.
    """
    if report.verdict.bound != "input":
        return report
    summary = (
        f"{report.verdict.summary} That is in the first epoch only: the loop then replays its "
        "batches from memory, and the loader costs it nothing more."
    )
    return msgspec.structs.replace(
        report, verdict=msgspec.structs.replace(report.verdict, summary=summary)
    )
