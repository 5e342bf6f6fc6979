"""How the report speaks of the GPU and of the user's own ranges, on the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from loaderdoctor import format as fmt
from loaderdoctor.facts.loop import StepFacts
from loaderdoctor.facts.trace import BusyFacts, IdleGapFacts
from loaderdoctor.report import model, run_model

# Two lists of tensor-core kernels that differ by less tell the same.
SAME_SHARE = 0.005


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


def heading(device: run_model.GpuDevice, n_devices: int) -> str:
    """Which device figures are of; empty where there is one."""
    if n_devices < 2:
        return ""
    return f"GPU {device.index}" + (f" ({fmt.plain(device.name)})" if device.name else "")


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
