"""The tuner of a recorded run can't fail the loop, and leaves nothing that was only tried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.instrument.handover.live_loader import LiveLoader
from loaderdoctor.instrument.recording.loop_tuner import INTERNAL_ERROR, Fetch, LoopTuner
from loaderdoctor.instrument.recording.stretch import BESIDES, STARTS
from loaderdoctor.settings import Settings
from loaderdoctor.tuning.step_windows import Step
from tests.instrument.handover.loops import Squares

TRIED = Settings(num_workers=2)


def joined(loader: DataLoader[Any], tuner: Any) -> tuple[LoopTuner, LiveLoader, list[str]]:
    """A tuner in the middle of a trial, and what is noted."""
    notes: list[str] = []
    session: Any = SimpleNamespace(
        note=lambda kind, text: notes.append(kind),
        window=SimpleNamespace(fetches=[], fetch_cpu=True),
        workers=SimpleNamespace(sums_folder=Path("nothing-there")),
        registry=SimpleNamespace(states=[]),
    )
    live = LiveLoader(loader, exact=True, has_accelerator=False)
    assert live.want(TRIED) is None
    made: Any = LoopTuner(session, exact=True)
    made._handed, made._tuner, made._not_tuned = SimpleNamespace(live=live), tuner, None
    made._state = SimpleNamespace(id="loader", index=0)
    return made, live, notes


class Listener:
    """Hears, and asks for nothing."""

    def __init__(self, n_quiet: int) -> None:
        self.n_quiet = n_quiet
        self.heard: list[Step] = []

    def step(self, step: Step) -> None:
        self.heard.append(step)


def a_beat(n_steps: int, n_before: int = 0) -> tuple[list[int], list[Fetch]]:
    """Marks and fetches of steps of 3 ms, of which 2 ms are waited, another loader's besides."""
    at = [(n_before + i) * 3_000_000 for i in range(n_steps + 1)]
    of_loop = [(0, x + 1, x + 2_000_001, 1, 500_000) for x in at[:-1]]
    others = [(1, x + 2_100_000, x + 2_200_000, 1, 0) for x in at[:-1:2]]
    return at, sorted([*of_loop, *others], key=lambda fetch: fetch[1])


@pytest.mark.parametrize("n_quiet", [1, 4, 1000])
def test_every_step_is_told_of_once_however_many_at_a_time(n_quiet: int) -> None:
    listener = Listener(n_quiet)
    made, live, _ = joined(DataLoader(Squares()), listener)
    made._costs.serves(live.own)
    due = 1
    for beat in range(3):
        at, fetches = a_beat(20, 20 * beat)
        flags = {7: BESIDES, 12: STARTS}
        for n in range(2, len(at) + 1):  # as the recorder calls it
            due -= 1
            if due <= 0 or n - 2 in flags:
                due = made.hear(at[:n], flags, [x for x in fetches if x[1] < at[n - 1]])
        due = made.hear(at, flags, fetches)
        made.emptied()
    assert sum(step.n for step in listener.heard) == 3 * 19  # what holds something else is no step
    assert sum(step.ms for step in listener.heard) == pytest.approx(3 * 19 * 3)
    assert sum(step.wait_ms for step in listener.heard) == pytest.approx(3 * 19 * 2)
    assert {step.serving for step in listener.heard} == {live.own}
    assert max(step.n for step in listener.heard) <= n_quiet
    cost = made._costs.of(live.own)
    assert cost is not None
    assert (cost.make_ms, cost.cpu_ms) == pytest.approx((2.0, 0.5))


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
        made.hear([0, 1_000_000], {}, [])
    made.hear([0, 1_000_000], {}, [])
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
