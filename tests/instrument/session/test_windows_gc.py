"""The garbage collector otherwise for one window of a running loop, and as it was behind it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.trial.compute_switches import collector
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Collector, Settings
from tests.instrument.watched import Numbers, Trainer, watch

THRESHOLDS = (650, 9, 8)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    was_frozen = frozen()  # as the whole suite is
    gc.unfreeze()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.enable()
    gc.unfreeze()
    if was_frozen:
        gc.freeze()
    gc.set_threshold(*before)


def frozen() -> bool:
    """Under Python 3.12 a collection alone leaves 375 objects."""
    return gc.get_freeze_count() > 1_000


def plain(id_: int) -> WindowRequest:
    return WindowRequest(id=id_, mode="plain", n_steps=5)


def trial(how: Collector) -> WindowRequest:
    return WindowRequest(id=2, mode="trial", n_steps=6, settings=Settings(gc=how))


@pytest.mark.parametrize("how", ["manual", "frozen"])
def test_it_is_switched_for_the_window_alone_and_every_batch_reaches_the_loop(
    how: Collector,
) -> None:
    states: list[tuple[bool, bool]] = []
    seen: list[float] = []

    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader(Numbers(400), batch_size=4):
            trainer.step(x)
            states.append((gc.isenabled(), frozen()))
            seen.append(float(x[0, 0]))

    before = list(gc.callbacks)
    run = watch(loop, plain(1), trial(how), plain(3))
    assert [w.status for w in run.windows] == ["ok"] * 3, run.windows[1].reason
    switched = (False, False) if how == "manual" else (True, True)
    on = [i for i, state in enumerate(states) if state == switched]
    assert 6 <= len(on) <= 12
    assert on == list(range(on[0], on[-1] + 1))
    assert set(states) == {(True, False), switched}
    assert states[-1] == (gc.isenabled(), frozen()) == (True, False)
    assert gc.get_threshold() == THRESHOLDS
    assert seen == [4.0 * i for i in range(100)]  # none was dropped, substituted or repeated
    assert gc.callbacks == before  # of other tools in this process


@pytest.mark.parametrize("done", ["disabled", "frozen"])
def test_what_the_script_has_done_itself_is_left_alone(done: str) -> None:
    def loop() -> None:
        if done == "disabled":
            gc.disable()
        else:
            gc.freeze()
        trainer = Trainer()
        for x, _ in DataLoader(Numbers(200), batch_size=4):
            trainer.step(x)

    run = watch(loop, plain(1), trial("manual" if done == "disabled" else "frozen"))
    assert run.windows[1].status == "skipped"
    assert "already" in (run.windows[1].reason or "")
    assert gc.isenabled() is (done != "disabled")
    assert frozen() is (done == "frozen")


def test_what_a_collection_leaves_among_the_frozen_is_no_freeze(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under Python 3.12 each leaves 375; an interpreter without imports freezes 4,591."""
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 375)
        with collector("frozen"):
            patch.undo()
            assert gc.get_freeze_count() > 4_591
    assert not frozen()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 4_591)
    with pytest.raises(TrialRefused, match="frozen its objects already"), collector("frozen"):
        pass


@pytest.mark.slow
def test_collections_of_a_window_are_told_with_it() -> None:
    def loop() -> None:
        trainer = Trainer()
        for x, _ in DataLoader(Numbers(200), batch_size=4):
            trainer.step(x)
            gc.collect()

    run = watch(loop, plain(1))
    found = run.windows[0].collections
    assert found is not None
    assert found.n[2] in (4, 5, 6)  # one in each of five steps, by where the window's edges lie
    assert found.code == "gc.collect()"
