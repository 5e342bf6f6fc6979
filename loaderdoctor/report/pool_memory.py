"""What the workers of a trial may come to, next to what they were seen to have."""

from __future__ import annotations

import msgspec

from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.loader_change import workers_forecast_bytes
from loaderdoctor.report.model import Trial
from loaderdoctor.settings import Settings

_OF_POOL = ("num_workers", "start_method")


def with_forecast(facts: Facts, trial: Trial) -> Trial:
    """The row as it is where nothing was seen of its workers' memory."""
    if trial.workers_bytes is None:
        return trial
    settings = Settings(**{k: v for k, v in trial.settings.items() if k in _OF_POOL})
    forecast = workers_forecast_bytes(facts, settings)
    return msgspec.structs.replace(trial, workers_forecast_bytes=forecast)
