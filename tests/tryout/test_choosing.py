"""What to measure next, asked of the policies alone: nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Measurement, Options, Phase, Trial
from loaderdoctor.tryout.choosing import calibrate, ranked, traced
from loaderdoctor.tryout.comparing import Boundaries
from loaderdoctor.tryout.competition import Competition
from loaderdoctor.tryout.elimination import eliminate
from loaderdoctor.tryout.rounds import Done, Known, Loop, Round
from loaderdoctor.tryout.windows import MIN_ROUNDS
from tests.tryout.simulator import observed

LOOP = Loop.of(observed(step_ms=10.0))
NO_BOUNDARIES = Boundaries(steps_per_epoch=None, loop_ms=None, own_work_ms=None)


def measured(phase: Phase, number: int, ms: float) -> Measurement:
    ns = int(ms * 1e6)
    window = WindowDone(
        id=1, mode="trial", status="ok", n_steps=20, n_samples=640, host_step_ns=(ns,) * 20
    )
    return Measurement(phase=phase, round=number, window=window, wall_s=0.3)


def trials(steps_ms: Sequence[float], *, phase: Phase = "rank", n_rounds: int = 3) -> list[Trial]:
    """Trial 0 and one for each number of workers, measured in so many quiet rounds."""
    return [
        Trial(
            index=i,
            settings=Settings(num_workers=i) if i else Settings(),
            measurements=[measured(phase, n + 1, ms + 0.01 * n) for n in range(n_rounds)],
        )
        for i, ms in enumerate(steps_ms)
    ]


def known(made: Sequence[Trial], spent_s: float = 0.0, **options: Any) -> Known:
    return Known(
        loop=LOOP, options=Options(**{"budget_s": 60.0, **options}), trials=made, spent_s=spent_s
    )


def asked(decision: Round | Done) -> list[int]:
    assert isinstance(decision, Round)
    return [window.trial for window in decision.windows]


def test_each_trial_is_measured_once_and_the_loops_own_first() -> None:
    made = trials([10.0, 8.0, 6.0], n_rounds=0)
    first = calibrate(known(made), None)
    assert isinstance(first, Round)
    assert asked(first) == [0, 1, 2]
    assert first.windows[0].place < min(window.place for window in first.windows[1:])
    assert isinstance(calibrate(known(made), first), Done)


def test_rounds_hold_all_that_are_alive_until_the_last_is_measured() -> None:
    made = trials([10.0, 8.0, 6.0], phase="calibrate", n_rounds=1)
    first = ranked(known(made, n_rounds=2), None)
    assert isinstance(first, Round)
    assert (first.number, first.n_rounds, asked(first)) == (1, 2, [0, 1, 2])
    made[1].fail("failed", "it crashed")
    second = ranked(known(made, n_rounds=2), first)
    assert isinstance(second, Round)
    assert (second.number, asked(second)) == (2, [0, 2])
    assert isinstance(ranked(known(made, n_rounds=2), second), Done)
    assert isinstance(ranked(replace(known(made, n_rounds=2), cut=True), first), Done)


def test_no_time_is_said() -> None:
    made = trials([10.0, 8.0], phase="calibrate", n_rounds=1)
    decision = ranked(known(made, spent_s=59.0), None)
    assert isinstance(decision, Done)
    assert decision.note == "the budget leaves no time for rounds to rank by"


def test_where_time_is_short_the_simplest_and_the_fastest_stay() -> None:
    """One window of each, of settings that are alike: noise says which of them look fast."""
    steps_ms = [10.0, 6.3, 6.2, 6.35, 6.4, 6.1, 6.32, 6.31, 6.0, 6.34]
    made = trials(steps_ms, phase="calibrate", n_rounds=1)
    decision = ranked(known(made, budget_s=5.0), None)
    assert {0, 1, 2, 5, 8} <= set(asked(decision))  # as it is, the simplest, the fastest
    assert {7, 9} <= set(decision.dropped)  # neither simple nor fast
    assert decision.note is not None and "measured once only" in decision.note


def test_a_search_drops_clear_losers_and_ends_with_a_winner() -> None:
    one = eliminate(known(trials([10.0, 9.9, 5.0, 9.0], n_rounds=1), search="auto"), None)
    assert asked(one) == [0, 1, 2, 3]  # one window of each tells too little
    clear = eliminate(known(trials([10.0, 9.9, 5.0, 9.0]), search="auto"), None)
    assert isinstance(clear, Done)
    assert (clear.reason, clear.dropped) == ("separated", (1, 3))  # 0 is needed to confirm
    same = eliminate(known(trials([10.0, 10.0, 10.0], n_rounds=5), search="auto"), None)
    assert isinstance(same, Done)
    assert same.reason in ("nothing-better", "separated")


def test_a_competition_measures_again_only_what_may_change_the_answer() -> None:
    policy = Competition(among=(1, 2, 3), n_steps=20, boundaries=NO_BOUNDARIES)
    made = trials([10.0, 9.0, 4.0, 4.1], n_rounds=0)
    first = policy(known(made), None)
    assert isinstance(first, Round)
    assert sorted(asked(first)) == [0, 1, 2, 3]
    for trial, ms in zip(made, (10.0, 9.0, 4.0, 4.1), strict=True):
        trial.measurements.append(measured("rank", first.number, ms))
    second = policy(known(made), first)
    assert isinstance(second, Round)
    assert sorted(asked(second)) == [0, 2, 3]  # whatever the noise, 9 is not the best
    for index, ms in ((0, 10.0), (2, 4.0), (3, 4.1)):
        made[index].measurements.append(measured("rank", second.number, ms))
    decision = policy(known(made), second)
    assert isinstance(decision, Done)
    assert decision.reason == "decided"


def test_a_competition_goes_on_for_what_is_promising() -> None:
    policy = Competition(among=(1,), n_steps=20, boundaries=NO_BOUNDARIES)
    made = trials([10.0, 8.5], n_rounds=0)
    last: Round | None = None
    for number in range(1, MIN_ROUNDS + 2):
        found = policy(known(made), last)
        assert isinstance(found, Round)
        assert (found.number, sorted(asked(found))) == (number, [0, 1])
        made[0].measurements.append(measured("rank", number, 10.0))
        # Its gain of a sixth may be noise.
        made[1].measurements.append(measured("rank", number, 8.5 + 2.5 * (-1) ** number))
        last = found


def test_all_are_looked_at_once_before_what_is_slower_is_measured_finer() -> None:
    policy = Competition(among=(1, 2, 3, 4), n_steps=20, boundaries=NO_BOUNDARIES)
    made = trials([10.0, 9.6, 0.0, 0.0, 0.0], n_rounds=0)
    for index, ms in ((0, 10.0), (1, 9.6)):
        made[index].measurements.append(measured("rank", 1, ms))
    found = policy(known(made), None)
    assert asked(found)[:4] == [0, 2, 3, 4]


def test_a_competition_without_the_loop_as_it_is_ends() -> None:
    policy = Competition(among=(1,), n_steps=20, boundaries=NO_BOUNDARIES)
    made = trials([10.0, 8.0], n_rounds=0)
    first = policy(known(made), None)
    assert isinstance(first, Round)
    made[1].measurements.append(measured("rank", first.number, 8.0))
    decision = policy(known(made), first)
    assert isinstance(decision, Done)
    assert "loop as it is" in decision.reason


def test_where_time_is_short_a_competition_keeps_the_fastest() -> None:
    policy = Competition(among=(1, 2, 3), n_steps=20, boundaries=NO_BOUNDARIES)
    made = trials([10.0, 9.0, 5.0, 7.0], n_rounds=1)
    first = Round(
        shown="rank",
        phase="rank",
        number=1,
        n_rounds=1,
        windows=(),
        n_most=1 + MIN_ROUNDS + 3,
    )
    first = replace(first, windows=tuple(_windows(policy, made)))
    decision = policy(replace(known(made, budget_s=6.5), window_s=1.6), first)
    assert asked(decision) == [0, 2]


def _windows(policy: Competition, made: Sequence[Trial]) -> Sequence[Any]:
    first = policy(known([replace(t, measurements=[]) for t in made]), None)
    assert isinstance(first, Round)
    return first.windows


def test_the_loops_own_trace_is_taken_in_any_case_and_others_while_there_is_time() -> None:
    made = trials([10.0, 8.0, 5.0])
    late: Mapping[str, Any] = {"spent_s": 80.0, "trace_dir": "traces"}
    own = traced(known(made, **late), None)
    assert asked(own) == [0]
    assert isinstance(own, Round)
    assert isinstance(traced(known(made, **late), own), Done)
    assert asked(traced(known(made, trace_dir="traces"), own)) == [2]
