"""A run as OpenMetrics text, for Prometheus' node exporter or any reader of such files."""

from __future__ import annotations

from loaderdoctor.instrument.wire.surroundings import Surroundings
from loaderdoctor.report.run_model import Run

_QUANTILES = ("0.5", "0.9", "0.99", "0.999")


def openmetrics(run: Run, look: Surroundings | None) -> str:
    """All figures that are known; those that are not are left out."""
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, values: dict[str, float | None]) -> None:
        known = {labels: value for labels, value in values.items() if value is not None}
        if known:
            lines.append(f"# TYPE loaderdoctor_{name} {kind}")
            lines.append(f"# HELP loaderdoctor_{name} {text}")
            suffix = "_total" if kind == "counter" else ""
            lines.extend(f"loaderdoctor_{name}{suffix}{k} {v:.9g}" for k, v in known.items())

    metric("steps", "counter", "Steps of the loop.", {"": float(run.n_steps)})
    time = run.time
    metric(
        "seconds",
        "counter",
        "Wall time by what it went to.",
        {
            '{to="step"}': time.step_s,
            '{to="input"}': time.input_s,
            '{to="copy"}': time.copy_s,
            '{to="epoch_start"}': time.starts_s,
            '{to="validation"}': time.validation_s,
            '{to="saving"}': time.saving_s,
            '{to="other"}': time.other_s,
        },
    )
    metric("gc_seconds", "counter", "Time in garbage collections.", {"": time.gc_s})
    for name, quantiles in (("step", run.step_ms_quantiles), ("wait", run.wait_ms_quantiles)):
        metric(
            f"{name}_seconds",
            "gauge",
            f"Quantiles of the {name} time since the run began.",
            {
                f'{{quantile="{q}"}}': ms / 1e3
                for q, ms in zip(_QUANTILES, quantiles or (), strict=False)
            },
        )
    if look is not None:
        metric("run_bytes", "gauge", "Memory of the run.", {"": look.run_bytes})
        metric("available_bytes", "gauge", "Memory left.", {"": look.available_bytes})
        metric("shm_free_bytes", "gauge", "Left in /dev/shm.", {"": look.shm_free_bytes})
        metric("own_cpus", "gauge", "CPUs that the run keeps busy.", {"": look.own_cpus})
        metric("other_cpus", "gauge", "CPUs that others keep busy.", {"": look.other_cpus})
        metric("throttled_share", "gauge", "Of the quota's periods.", {"": look.throttled_share})
        metric(
            "pressure_share",
            "gauge",
            "Time in which a process was held up.",
            {
                '{for="cpu"}': look.cpu_pressure,
                '{for="io"}': look.io_pressure,
                '{for="memory"}': look.memory_pressure,
            },
        )
        for gpu in look.gpus:
            metric(
                f"gpu{gpu.index}_sm_hertz",
                "gauge",
                "Clock of its processors.",
                {"": gpu.sm_mhz * 1e6 if gpu.sm_mhz is not None else None},
            )
    metric("alerts", "counter", "Changes that were told.", {"": float(len(run.alerts))})
    return "\n".join([*lines, "# EOF", ""])
