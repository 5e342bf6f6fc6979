"""What the loop does outside its steps is counted over the whole run, each instant once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from loaderdoctor.instrument.session import wall_account
from loaderdoctor.instrument.session.wall_account import Elsewhere, WallAccount
from loaderdoctor.instrument.wire.records import OutsideRecord, WallRecord
from tests.instrument.watched import Trainer, loader_of, request, watch

MS = 1_000_000


def account(*, undisturbed: bool = True, passes_stand: bool = True) -> WallAccount:
    made = WallAccount(undisturbed=lambda: undisturbed, passes_stand=lambda: passes_stand)
    made.began_ns = 1
    return made


def the_one(record: WallRecord) -> OutsideRecord:
    assert len(record.outside) == 1
    return record.outside[0]


def test_a_pass_lasts_from_its_iterator_to_its_end() -> None:
    wall = account()
    wall.opened("val.py:1", 100, 110, n_steps=7)
    wall.fetched("val.py:1", 110, 120, with_grad=False, n_steps=7)
    wall.fetched("val.py:1", 150, 160, with_grad=False, n_steps=7)
    wall.ran_out("val.py:1", 195, 200, n_steps=7)
    wall.boundary(500, 8)
    told = the_one(wall.record(8))
    assert (told.what, told.site, told.n, told.n_batches) == ("pass", "val.py:1", 1, 2)
    assert told.timed_ns == 100  # what came after it is not its own
    assert told.wait_ns == 10 + 10 + 10 + 5
    assert told.n_with_grad == 0
    record = wall.record(8)
    assert (record.n_crossings, record.crossings_ns, record.crossings_known_ns) == (1, 499, 100)


def test_a_pass_left_early_ends_with_its_last_batch() -> None:
    wall = account()
    for start in (100, 200, 300):  # 90 with each batch
        wall.fetched("val.py:1", start, start + 10, with_grad=True, n_steps=1)
    wall.boundary(10_000, 2)
    told = the_one(wall.record(2))
    assert 200 + 10 <= told.timed_ns <= 210 + 1.5 * 90
    assert told.n_with_grad == told.n_batches == 3


def test_saving_within_a_pass_is_saving() -> None:
    wall = account()
    wall.opened("val.py:1", 0, 10, n_steps=1)
    wall.fetched("val.py:1", 10, 20, with_grad=False, n_steps=1)
    wall.saved("train.py:9", 50, 90, n_steps=1)
    wall.ran_out("val.py:1", 100, 100, n_steps=1)
    wall.boundary(100, 2)
    times = {one.what: one.timed_ns for one in wall.record(2).outside}
    assert times == {"pass": 60, "save": 40}
    assert wall.record(2).crossings_known_ns == 100


def test_loaders_zipped_share_the_time_of_one_pass() -> None:
    wall = account()
    wall.opened("a", 0, 5, n_steps=1)
    wall.opened("b", 5, 10, n_steps=1)
    for start in (10, 60):
        wall.fetched("a", start, start + 10, with_grad=False, n_steps=1)
        wall.fetched("b", start + 10, start + 20, with_grad=False, n_steps=1)
    wall.ran_out("a", 110, 112, n_steps=1)
    wall.boundary(1000, 2)
    assert sum(one.timed_ns for one in wall.record(2).outside) == 112


def test_a_pass_within_a_pass_is_counted_once() -> None:
    wall = account()
    wall.opened("outer", 0, 0, n_steps=1)
    wall.fetched("outer", 0, 10, with_grad=False, n_steps=1)
    wall.opened("inner", 20, 20, n_steps=1)
    wall.fetched("inner", 20, 30, with_grad=False, n_steps=1)
    wall.ran_out("inner", 50, 50, n_steps=1)
    wall.ran_out("outer", 100, 100, n_steps=1)
    wall.boundary(100, 2)
    assert {one.site: one.timed_ns for one in wall.record(2).outside} == {"outer": 70, "inner": 30}


def test_what_the_steps_loader_takes_to_open_is_none_of_the_pass_around_it() -> None:
    wall = account()
    wall.opened("tasks", 0, 0, n_steps=1)
    wall.fetched("tasks", 0, 10, with_grad=True, n_steps=1)
    wall.renewed(15, 95)  # of the loader of that task
    wall.boundary(100, 2)
    assert {one.site: one.timed_ns for one in wall.record(2).outside} == {"tasks": 20}


def test_an_iterator_kept_for_later_is_no_pass() -> None:
    wall = account()
    wall.opened("aux", 0, 10, n_steps=1)
    wall.boundary(1000, 2)
    assert wall.record(2).outside == ()
    assert not wall.eventful


def test_between_epochs_there_is_no_step() -> None:
    wall = account()
    wall.epoch_over(5)
    wall.saved("train.py:9", 100, 140, n_steps=10)
    wall.renewed(150, 170)
    wall.boundary(201, 11)
    record = wall.record(11)
    assert (record.n_gaps, record.n_epochs, record.n_crossings) == (1, 1, 0)
    assert (record.gaps_ns, record.gaps_known_ns, record.gaps_loader_ns) == (200, 40, 25)
    assert the_one(record).n_at_epoch_end == 1


def test_what_trials_change_counts_for_how_often_and_not_for_how_long() -> None:
    wall = account(undisturbed=False, passes_stand=False)
    for step in (4, 8):
        wall.saved("train.py:9", 100, 140, n_steps=step)
        wall.boundary(200, step + 1)
    record = wall.record(9)
    told = the_one(record)
    assert (told.n, told.n_visits, told.first_step, told.last_step) == (2, 2, 4, 8)
    assert (told.n_timed, told.timed_ns, record.n_crossings) == (0, 0, 0)


def test_a_loop_with_nothing_else_tells_of_nothing() -> None:
    def loop() -> None:
        trainer = Trainer()
        for x, _ in loader_of(60):
            trainer.step(x)

    told = watch(loop, request(1, "plain"), request(2, "no_input"))
    assert told.ended.wall is not None
    assert told.ended.wall.outside == ()
    assert told.ended.wall.n_crossings == 0


def test_validation_and_saving_are_told_of_by_place(tmp_path: Path) -> None:
    def loop() -> None:
        trainer = Trainer()
        validation = loader_of(3)
        for step, (x, _) in enumerate(loader_of(120), 1):
            trainer.step(x)
            if step % 4 == 0:
                with torch.no_grad():
                    for _ in validation:
                        time.sleep(0.004)
                torch.save(trainer.model.state_dict(), tmp_path / "model.pt")

    original = torch.save
    told = watch(loop, request(1, "plain"), request(2, "no_input"), request(3, "plain"))
    assert torch.save is torch.serialization.save is original
    wall = told.ended.wall
    assert wall is not None
    parts = {one.what: one for one in wall.outside}
    assert set(parts) == {"pass", "save"}
    for one in parts.values():
        assert (one.last_step - one.first_step) / (one.n_visits - 1) == pytest.approx(4.0)
        assert one.n == one.n_visits == one.n_timed
        assert one.n_at_epoch_end == 0
    assert parts["pass"].timed_ns / parts["pass"].n > 12 * MS
    assert parts["pass"].n_with_grad == 0
    assert parts["pass"].n_batches == 3 * parts["pass"].n
    assert Path(parts["save"].site.partition(":")[0]).name == Path(__file__).name
    # No step of a window holds any of it.
    for window in told.windows:
        assert max(window.host_step_ns) < 12 * MS or len(window.host_step_ns) > 8


def test_saving_in_each_step_is_in_the_steps(tmp_path: Path) -> None:
    def loop() -> None:
        trainer = Trainer()
        for x, _ in loader_of(200):
            trainer.step(x)
            torch.save({}, tmp_path / "model.pt")

    told = watch(loop, request(1, "plain"), request(2, "plain"))
    assert [w.status for w in told.windows] == ["ok", "ok"]
    wall = told.windows[-1].wall
    assert wall is not None
    assert wall.in_steps
    assert the_one(wall).what == "save"


SECOND = 1_000_000_000


class Played:
    """A loop by its events: steps of 20 ms on the loader of the step, passes over others."""

    def __init__(self) -> None:
        self.wall = WallAccount(undisturbed=lambda: True, passes_stand=lambda: True)
        self.wall.step_ns = 20 * MS
        self.now = self.n_steps = 0
        self.wall.begin(self.now, 0)
        self.followed: list[str] = []  # as of the passes over these

    def steps(self, n: int, ms: int = 20, *, over: bool = True) -> None:
        """An epoch, to its end (`over`) or not."""
        for _ in range(n):
            self._boundary()
            self.now += ms * MS
        self._boundary()
        if over:
            self.n_steps -= 1
            self.wall.epoch_over(0)

    def passes(self, site: str, n: int, ms: int, *, wait_ms: int = 0, trains: bool) -> None:
        """One pass; those that train are looked at behind each of their steps."""
        wall = self.wall
        wall.opened(site, self.now, self.now, n_steps=self.n_steps)
        for _ in range(n):
            start, self.now = self.now, self.now + wait_ms * MS
            wall.fetched(site, start, self.now, with_grad=trains, n_steps=self.n_steps)
            self.now += ms * MS
            if trains:
                wall.worked(stepped=True)
                seen = wall.trained_elsewhere()
                if seen is not None and wall.is_phase(seen, self.n_steps, n_before=0):
                    self.followed.append(seen.site)
        wall.ran_out(site, self.now, self.now, n_steps=self.n_steps)

    def _boundary(self) -> None:
        self.n_steps += 1
        if self.wall.eventful:
            self.wall.boundary(self.now, self.n_steps)
        self.wall.began_ns = self.now


def test_a_long_validation_before_a_short_training_pass_moves_no_step() -> None:
    loop = Played()
    for _ in range(40):
        loop.steps(250)  # 5 s
        loop.passes("val.py:1", 10, 800, trains=False)  # 8 s, and longer than all steps so far
        loop.passes("replay.py:1", 40, 10, wait_ms=25, trains=True)  # 1.4 s
    assert loop.followed == []


def test_passes_by_turns_with_what_comes_before_them_are_no_phase() -> None:
    loop = Played()
    for _ in range(5):
        loop.steps(300)  # 6 s
        loop.passes("val.py:1", 10, 3000, trains=False)
        for _ in range(2):  # 7.2 s in all
            loop.passes("replay.py:1", 90, 40, trains=True)
            loop.passes("val.py:1", 10, 3000, trains=False)
    assert loop.followed == []


def test_an_epoch_watched_without_its_own_batches_counts_as_long_as_with_them() -> None:
    loop = Played()
    loop.wall.step_ns = 200 * MS
    loop.steps(100)  # 2 s, with batches already in memory; 20 s with its own
    loop.passes("replay.py:1", 100, 100, trains=True)  # 10 s
    assert loop.followed == []


def test_training_that_goes_on_elsewhere_is_a_phase_once_it_is_longer_than_an_epoch() -> None:
    loop = Played()
    for _ in range(2):
        loop.steps(100)  # 2 s, twice
    began = loop.now
    while not loop.followed:  # by short epochs of its own, each with validation behind it
        loop.passes("tune.py:1", 10, 40, trains=True)
        loop.passes("val.py:1", 10, 100, trains=False)
        assert loop.now - began < 60 * SECOND
    assert set(loop.followed) == {"tune.py:1"}
    trained_s = (loop.now - began) / SECOND * 0.4 / 1.4
    assert trained_s + 0.4 >= 1.5 * 4.0 and trained_s < 2 * 4.0


def test_an_epoch_left_early_may_go_on_so_it_takes_longer() -> None:
    for over, times in ((True, 1.5), (False, 3.0)):
        loop = Played()
        loop.steps(200, over=over)  # 4 s
        loop.passes("tune.py:1", int(times * 4.0 / 0.04) - 5, 40, trains=True)
        assert loop.followed == []
        loop.passes("tune.py:1", 20, 40, trains=True)
        assert set(loop.followed) == {"tune.py:1"}


def test_each_time_a_phase_must_last_twice_as_long() -> None:
    wall = Played().wall
    for n in range(3):
        least_ns = int(wall_account.MIN_PHASE_S * 2**n * SECOND)
        short, long = (Elsewhere("b.py:1", 9, least_ns + ns) for ns in (-MS, MS))
        assert not wall.is_phase(short, 0, n_before=n)
        assert wall.is_phase(long, 0, n_before=n)
