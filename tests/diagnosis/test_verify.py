"""Trying candidates against a simulated run whose true step times are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from loaderdoctor.diagnosis.verify import MAX_CACHE_S, Verification, Verifier, loop_trials
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.comparing import Boundaries
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.windows import MIN_ROUNDS as ROUNDS
from tests.attribution.builders import observed, window
from tests.diagnosis.simulator import SimulatedRun
from tests.diagnosis.test_gather import gatherer


def workers_and_pinning(changed: Mapping[str, Any]) -> float:
    """20 ms in the loop's own process; four workers leave 8 ms, pinning takes 3 ms more."""
    ms = 20.0
    if changed.get("num_workers"):
        ms -= 3.0 * min(4, int(changed["num_workers"]))
    if changed.get("pin_memory") and changed.get("non_blocking"):
        ms -= 3.0
    return ms


def run(
    script_run: SimulatedRun,
    candidates: list[Settings],
    *,
    until: float = 1e9,
    rest_ms: float | None = None,
) -> Verification:
    return verifier(script_run, until=until).verify(candidates, rest_ms=rest_ms)


def verifier(script_run: SimulatedRun, *, until: float = 1e9) -> Verifier:
    script_run.observed = msgspec.structs.replace(script_run.observed, device="cuda:0")
    return Verifier(
        gatherer(script_run).evidence,
        Equipment(script_run=script_run, clock=lambda: script_run.now_s),
        left_s=until - script_run.now_s,
    )


PINNED = Settings(pin_memory=True, non_blocking=True)


def test_winners_are_combined_and_the_combination_recommended() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning, noise=0.01)
    found = run(script_run, [Settings(num_workers=2), Settings(num_workers=4), PINNED])
    assert found.best is not None and found.best.step is not None
    assert found.best.settings == Settings(num_workers=4, pin_memory=True, non_blocking=True)
    assert found.best.step.low <= 5.0 <= found.best.step.high
    assert found.complete


def test_a_setting_that_only_seems_to_help_is_not_recommended() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: 20.0, noise=0.05)
    found = run(script_run, [Settings(num_workers=n) for n in (2, 4)])
    assert found.best is None
    assert all(not t.helps for t in found.tried)


def test_a_change_that_adds_nothing_stays_out_of_the_prescription() -> None:
    script_run = SimulatedRun(
        {"plain": 20.0},
        trial_ms=lambda c: 8.0 if c.get("num_workers") == 4 else 19.0,
        noise=0.01,
    )
    found = run(script_run, [Settings(num_workers=4), PINNED])
    assert found.best is not None
    assert found.best.settings == Settings(num_workers=4)


def test_rounds_are_interleaved_and_plain_is_measured_in_each() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning)
    found = run(script_run, [Settings(num_workers=2), PINNED], rest_ms=25.0)
    modes = [r.mode for r in script_run.asked]
    assert sorted(modes[:3]) == ["plain", "trial", "trial"]
    assert modes[3:] and modes.count("plain") == max(t.n_rounds for t in found.tried)
    assert all(t.own_ms is not None for t in found.tried)


def test_search_stops_when_the_rest_of_the_step_is_reached() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning, noise=0.001)
    found = run(script_run, [Settings(num_workers=4), PINNED], rest_ms=8.0)
    assert found.best is not None
    assert found.best.settings == Settings(num_workers=4)
    assert found.best.n_rounds > 1 and found.complete
    asked = [r.settings for r in script_run.asked if r.settings is not None]
    assert not any(x.num_workers and x.pin_memory for x in asked)


def test_what_one_round_shows_is_not_measured_again_and_again() -> None:
    """A factor of 2.5 needs no third round; nor does what can't reach it any more."""
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning, noise=0.01)
    found = run(script_run, [Settings(num_workers=4), Settings(num_workers=1)], rest_ms=8.0)
    assert found.best is not None and found.best.settings == Settings(num_workers=4)
    assert [t.n_rounds for t in found.tried] == [2, 1]
    assert found.complete


def test_no_time_tries_nothing_and_says_so() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning)
    found = run(script_run, [PINNED], until=0.0)
    assert found.tried == () and found.best is None and not found.complete


def test_a_failed_trial_does_not_end_the_others() -> None:
    script_run = SimulatedRun({"plain": 20.0}, failing=frozenset({"trial"}))
    found = run(script_run, [Settings(num_workers=2), PINNED])
    assert found.best is None
    assert [t.trial.reason for t in found.tried] == ["broken", "broken"]


