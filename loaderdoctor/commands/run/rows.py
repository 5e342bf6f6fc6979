"""What a run was so far: as report.json has it, and as OpenMetrics text.

That text is for Prometheus' node exporter or any reader of such files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from loaderdoctor.alerts.alert import Alert
from loaderdoctor.alerts.job import Account, History, Job
from loaderdoctor.instrument.wire.log_bins import LogBins
from loaderdoctor.instrument.wire.protocol import Ended
from loaderdoctor.instrument.wire.surroundings import Surroundings
from loaderdoctor.instrument.wire.tuning import TuningRecord
from loaderdoctor.report.run_model import (
    Run,
    RunAlert,
    RunEpoch,
    RunRank,
    RunStretch,
    RunTime,
)
from loaderdoctor.units import NS_PER_MS

QUANTILES = (0.5, 0.9, 0.99, 0.999)


def run_row(
    job: Job,
    alerts: Sequence[Alert],
    *,
    began_s: float,
    now_s: float,
    ended: Ended | None,
    hosts: Mapping[int, str],
    tuning: TuningRecord | None = None,
) -> Run | None:
    """The run so far; None where no beat has come."""
    histories = job.histories
    if not histories:
        return None
    first = next(iter(histories.values()))
    return Run(
        took_s=now_s - began_s,
        before_s=max(0.0, (first.first_beat_s or now_s) - began_s),
        time=_time(first.total),
        n_steps=first.n_steps,
        step_ms_quantiles=_quantiles_ms(first.step_bins),
        wait_ms_quantiles=_quantiles_ms(first.wait_bins),
        epochs=tuple(
            RunEpoch(first=e.first, last=e.last, time=_time(e.account)) for e in first.epochs
        ),
        timeline=tuple(
            RunStretch(
                start_s=t.start_s, end_s=t.end_s, time=_time(t.account), run_bytes=t.run_bytes
            )
            for t in first.times
        ),
        alerts=tuple(
            RunAlert(
                kind=a.kind,
                at_s=a.at_s - began_s,
                step=a.step,
                text=a.text,
                cause=a.cause,
                advice=a.advice,
            )
            for a in alerts
        ),
        ranks=_ranks(histories, hosts) if len(histories) > 1 else (),
        last_step_ms=tuple(ns / NS_PER_MS for ns in job.last_step_ns),
        complete=ended is not None,
        tuning=tuning,
        how=ended.how if ended is not None else None,
        exit_code=ended.exit_code if ended is not None else None,
    )


def _ranks(histories: Mapping[int, History], hosts: Mapping[int, str]) -> tuple[RunRank, ...]:
    return tuple(
        RunRank(rank=rank, host=hosts.get(rank, ""), time=_time(h.total), n_steps=h.n_steps)
        for rank, h in histories.items()
    )


def _time(account: Account) -> RunTime:
    return RunTime(**asdict(account))


def _quantiles_ms(bins: LogBins) -> tuple[float, ...] | None:
    found = [bins.quantile_ns(q) for q in QUANTILES]
    known = [ns / NS_PER_MS for ns in found if ns is not None]
    return tuple(known) if len(known) == len(QUANTILES) else None


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
                for q, ms in zip(QUANTILES, quantiles or (), strict=False)
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
