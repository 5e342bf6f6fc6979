"""The last rounds, asked of the policy alone: who is in them, and who is recommended by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loaderdoctor.tryout import Trial
from loaderdoctor.tryout.choosing import MOST_PAIRS, SECOND_CAP, confirmed
from loaderdoctor.tryout.ranking import MIN_PAIRS, SIMPLER_SHARE
from loaderdoctor.tryout.rounds import Done, Round
from loaderdoctor.tryout.windows import MAX_ROUNDS
from tests.tryout.test_choosing import asked, known, measured, trials


def carried_out(made: Sequence[Trial], steps_ms: Sequence[Sequence[float]]) -> list[list[int]]:
    """Who was in each round; a trial's windows there take its times in turn."""
    last: Round | None = None
    rounds: list[list[int]] = []
    for _ in range(2 * MOST_PAIRS):
        decision = confirmed(known(made), last)
        if isinstance(decision, Done):
            return rounds
        for index in asked(decision):
            ms = steps_ms[index]
            n = len(made[index].of("confirm"))
            made[index].measurements.append(measured("confirm", decision.number, ms[n % len(ms)]))
        rounds.append(sorted(asked(decision)))
        last = decision
    raise AssertionError("it never ends")


def recommended(made: Sequence[Trial]) -> int | None:
    return known(made).ranking().recommended


@pytest.mark.parametrize(
    ("steps_ms", "candidate"), [([10.0, 8.0, 5.0], 2), ([10.0, 11.0, 11.0], None)]
)
def test_only_a_candidate_is_confirmed_and_next_to_the_loops_own(
    steps_ms: Sequence[float], candidate: int | None
) -> None:
    decision = confirmed(known(trials(steps_ms)), None)
    if candidate is None:
        assert isinstance(decision, Done)
    else:
        assert asked(decision) == [0, candidate]
        assert isinstance(decision, Round)
        assert asked(confirmed(known(trials(steps_ms)), decision)) == [candidate, 0]


def test_the_fastest_runs_beside_the_simplest_of_its_equals() -> None:
    made = trials([10.0, 5.1, 5.0])
    rounds = carried_out(made, [[10.0], [5.1], [5.0]])
    assert MIN_PAIRS <= len(rounds) <= MAX_ROUNDS
    assert all(one == [0, 1, 2] for one in rounds)
    assert recommended(made) == 1


def test_what_is_shown_to_be_too_slow_beside_the_fastest_gives_way_to_the_next_simplest() -> None:
    made = trials([10.0, 5.1, 5.0, 4.95])
    rounds = carried_out(made, [[10.0], [6.5], [5.0], [4.95]])
    assert rounds[0] == [0, 1, 3]
    assert rounds[-1] == [0, 2, 3]  # the next simplest is confirmed in its turn
    assert rounds.count([0, 2, 3]) >= MIN_PAIRS
    assert recommended(made) == 2
    ranking = known(made).ranking()
    assert ranking.confirmed
    assert ranking.slower[1].value > SIMPLER_SHARE > ranking.slower[2].value


def test_where_all_simpler_ones_are_too_slow_the_fastest_is_recommended() -> None:
    made = trials([10.0, 5.1, 5.0])
    rounds = carried_out(made, [[10.0], [6.5], [5.0]])
    assert rounds[-1] == [0, 2]
    assert recommended(made) == 2


def test_what_only_looks_too_slow_is_measured_longer_beside_the_fastest_and_stays() -> None:
    noisy = [[10.0, 10.2], [4.3, 6.3], [6.0, 4.0]]
    made = trials([10.0, 5.1, 5.0])
    rounds = carried_out(made, noisy)
    assert len(rounds) > MAX_ROUNDS
    assert rounds[0] == [0, 1, 2] and rounds[-1] == [1, 2]
    assert recommended(made) == 1


def test_a_gain_that_may_be_noise_is_measured_longer_beside_the_loops_own() -> None:
    made = trials([10.0, 9.0, 8.9])
    rounds = carried_out(made, [[10.0, 14.0, 6.0], [9.0, 5.8, 12.0], [9.0, 6.0, 12.0]])
    assert len(rounds) > MAX_ROUNDS
    assert rounds[0] == [0, 1, 2] and rounds[-1] == [0, 1]


def test_it_goes_on_until_the_second_cap_and_no_longer() -> None:
    made = trials([10.0, 9.0])
    made[0].measurements += [measured("confirm", n, 10.0 + 4 * (-1) ** n) for n in range(1, 9)]
    made[1].measurements += [measured("confirm", n, 9.0 - 3 * (-1) ** n) for n in range(1, 9)]
    before = confirmed(known(trials([10.0, 9.0])), None)
    assert isinstance(before, Round)
    assert asked(confirmed(known(made, spent_s=60.0), before))  # of a budget of 60 seconds
    assert isinstance(confirmed(known(made, spent_s=SECOND_CAP * 60.0), before), Done)
    # A preset that may take minutes keeps within ten: its rows are many.
    for budget_s, goes_on in ((60.0, True), (600.0, False)):
        decision = confirmed(
            known(made, budget_s=budget_s, spent_s=budget_s, keep_all=True), before
        )
        assert isinstance(decision, Round) is goes_on


