"""Opens trials as the session does, over loaders of a test's own."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.source import Source
from loaderdoctor.instrument.trial.open_trial import open_trial
from loaderdoctor.settings import Settings
from tests.instrument.trial_cases import raw_iterator


def opened(loader: DataLoader[Any], settings: Settings, **more: Any) -> Source:
    """A trial of `loader`, without accelerator and copies where `more` names none."""
    given = {"device": None, "transfers": (), "fetch_limit_s": 60.0, **more}
    return open_trial(loader, settings, open_iter=raw_iterator, **given)


def ids(source: Source, n: int) -> list[int]:
    """The samples of its next `n` batches of `Squares`."""
    return [i for _ in range(n) for i in source.next_batch()[1].tolist()]


def reason(loader: DataLoader[Any], settings: Settings, **more: Any) -> str:
    """Why this trial is withheld."""
    with pytest.raises(TrialRefused) as refused:
        opened(loader, settings, **more)
    return refused.value.reason
