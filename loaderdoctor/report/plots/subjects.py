"""Which pictures a sweep's report has figures for, and what is in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loaderdoctor.report.html.subjects import workers_by_prefetch
from loaderdoctor.report.model import Report, Trial
from loaderdoctor.report.plots import draw
from loaderdoctor.report.plots.draw import Series

_SHARES = ("input", "copy", "communication", "host", "compute", "other")


def pictures_of(report: Report) -> Iterator[tuple[str, bytes]]:
    """(file name without its ending, PNG) of each picture."""
    alike = report.by_hardware[0][2] if report.trials else ()  # unlike machines are not compared
    ran = [
        trial
        for i, trial in enumerate(report.trials)
        if trial.status == "ok" and trial.step_ms is not None and i in alike
    ]
    if not ran:
        return
    groups = _groups(ran)
    if len(groups) > 1:
        yield (
            "times-overview",
            draw.grouped_bars("Time", {group: _times(trials) for group, trials in groups.items()}),
        )
    for group, trials in groups.items():
        yield _name("times", group), draw.bars(_title("Time", group), _times(trials))
    shared = [trial for trial in ran if trial.shares is not None and trial.same_as is None]
    if shared:
        yield "shares", draw.stacked("Where the step goes", _labels(shared), _parts(shared))
    if grid := workers_by_prefetch(ran, report.loaders[0].settings if report.loaders else {}):
        yield (
            "workers-prefetch",
            draw.heat_map(
                "Step time by workers and prefetch factor",
                grid.workers,
                grid.prefetch,
                grid.step_ms,
            ),
        )
    yield from _memory(groups)


def _groups(ran: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Trials by their group in a preset; all together where there are none."""
    rows = [trial for trial in ran if trial.row is not None]
    found: dict[str, list[Trial]] = {}
    for trial in rows or ran:
        found.setdefault(trial.group or "", []).append(trial)
    return found


def _memory(groups: dict[str, list[Trial]]) -> Iterator[tuple[str, bytes]]:
    on_gpu = {g: _of_gpu(trials) for g, trials in groups.items() if _of_gpu(trials)}
    for group, trials in _with_overview(on_gpu).items():
        yield _name("gpu-memory", group), _gpu_picture(_title("GPU memory", group), trials)
        others = [trial for trial in trials if not trial.settings.get("resident")]
        if others and len(others) < len(trials):
            yield (
                _name("gpu-memory-without-resident", group),
                _gpu_picture(_title("GPU memory without resident", group), others),
            )
    on_host = {
        group: known
        for group, trials in groups.items()
        if (known := [trial for trial in trials if trial.host_bytes is not None])
    }
    for group, trials in _with_overview(on_host).items():
        series = Series(
            labels=_labels(trials),
            values=tuple((trial.host_bytes or 0) / 2**30 for trial in trials),
            unit="GiB",
        )
        title = _title("Host memory of the whole process tree", group)
        yield _name("host-memory", group), draw.bars(title, series)


def _with_overview(groups: dict[str, list[Trial]]) -> dict[str, list[Trial]]:
    if len(groups) < 2:
        return groups
    return {"overview": [trial for trials in groups.values() for trial in trials], **groups}


def _of_gpu(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.gpu_peak_allocated_bytes is not None]


def _gpu_picture(title: str, trials: Sequence[Trial]) -> bytes:
    allocated = tuple((t.gpu_peak_allocated_bytes or 0) / 2**20 for t in trials)
    reserved = tuple((t.gpu_peak_reserved_bytes or 0) / 2**20 for t in trials)
    return draw.bars_and_line(
        title, _labels(trials), allocated, reserved, names=("allocated, MiB", "reserved, MiB")
    )


def _times(trials: Sequence[Trial]) -> Series:
    """Epochs where all have them (start-up included, as published figures are), else steps."""
    if all(trial.epoch_s is not None for trial in trials) and trials[0].row is not None:
        scales = [(t.epoch_s or 0.0) / (t.step_ms or 1.0) for t in trials]
        unit = "s an epoch, start-up included"
    else:
        scales, unit = [1.0] * len(trials), "ms a step"
    return Series(
        labels=_labels(trials),
        values=tuple((t.step_ms or 0.0) * s for t, s in zip(trials, scales, strict=True)),
        errors=tuple(
            (t.step_ms_ci[1] - t.step_ms_ci[0]) / 2 * s if t.step_ms_ci is not None else 0.0
            for t, s in zip(trials, scales, strict=True)
        ),
        unit=unit,
    )


def _labels(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Short names; the group stands with them where there are several."""
    several = len({trial.group for trial in trials}) > 1
    return tuple(f"{t.group}: {t.label}" if several and t.group else t.label for t in trials)


def _parts(trials: Sequence[Trial]) -> dict[str, tuple[float, ...]]:
    found = {
        name: tuple(100 * (getattr(trial.shares, name) or 0.0) for trial in trials)
        for name in _SHARES
    }
    return {name: values for name, values in found.items() if any(values)}


def _name(what: str, group: str) -> str:
    words = "".join(c if c.isalnum() else "-" for c in group).strip("-")
    while "--" in words:
        words = words.replace("--", "-")
    return f"{what}-{words}" if words else what


def _title(what: str, group: str) -> str:
    return f"{what}, {group}" if group else what