def test_where_time_is_short_what_should_gain_most_is_tried_first() -> None:
    def run_until(until: float) -> Verification:
        script_run = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning, noise=0.01)
        candidates = [Settings(num_workers=4), Settings(num_workers=2), PINNED]
        return run(script_run, candidates, until=until, rest_ms=8.0)

    found = [run_until(quarters / 4) for quarters in range(4, 160)]
    best = [one.best.settings if one.best is not None else None for one in found]
    assert best[0] is None and set(best) == {None, Settings(num_workers=4)}
    assert best == sorted(best, key=lambda one: one is not None)  # once shown, it stays
    short = next(one for one in found if one.best is not None)
    assert not short.complete and found[-1].complete


def test_where_time_ran_out_it_may_go_on_until_one_is_shown_to_help() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning, noise=0.01)
    tries = verifier(script_run, until=1.0)
    candidates = [Settings(num_workers=4), Settings(num_workers=2), PINNED]
    assert tries.verify(candidates, rest_ms=8.0).best is None
    assert not script_run.asked and len(tries.undecided) == 3
    found = tries.go_on(30.0)
    assert found.best is not None and found.best.settings == Settings(num_workers=4)
    assert {r.settings for r in script_run.asked} == {None, Settings(num_workers=4)}
    assert script_run.now_s <= 31.0


def test_going_on_ends_where_none_of_them_helps() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: 20.0, noise=0.01)
    tries = verifier(script_run, until=1.0)
    tries.verify([Settings(num_workers=4), PINNED], rest_ms=8.0)
    assert tries.go_on(1e9).best is None
    assert tries.undecided == []


def test_what_was_shown_by_chance_is_not_recommended_once_it_is_measured_again() -> None:
    """Two windows of luck show a gain; what is measured then takes it back."""
    lucky = iter([9.0, 12.0])
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: next(lucky, 20.0), noise=0.01)
    tries = verifier(script_run, until=7.0)
    first = tries.verify([Settings(num_workers=4)], rest_ms=5.0).best
    assert first is not None and first.n_rounds == 2
    found = tries.confirm(first, 1e9)
    assert found.best is None
    (again,) = found.tried
    assert again.n_rounds > 2 and again.part > 0.65


def test_what_is_measured_again_is_told_by_all_its_windows() -> None:
    times = iter([9.0, 12.0])
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: next(times, 10.0), noise=0.01)
    tries = verifier(script_run, until=7.0)
    first = tries.verify([Settings(num_workers=4)], rest_ms=5.0).best
    assert first is not None and first.n_rounds == 2
    again = tries.confirm(first, 1e9).best
    assert again is not None and again.n_rounds > 2
    assert again.step is not None and first.step is not None
    assert again.step.margin < first.step.margin


def test_a_gain_that_noise_hides_gets_more_rounds_where_there_is_time() -> None:
    n_found, n_late = 0, 0
    for seed in range(20):
        script_run = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: 14.0, noise=0.12, seed=seed)
        found = run(script_run, [Settings(num_workers=4)], rest_ms=14.0)
        (tried,) = found.tried
        n_found += found.best is not None
        n_late += found.best is not None and tried.n_rounds > ROUNDS
    assert n_found >= 14 and n_late >= 1
    steady = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: 20.0, noise=0.01)
    (tried,) = run(steady, [Settings(num_workers=4)]).tried
    assert tried.n_rounds <= ROUNDS


CACHED = Settings(cache=True)


def cached_or_workers(changed: Mapping[str, Any]) -> float:
    return 5.0 if changed.get("cache") else workers_and_pinning(changed)


def test_samples_kept_in_memory_are_tried_beside_the_settings_and_never_added_to_them() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_workers, noise=0.01)
    candidates = [Settings(num_workers=4), PINNED]
    found = verifier(script_run).verify(candidates, rest_ms=None, in_code=[CACHED])
    assert found.best is not None
    assert found.best.settings == Settings(num_workers=4, pin_memory=True, non_blocking=True)
    (kept,) = [t for t in found.tried if t.in_code]
    assert kept.settings == CACHED and kept.helps
    tried = [r.settings for r in script_run.asked if r.settings is not None]
    assert not any(s.cache and s.num_workers for s in tried)
    first = [r.mode for r in script_run.asked][:4]
    assert first.count("plain") == 1  # the same rounds as the settings'


def test_only_what_keeps_samples_is_given_a_time_to_fill() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_workers)
    resident = Settings(resident=True)
    verifier(script_run).verify([PINNED, resident], rest_ms=None, in_code=[CACHED])
    limits = {r.settings: r.cache_limit_s for r in script_run.asked if r.settings is not None}
    assert limits[PINNED] is None
    assert limits[CACHED] == limits[resident] == MAX_CACHE_S