def test_a_search_counts_its_steps_and_confirms_in_pairs() -> None:
    assert asked(confirmed(known(trials([10.0, 5.1, 5.0]), search="auto"), None)) == [0, 1]


def test_what_an_open_question_needs_runs_and_no_more_than_time_could_answer() -> None:
    """As near the limits as a few rounds leave both, a question is open while rounds may come."""
    made = trials([10.0, 5.2, 5.0])
    first = confirmed(known(made), None)
    assert isinstance(first, Round)
    for trial, ms, sway in zip(made, (10.0, 5.2, 5.0), (0.01, 0.1, -0.1), strict=True):
        trial.measurements += [
            measured("confirm", n, ms * (1 + sway * (-1) ** n))
            for n in range(1, first.n_rounds + 1)
        ]
    early, late = known(made), known(made, spent_s=SECOND_CAP * 60.0 - 1.0)
    assert sorted(asked(confirmed(early, first))) == [1, 2]  # it gains; it may be slower by much
    assert isinstance(confirmed(late, first), Done)  # a round or two would not change that
    assert recommended(made) == 1


def test_where_the_simplest_is_shown_not_to_gain_the_fastest_is_what_may() -> None:
    made = trials([10.0, 9.6, 9.5])
    rounds = carried_out(made, [[10.0, 10.2, 9.8], [10.2, 10.5, 9.9], [8.9, 9.2, 8.8]])
    assert rounds[-1] == [0, 2]
    assert recommended(made) == 2


def test_only_what_was_measured_again_is_named() -> None:
    """Rejected in the last round that time allows, the simplest leaves the next one untested."""
    made = trials([10.0, 5.2, 5.1, 5.0])
    for index, ms in ((0, 10.0), (1, 6.0), (3, 5.0)):
        made[index].measurements += [measured("confirm", n, ms) for n in range(1, 9)]
    assert recommended(made) == 3


def test_as_it_is_is_an_answer_once_the_fastest_was_measured_beside_it() -> None:
    """The loop as it is may be the fastest of few rounds by luck."""
    noisy = [(12.0, 8.0, 10.0), (8.5, 11.5, 10.0)]
    made = trials([10.0, 10.0])
    for trial, times in zip(made, noisy, strict=True):
        trial.measurements[:] = [measured("rank", i, ms) for i, ms in enumerate(times, start=1)]
    rounds = carried_out(made, [[10.0, 10.4, 9.6], [8.0, 8.2, 7.8]])
    assert rounds and recommended(made) == 1
    nothing = trials([10.0, 10.0])
    carried_out(nothing, [[10.0, 10.4, 9.6], [10.1, 10.3, 9.9]])
    ranking = known(nothing).ranking()
    assert ranking.recommended is None


def test_no_time_is_no_round() -> None:
    made = trials([10.0, 5.1, 5.0])
    budget_over, late = (known(made, spent_s=s) for s in (61.0, SECOND_CAP * 60.0 - 0.1))
    assert asked(confirmed(budget_over, None)) == [0, 1, 2]  # first windows alone say nothing
    assert isinstance(confirmed(late, None), Done)


def test_what_was_not_measured_beside_the_fastest_is_judged_as_without_it() -> None:
    """The wide margin says whom to measure there; where no time was left, nobody is named by it."""
    times = [10.0, 6.2, 5.0, 5.05, 4.95]
    made = trials(times)
    for trial, ms in zip(made, times, strict=True):  # noise of a tenth
        trial.measurements[:] = [
            measured("rank", i, ms * f) for i, f in enumerate((0.9, 1.1, 1.0), start=1)
        ]
    made[1].measurements[:] = [
        measured("rank", i, 6.2 * f) for i, f in enumerate((1.1, 0.9, 1.0), start=1)
    ]
    proposed, answer = known(made).ranking(proposing=True), known(made).ranking()
    assert proposed.candidate == 1 and answer.candidate == 2
    # Beside the fastest it holds its own: then it is the answer, however wide the margin was.
    for number in range(1, MIN_PAIRS + 1):
        for index, ms in ((0, 10.0), (1, 5.0), (4, 4.95)):
            made[index].measurements.append(measured("confirm", number, ms))
    assert recommended(made) == 1


def test_no_other_candidate_is_begun_that_the_second_cap_leaves_no_time_for() -> None:
    made = trials([10.0, 5.1, 5.0])
    seen = known(made)
    first = confirmed(seen, None)
    assert isinstance(first, Round)
    end_s = SECOND_CAP * seen.options.budget_s
    assert isinstance(confirmed(replace(seen, spent_s=end_s), first), Done)
    assert isinstance(confirmed(replace(seen, spent_s=0.0), first), Round)


def test_rounds_that_go_on_after_an_interruption_pair_with_no_earlier_ones() -> None:
    made = trials([10.0, 5.0])
    for number, index in ((1, 0), (1, 1), (2, 0)):  # cut short in its second round
        made[index].measurements.append(measured("confirm", number, 10.0 - 5 * index))
    decision = confirmed(known(made), None)
    assert isinstance(decision, Round) and decision.number == 3
