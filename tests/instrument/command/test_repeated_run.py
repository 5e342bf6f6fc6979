"""Short scripts: run again, their windows pooled; and where they are not, why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
import pytest

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.endings import NOT_BEGUN, NeverTrainedError
from loaderdoctor.instrument.command.repeated_run import (
    LONGEST_RUN_S,
    RUN_AGAIN,
    STARTING_SHARE,
    RepeatedRun,
)
from loaderdoctor.instrument.wire.protocol import (
    SCRIPT_ENDED,
    Ended,
    Note,
    Observed,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.instrument.wire.records import WallRecord
from tests.attribution.builders import observed

START_S, STEP_S = 4.0, 0.01


@dataclass
class Script:
    """A script of some steps on a clock of its own: each start is another run of it."""

    n_steps: int = 100
    now_s: float = 0.0
    runs: list[Run] = field(default_factory=list)
    seen: Callable[[int], Observed] = lambda n: observed()  # by run, from 1
    ends: Callable[[int], dict[str, Any]] = lambda n: {}
    opens: Callable[[int], RunError | None] = lambda n: None
    patient: list[bool] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def start(self, patient: bool) -> Run:
        self.patient.append(patient)
        self.runs.append(Run(self, len(self.runs) + 1))
        return self.runs[-1]

    def clock(self) -> float:
        return self.now_s


class Run:
    def __init__(self, script: Script, number: int) -> None:
        self.script, self.number = script, number
        self.notes: list[Note] = [Note(kind="of-run", text=f"run {number}")]
        self.observed: Observed | None = None
        self.ended: Ended | None = None
        self.left = script.n_steps
        self.closed = 0

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def wait_observed(self, timeout_s: float | None = None, on_event: object = None) -> Observed:
        self.script.now_s += START_S
        if (error := self.script.opens(self.number)) is not None:
            self.ended = Ended(how="script-ended", exit_code=0, n_steps=0)
            raise error
        self.observed = self.script.seen(self.number)
        return self.observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: object = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        done: list[WindowDone] = []
        for one in requests:
            if self.ended is not None:
                break
            n = min(one.n_steps, self.left)
            self.left -= n
            self.script.now_s += n * STEP_S
            cut = n < one.n_steps
            done.append(
                WindowDone(
                    id=one.id,
                    mode=one.mode,
                    status="ok" if not cut else "short" if n else "skipped",
                    reason=None if not cut else SCRIPT_ENDED if n else NOT_BEGUN,
                    n_steps=n,
                    start_ns=self.number,
                )
            )
            if self.left == 0 and cut:
                told = {"how": "script-ended", "exit_code": 0, "n_steps": self.script.n_steps}
                self.ended = Ended(**{**told, **self.script.ends(self.number)})
        return done

    def stop(self, to_end: bool = False) -> None:
        self.ended = self.ended or Ended(how="stopped", exit_code=0, n_steps=1)


_IDS = count(1)


def ask(*n_steps: int) -> list[WindowRequest]:
    return [WindowRequest(id=next(_IDS), mode="plain", n_steps=n) for n in n_steps]


def repeated(script: Script, **more: Any) -> RepeatedRun:
    run = RepeatedRun(
        start=script.start,
        say=script.said.append,
        clock=script.clock,
        **{"budget_s": 45.0, **more},
    )
    run.__enter__()
    run.wait_observed()
    return run


def test_windows_that_did_not_fit_one_run_come_from_the_next_ones() -> None:
    script = Script(n_steps=100)
    run = repeated(script)
    requests = ask(45, 45, 45, 45, 45)
    done = run.measure(requests)
    assert [w.id for w in done] == [r.id for r in requests]
    assert [w.n_steps for w in done] == [45] * 5
    assert [w.start_ns for w in done] == [1, 1, 2, 2, 3]  # 10 steps were left: too few of 45
    assert run.ended is None
    assert [r.closed for r in script.runs] == [1, 1, 0]
    run.stop()
    assert run.exit_code == 0
    assert [one.how for one in run.told] == ["script-ended", "script-ended", "stopped"]
    assert [one.n_windows for one in run.told] == [3, 3, 1]
    assert ["run 2 begins" in script.said[0], "run 3 begins" in script.said[1]] == [True, True]
    assert [one.to_warm_s for one in run.told] == [START_S] * 3


def test_a_window_that_lost_less_than_half_stands() -> None:
    run = repeated(Script(n_steps=100))
    done = run.measure(ask(40, 100))
    assert [(w.n_steps, w.start_ns) for w in done] == [(40, 1), (60, 1)]


def test_a_window_longer_than_a_whole_run_is_what_a_run_holds() -> None:
    script = Script(n_steps=100)
    run = repeated(script)
    done = run.measure(ask(20, 1000, 30))
    assert [(w.n_steps, w.start_ns) for w in done] == [(20, 1), (100, 2), (30, 3)]


def test_a_script_that_ended_behind_its_last_window_is_not_over() -> None:
    script = Script(n_steps=80, ends=lambda n: {"n_steps": 80})
    run = repeated(script)
    run.measure(ask(80))
    script.runs[0].ended = Ended(how="script-ended", exit_code=0, n_steps=80)
    assert run.ended is None
    (done,) = run.measure(ask(10))
    assert done.start_ns == 2


def test_all_runs_share_their_notes_and_the_report_says_how_many_there_were() -> None:
    run = repeated(Script(n_steps=50))
    notes = run.notes  # as a report holds them from the first run on
    run.measure(ask(40, 40, 40))
    assert [n.text for n in notes if n.kind == "of-run"] == ["run 1", "run 2", "run 3"]
    (told,) = [n.text for n in notes if n.kind == RUN_AGAIN]
    assert "was run 3 times" in told


def test_the_whole_courses_account_is_that_of_the_first_run() -> None:
    script = Script(
        n_steps=50, ends=lambda n: {"wall": WallRecord(n_steps=50, n_epochs=n), "n_steps": 50}
    )
    run = repeated(script)
    run.measure(ask(40, 40))
    run.stop()
    assert run.ended is not None
    assert run.ended.how == "stopped"
    assert run.ended.wall == WallRecord(n_steps=50, n_epochs=1)


@pytest.mark.parametrize(
    ("more", "ends", "why"),
    [
        ({"never": "--once keeps it to one run."}, {}, "--once"),
        ({"not_pooled": "With --run-to-end a script runs once."}, {}, "--run-to-end"),
        ({}, {"read_stdin": True}, "standard input"),
    ],
)
def test_it_is_run_once_where_it_must_and_says_why(
    more: dict[str, Any], ends: dict[str, Any], why: str
) -> None:
    script = Script(n_steps=50, ends=lambda n: ends)
    run = repeated(script, **more)
    done = run.measure(ask(40, 40))
    assert [w.n_steps for w in done] == [40, 10]
    assert len(script.runs) == 1
    assert run.ended is not None
    assert why in (run.refused or "")
    assert not run.out_of_time


@pytest.mark.parametrize("ends", [{"exit_code": 3}, {"how": "script-failed", "exit_code": 1}])
def test_a_script_that_did_not_end_in_order_is_not_run_again(ends: dict[str, Any]) -> None:
    script = Script(n_steps=50, ends=lambda n: ends)
    run = repeated(script)
    run.measure(ask(40, 40))
    assert len(script.runs) == 1
    run.stop()
    assert run.exit_code == ends["exit_code"]


def test_a_run_of_more_than_a_minute_is_the_only_one() -> None:
    n_steps = round((LONGEST_RUN_S - START_S) / STEP_S)
    assert _n_runs(n_steps - 100) == 2
    assert _n_runs(n_steps + 100) == 1


def _n_runs(n_steps: int) -> int:
    script = Script(n_steps=n_steps)
    run = repeated(script, budget_s=1000.0)
    run.measure(ask(n_steps - 10, 40))
    script.now_s += 1000  # what comes afterwards is not the run's
    assert (run.ended is None) == (len(script.runs) == 2)
    return len(script.runs)


def test_nothing_begins_for_which_the_budget_has_no_time() -> None:
    script = Script(n_steps=100)
    run = repeated(script, budget_s=10.0)
    n = 0
    while run.ended is None:
        run.measure(ask(100, 40))
        n += 1
        assert n < 20
    assert run.out_of_time and run.refused is None
    spent_s = script.now_s - START_S
    assert spent_s <= 10.0 * (1 + STARTING_SHARE)
    assert len(script.runs) > 1
    run.extend(20.0)  # the first advice has to be measured for longer
    assert run.ended is None
    assert run.measure(ask(200, 40))


def test_a_longer_budget_gives_no_more_starts_for_nothing() -> None:
    script = Script(n_steps=100)
    run = repeated(script, budget_s=10.0)
    while run.ended is None:
        run.measure(ask(100, 40))
    free_s = script.now_s - run.measuring_clock()
    assert free_s <= STARTING_SHARE * 10.0
    run.extend(20.0)
    before_s = script.now_s - run.measuring_clock()
    n_runs = len(script.runs)
    while run.ended is None:
        run.measure(ask(100, 40))
    assert len(script.runs) > n_runs
    assert script.now_s - run.measuring_clock() == pytest.approx(before_s)
    assert script.now_s - START_S <= 20.0 + STARTING_SHARE * 10.0


def test_starting_again_takes_no_part_of_the_budget_up_to_its_half() -> None:
    script = Script(n_steps=100)
    run = repeated(script, budget_s=20.0)
    began_s = run.measuring_clock()
    run.measure(ask(90, 90))
    assert run.measuring_clock() - began_s == pytest.approx(1.9)  # all steps of both runs
    for _ in range(5):
        run.measure(ask(90, 90))
    starts_s = (len(script.runs) - 1) * START_S
    assert starts_s > 0.5 * 20.0
    spent_s = script.now_s - began_s
    assert spent_s - (run.measuring_clock() - began_s) == pytest.approx(STARTING_SHARE * 20.0)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (lambda: msgspec.structs.replace(observed(), trains=False), "it trained nothing"),
        (lambda: observed(workers=2), "its loader has other settings"),
        (lambda: observed(steps_per_epoch=7), "other steps an epoch (7, and 100 at first)"),
        (lambda: observed(device="cuda:0"), "it ran on cuda:0"),
    ],
)
def test_a_second_run_that_does_otherwise_is_not_measured(
    seen: Callable[[], Observed], why: str
) -> None:
    script = Script(n_steps=50, seen=lambda n: seen() if n == 2 else observed())
    run = repeated(script)
    done = run.measure(ask(40, 40))
    assert [(w.n_steps, w.start_ns) for w in done] == [(40, 1), (10, 1)]
    assert why in (run.refused or "")
    assert run.ended is not None and run.ended.how == "script-ended"
    assert run.measure(ask(40)) == []
    assert len(script.runs) == 2
    assert [r.closed for r in script.runs] == [1, 1]


def test_a_second_run_that_comes_to_nothing_leaves_what_the_first_gave() -> None:
    script = Script(
        n_steps=50,
        opens=lambda n: NeverTrainedError("train.py: trained nothing.") if n > 1 else None,
    )
    run = repeated(script)
    done = run.measure(ask(40, 40))
    assert [w.n_steps for w in done] == [40, 10]
    assert run.refused == "Run again, it did otherwise: train.py: trained nothing."
    run.stop()
    assert run.exit_code == 0
    assert run.ended is not None and run.ended.how == "script-ended"


def test_a_script_that_trained_nothing_is_run_again_for_what_it_does() -> None:
    script = Script(opens=lambda n: NeverTrainedError("nothing") if n == 1 else None)
    run = repeated(script)
    assert script.patient == [True, False]
    assert run.observed is not None
    assert not run.patient


def test_once_keeps_a_script_that_trained_nothing_to_one_run() -> None:
    script = Script(opens=lambda n: NeverTrainedError("nothing"))
    with pytest.raises(NeverTrainedError):
        repeated(script, never="--once")
    assert len(script.runs) == 1


def test_an_exit_code_of_a_later_run_is_not_the_scripts() -> None:
    script = Script(
        n_steps=50,
        ends=lambda n: {} if n == 1 else {"how": "script-failed", "exit_code": 1},
    )
    run = repeated(script)
    run.measure(ask(40, 40, 40))
    run.stop()
    assert len(script.runs) == 2
    assert run.exit_code == 0


def test_no_other_run_begins_once_enough_is_known() -> None:
    script = Script(n_steps=50)
    run = repeated(script)
    run.no_more()
    run.measure(ask(40, 40))
    assert len(script.runs) == 1
    assert run.refused is None