def test_where_time_is_short_settings_go_before_code() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_workers, noise=0.01)
    whole = SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning)
    verifier(whole).verify([PINNED], rest_ms=17.0)
    found = verifier(script_run, until=whole.now_s * 1.1).verify(
        [PINNED], rest_ms=17.0, in_code=[CACHED]
    )
    assert not found.complete
    assert found.best is not None and found.best.settings == PINNED


def test_time_left_over_goes_to_candidates_that_it_did_not_seem_to_suffice_for() -> None:
    """Visits are planned to take longer than they do."""
    candidates = [Settings(num_workers=n) for n in (1, 2, 3, 4)] + [PINNED]
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: 20.0, noise=0.01)
    g = gatherer(script_run)
    planned_s = 2.5 * 0.5 * g.evidence.sizes.window_s + 0.5  # a visit, before one was measured
    until = 2 * ROUNDS * planned_s
    found = run(script_run, candidates, until=until)
    assert len(script_run.asked) > 2 * ROUNDS
    assert len(found.tried) > 1
    assert all(t.decided for t in found.tried) or not found.complete
    assert script_run.now_s <= until
    left_s = until - script_run.now_s
    assert found.complete or left_s < ROUNDS * 2 * planned_s


def test_a_late_candidate_that_is_better_is_recommended() -> None:
    script_run = SimulatedRun(
        {"plain": 20.0},
        trial_ms=lambda c: 5.0 if c.get("pin_memory") else 15.0,
        noise=0.01,
    )
    g = gatherer(script_run)
    planned_s = 2.5 * 0.5 * g.evidence.sizes.window_s + 0.5
    found = run(script_run, [Settings(num_workers=2), PINNED], until=4 * planned_s)
    assert PINNED not in {r.settings for r in script_run.asked[:2]}
    assert found.best is not None
    assert found.best.settings == PINNED


def threads_and_workers(changed: Mapping[str, Any]) -> float:
    """Two threads that fight make 30 ms of 6 ms; a worker saves 2 ms of either."""
    ms = 6.0 if changed.get("num_threads") == 1 else 30.0
    return ms - 2.0 if changed.get("num_workers") else ms


def test_other_threads_are_tried_with_the_loops_own_batches_and_their_boundary() -> None:
    script_run = SimulatedRun({"plain": 30.0}, trial_ms=threads_and_workers, noise=0.01)
    found = run(script_run, [Settings(num_threads=1)])
    trials = [r for r in script_run.asked if r.mode == "trial"]
    assert 1 <= len(trials) <= ROUNDS
    assert all(r.own_batches for r in trials)
    assert found.best is not None and found.best.settings == Settings(num_threads=1)
    (trial,) = loop_trials(found.tried).threads
    assert trial.n_threads == 1 and trial.decided
    assert trial.gain_ms.value == pytest.approx(24.0, rel=0.05)
    other = run(
        SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning), [Settings(num_workers=2)]
    )
    assert loop_trials(other.tried).threads == ()
    (pool,) = loop_trials(other.tried).pools
    assert pool.num_workers == 2
    assert pool.gain_ms.value == pytest.approx(pool.own_ms - pool.step_ms.value, rel=0.05)
    both = [Settings(num_workers=2, pin_memory=True)]
    several = run(SimulatedRun({"plain": 20.0}, trial_ms=workers_and_pinning), both)
    assert loop_trials(several.tried).pools == ()


def test_the_rest_of_the_step_is_no_limit_where_it_fought_with_itself() -> None:
    """Without input the fighting loop took 25 ms: with one thread, loaders matter again."""
    script_run = SimulatedRun({"plain": 30.0}, trial_ms=threads_and_workers, noise=0.005)
    found = run(script_run, [Settings(num_threads=1), Settings(num_workers=1)], rest_ms=25.0)
    assert found.best is not None
    assert found.best.settings == Settings(num_workers=1, num_threads=1)


def cached_or_as_slow(changed: Mapping[str, Any]) -> float:
    return 5.0 if changed.get("cache") else 19.7


def test_code_has_its_turn_where_a_round_has_room_for_one_trial() -> None:
    """There the only place went to a setting each time, as long as there was one."""
    alike = [Settings(num_workers=1), Settings(prefetch_factor=4), Settings(in_order=False)]

    def tried(until: float) -> list[Settings]:
        script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_as_slow, noise=0.1)
        found = verifier(script_run, until=until).verify(alike, rest_ms=None, in_code=[CACHED])
        return [t.settings for t in found.tried if t.n_rounds]

    several = [found for i in range(4, 30) if len(found := tried(0.75 * i)) > 1]
    assert min(map(len, several)) == 2
    assert all(CACHED in found for found in several)


