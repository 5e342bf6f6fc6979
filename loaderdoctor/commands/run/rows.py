"""What a run was so far, as report.json has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from loaderdoctor.alerts.alert import Alert
from loaderdoctor.alerts.history import Account, History
from loaderdoctor.alerts.job import Job
from loaderdoctor.instrument.wire.log_bins import LogBins
from loaderdoctor.instrument.wire.protocol import Ended
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
