"""Before each trial the one before is gone; the collector runs only where something is left."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.instrument.batches.source import Source
from loaderdoctor.instrument.system.memory import LeakCheck
from loaderdoctor.instrument.trial.open_trial import open_trial
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases

EACH_WAY = (
    Settings(num_workers=0),
    Settings(num_workers=2),
    Settings(num_workers=2, persistent_workers=True),
    Settings(num_workers=1, background="host"),
    Settings(background="host"),
    Settings(synthetic=True),
    Settings(keep_iterator=True, num_workers=1),
    Settings(cache=True),
)


@pytest.fixture(autouse=True)
def _no_collection_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def opened(leak_check: LeakCheck, loader: DataLoader[Any], settings: Settings) -> Source:
    source = open_trial(
        loader,
        settings,
        device=None,
        transfers=(),
        open_iter=cases.raw_iterator,
        opened=leak_check.opened,
    )
    leak_check.opened(source)
    return source


def test_closed_trials_are_gone_without_a_collection() -> None:
    leak_check = LeakCheck()
    leak_check.clear(None)
    assert leak_check.n_collections == 1  # of the loop's own time nothing is known
    loader = DataLoader(cases.Squares(), batch_size=4)
    for settings in EACH_WAY:
        source = opened(leak_check, loader, settings)
        batch = weakref.ref(source.next_batch()[0])
        source.close()
        del source
        leak_check.clear(None)
        assert leak_check.n_collections == 1, settings.label()
        assert batch() is None, settings.label()


def test_a_trial_that_is_held_by_a_cycle_is_collected() -> None:
    leak_check = LeakCheck()
    leak_check.clear(None)
    source: Any = opened(leak_check, DataLoader(cases.Squares(), batch_size=4), Settings())
    source.itself = source
    source.held = torch.zeros(4)
    held = weakref.ref(source.held)
    source.close()
    del source
    assert held() is not None
    leak_check.clear(None)
    assert held() is None
    assert leak_check.n_collections == 2


def test_what_can_not_be_referred_to_weakly_is_taken_to_be_left() -> None:
    leak_check = LeakCheck()
    leak_check.clear(None)
    leak_check.opened((1, 2))
    leak_check.clear(None)
    assert leak_check.n_collections == 2


def test_a_trial_that_failed_leaves_nothing_to_the_next() -> None:
    leak_check = LeakCheck()
    leak_check.clear(None)
    source = opened(leak_check, DataLoader(cases.Failing(), batch_size=4), Settings(num_workers=1))
    with pytest.raises(ValueError, match="sample 3"):
        source.next_batch()
    ref = weakref.ref(source)
    source.close()
    del source
    leak_check.clear(None)
    assert ref() is None