def test_code_that_was_not_looked_at_has_its_turn_where_it_goes_on() -> None:
    """Bytes for floats, 48 -> 5 ms, had none: what was left went to settings that gain little."""
    alike = [Settings(num_workers=1), Settings(prefetch_factor=4)]
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_as_slow, noise=0.1)
    tries = verifier(script_run, until=0.0)
    tries.verify(alike, rest_ms=None, in_code=[CACHED])
    assert len(tries.undecided) == 3
    found = tries.go_on(30.0)
    tried = {t.settings: t for t in found.tried}
    assert tried[CACHED].helps
    assert alike[1] not in tried  # it ends with what is shown to help


def test_where_there_is_time_for_two_they_are_the_best_of_either_kind() -> None:
    def run_until(until: float) -> list[Settings]:
        script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_workers, noise=0.01)
        found = verifier(script_run, until=until).verify(
            [Settings(num_workers=4), Settings(num_workers=2), PINNED],
            rest_ms=20.0,
            in_code=[CACHED, Settings(uint8=True)],
        )
        return [t.settings for t in found.tried]

    by_time = [run_until(seconds / 2) for seconds in range(2, 40)]
    some = [found for found in by_time if found]
    # However much faster the cache is, a loader's own settings keep their place.
    assert all(found[0] == Settings(num_workers=4) for found in some)
    assert all(set(found[:2]) <= {Settings(num_workers=4), CACHED} for found in some)
    assert len(by_time[-1]) == 5


def test_code_that_promises_far_more_is_tried_before_any_setting() -> None:
    """Pictures sent as floats: pinning was looked at twice, bytes never, in twice the budget."""
    settings = [Settings(num_workers=1), Settings(prefetch_factor=4)]

    def tried(until: float, *, code_first: bool) -> list[Settings]:
        """In the order in which they were measured."""
        script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_as_slow, noise=0.1)
        verifier(script_run, until=until).verify(
            settings, rest_ms=None, in_code=[CACHED], code_first=code_first
        )
        return [r.settings for r in script_run.asked if r.settings is not None]

    least_s = next(i / 4 for i in range(100) if tried(i / 4, code_first=True))
    assert tried(least_s, code_first=False)[0] == settings[0]
    found = tried(least_s, code_first=True)
    assert found[:2] == [CACHED, settings[0]]  # which have their turn too
    assert {*settings, CACHED} == set(tried(30.0, code_first=True))


def test_code_that_promises_far_more_is_tried_first_where_it_goes_on() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=cached_or_as_slow, noise=0.1)
    tries = verifier(script_run, until=0.0)
    tries.verify([PINNED], rest_ms=None, in_code=[CACHED], code_first=True)
    found = tries.go_on(30.0)
    assert [t.settings for t in found.tried if t.n_rounds] == [CACHED]  # it helps: that ends it
    assert found.tried[0].helps


def test_trials_whose_workers_fill_most_of_an_epoch_ahead_are_measured_for_whole_epochs() -> None:
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=lambda _: 20.0)
    script_run.observed = observed(step_ms=20.0, steps_per_epoch=90)
    many, few = Settings(num_workers=8, prefetch_factor=4), Settings(num_workers=2)
    run(script_run, [many, few])
    asked = [r for r in script_run.asked if r.mode == "trial"]
    assert {r.n_steps % 90 for r in asked if r.settings == many} == {0}
    assert all(r.n_steps % 90 for r in asked if r.settings == few)


def test_a_trials_step_has_the_loops_own_work_between_epochs_too() -> None:
    """Its boundary was timed next to the window: saving a checkpoint there is no gain of it."""
    measurement = msgspec.structs.replace(window("trial", [4.0] * 10), boundary_ns=20_000_000)
    unknown = Boundaries(steps_per_epoch=10, loop_ms=None, own_work_ms=None)
    assert unknown.trial(measurement).value == pytest.approx(4.0 + 2.0)
    saving = Boundaries(steps_per_epoch=10, loop_ms=500.0, own_work_ms=300.0)
    assert saving.trial(measurement).value == pytest.approx(4.0 + 2.0 + 30.0)
    kept = msgspec.structs.replace(measurement, boundary_ns=None)
    assert saving.trial(kept, keeps_loader=True).value == pytest.approx(4.0 + 50.0)
