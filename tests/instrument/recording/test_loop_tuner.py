"""The tuner of a recorded run can't fail the loop, and leaves nothing that was only tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.instrument.handover.live_loader import LiveLoader
from loaderdoctor.instrument.recording.loop_tuner import INTERNAL_ERROR, LoopTuner
from loaderdoctor.settings import Settings
from tests.instrument.handover.loops import Squares

TRIED = Settings(num_workers=2)


def joined(loader: DataLoader[Any], tuner: Any) -> tuple[LoopTuner, LiveLoader, list[str]]:
    """A tuner in the middle of a trial, and what is noted."""
    notes: list[str] = []
    session: Any = SimpleNamespace(
        note=lambda kind, text: notes.append(kind), window=SimpleNamespace(fetches=[])
    )
    live = LiveLoader(loader, exact=True, has_accelerator=False)
    assert live.want(TRIED) is None
    made: Any = LoopTuner(session, exact=True)
    made._handed, made._tuner, made._not_tuned = SimpleNamespace(live=live), tuner, None
    made._state = SimpleNamespace(id="loader", index=0)
    return made, live, notes


class Broken:
    def step(self, step: Any) -> None:
        raise AttributeError("a bug")

    def outcome(self) -> Any:
        raise AttributeError("a bug")


@pytest.mark.parametrize("ends", [False, True])
def test_a_bug_of_the_tuner_is_noted_and_the_loops_own_settings_come_back(ends: bool) -> None:
    loader = DataLoader(Squares(), num_workers=1)
    made, live, notes = joined(loader, Broken())
    if ends:
        made.end()
    else:
        made.on_step(1.0, flags=0)
    made.on_step(1.0, flags=0)
    assert notes == ["internal-error"]
    assert live.wanted is live.own
    record = made.news()
    assert record is not None
    assert record.not_tuned == INTERNAL_ERROR


@pytest.mark.parametrize("n_workers", [1, 3])
def test_what_is_only_tried_does_not_stay_where_recording_ends(n_workers: int) -> None:
    loader = DataLoader(Squares(), num_workers=1)
    tuner: Any = SimpleNamespace()
    made, live, notes = joined(loader, tuner)
    chosen = live.complete(Settings(num_workers=n_workers))
    tuner.outcome = lambda: SimpleNamespace(chosen=chosen)
    made.end()
    assert live.wanted == chosen
    assert live._previous is live.own
    assert not notes
