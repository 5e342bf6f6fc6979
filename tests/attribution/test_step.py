"""The step's wall time: boundaries spread over the real epoch, the device's clock first."""

from __future__ import annotations

import msgspec
import pytest

from loaderdoctor.attribution.step import step_facts, window_times
from tests.attribution.builders import boundary, observed, window


def test_boundary_is_spread_over_the_real_epoch_not_over_the_window() -> None:
    # 10 ms steps, one boundary of 200 ms more in a window of 20, epochs of 100 steps.
    w = window("plain", [10.0] * 19 + [210.0], boundary_steps=[19])
    facts = step_facts(observed(steps_per_epoch=100), [w, w])
    assert facts is not None
    assert facts.within_epoch_ms.value == pytest.approx(10.0)
    assert facts.boundary_ms == pytest.approx(200.0)
    assert facts.wall_ms.value == pytest.approx(12.0)


def test_short_epochs_give_back_the_plain_mean_of_whole_epochs() -> None:
    steps = [5.0, 5.0, 5.0, 185.0] * 3
    w = window("plain", steps, boundary_steps=[3, 7, 11])
    facts = step_facts(observed(steps_per_epoch=4), [w, w])
    assert facts is not None
    assert facts.wall_ms.value == pytest.approx(sum(steps) / len(steps))


def test_an_iterator_recreated_each_step_is_what_the_step_costs() -> None:
    w = window("plain", [115.0] * 6, boundary_steps=range(6))
    assert window_times(w).within_ms == pytest.approx(115.0)
    assert window_times(w).boundary_ms is None


def test_boundaries_in_every_step_are_not_added_a_second_time() -> None:
    w = window("plain", [115.0] * 6, boundary_steps=range(6))
    facts = step_facts(observed(steps_per_epoch=4, boundaries=[boundary(100.0)]), [w, w])
    assert facts is not None
    assert facts.wall_ms.value == pytest.approx(115.0)


def test_device_clock_wins_over_the_host_that_runs_ahead() -> None:
    w = window("plain", [5.0, 36.0, 5.0, 36.0], device_ms=[37.0] * 4)
    facts = step_facts(observed(device="cuda:0"), [w])
    assert facts is not None
    assert facts.clock == "device"
    assert facts.wall_ms.value == pytest.approx(37.0)


def test_the_first_boundary_of_the_run_stands_in_only_where_no_later_one_was_seen() -> None:
    w = window("plain", [10.0] * 10)
    cold = observed(boundaries=[boundary(1000.0, first=True)])
    both = observed(boundaries=[boundary(1000.0, first=True), boundary(50.0)])
    first = step_facts(cold, [w])
    later = step_facts(both, [w])
    assert first is not None and first.boundary_ms == pytest.approx(1000.0)
    assert later is not None and later.boundary_ms == pytest.approx(50.0)


def test_starts_of_loaders_that_do_not_train_are_not_the_steps() -> None:
    """Validation with workers that take half a second to start, and none of the step's own seen."""
    validation = msgspec.structs.replace(boundary(500.0), loader="train.py:2")
    seen = observed(boundaries=[boundary(8.0, first=True), validation])
    facts = step_facts(seen, [window("plain", [10.0] * 10, waits_ms=[1.0] * 10)])
    assert facts is not None
    assert facts.boundary_ms == pytest.approx(8.0)
    assert facts.input_ms == pytest.approx(1.0 + 8.0 / 100)
    alone = step_facts(observed(boundaries=[validation]), [window("plain", [10.0] * 10)])
    assert alone is not None
    assert alone.boundary_ms is alone.loader_boundary_ms is None


def test_mean_wait_is_over_the_worker_cycle_not_the_median() -> None:
    w = window("plain", [50.0] * 8, waits_ms=[255, 0, 0, 0, 140, 1, 0, 0])
    facts = step_facts(observed(workers=4), [w])
    assert facts is not None
    assert facts.raw_wait_ms == pytest.approx(396 / 8)


def test_windows_of_other_modes_do_not_count() -> None:
    plain, other = window("plain", [10.0] * 4), window("no_input", [1.0] * 4)
    facts = step_facts(observed(), [plain, other])
    assert facts is not None and facts.n_steps == 4
    assert step_facts(observed(), [other]) is None


def test_gpu_peaks_are_those_of_the_first_window_before_anything_was_substituted() -> None:
    first, later = (
        msgspec.structs.replace(
            window("plain", [10.0] * 4),
            gpu_peak_allocated_bytes=peak,
            gpu_peak_reserved_bytes=2 * peak,
        )
        for peak in (100, 900)
    )
    facts = step_facts(observed(), [first, later])
    assert facts is not None
    assert (facts.gpu_peak_allocated_bytes, facts.gpu_peak_reserved_bytes) == (100, 200)
    without = step_facts(observed(), [window("plain", [10.0] * 4)])
    assert without is not None
    assert without.gpu_peak_allocated_bytes is None


def test_cpu_time_is_of_windows_without_validation_between_their_steps() -> None:
    """The second window holds 60 ms of validation on two CPUs beside its 40 ms of steps."""
    one = window("plain", [10.0] * 4)
    quiet = msgspec.structs.replace(one, main_cpu_ns=20_000_000, worker_cpu_ns=4_000_000)
    validating = msgspec.structs.replace(
        one,
        main_cpu_ns=80_000_000,
        worker_cpu_ns=64_000_000,
        end_ns=one.end_ns + 60_000_000,
    )
    facts = step_facts(observed(), [quiet, validating])
    assert facts is not None
    assert facts.main_cpu_cores == pytest.approx(0.5)
    assert facts.worker_cpu_cores == pytest.approx(0.1)
    alone = step_facts(observed(), [validating])  # there is no other: 80 of 100 ms
    assert alone is not None
    assert alone.main_cpu_cores == pytest.approx(0.8)


def test_what_the_loop_does_between_epochs_is_not_the_loaders() -> None:
    """Of 500 ms between epochs the loader takes 200; the rest saves a checkpoint."""
    w = window("plain", [10.0] * 9 + [510.0], boundary_steps=(9,), waits_ms=[2.0] * 10)
    facts = step_facts(observed(steps_per_epoch=10, boundaries=[boundary(200.0)]), [w])
    assert facts is not None
    assert facts.boundary_ms == pytest.approx(500.0)
    assert facts.loader_boundary_ms == pytest.approx(200.0)
    assert facts.input_ms == pytest.approx(2.0 + 200.0 / 10)


def test_a_boundary_is_the_loaders_as_far_as_steps_show_it() -> None:
    w = window("plain", [10.0] * 9 + [60.0], boundary_steps=(9,), waits_ms=[0.0] * 10)
    facts = step_facts(observed(steps_per_epoch=10, boundaries=[boundary(200.0)]), [w])
    assert facts is not None
    assert facts.loader_boundary_ms == pytest.approx(50.0)


def test_an_iterator_recreated_each_step_is_all_input() -> None:
    """Not a hundredth of it, as of an epoch of a hundred steps."""
    w = window(
        "plain",
        [115.0] * 6,
        boundary_steps=range(6),
        boundaries=[boundary(100.0)] * 6,
        waits_ms=[50.0] * 6,
    )
    facts = step_facts(observed(steps_per_epoch=100), [w, w])
    assert facts is not None
    assert facts.input_ms == pytest.approx(100.0)


def test_a_loader_is_built_anew_only_where_each_later_epoch_was_of_another_object() -> None:
    def rebuilt(*seen: bool) -> frozenset[str]:
        first = boundary(10.0, first=True)
        later = [msgspec.structs.replace(boundary(10.0), rebuilt=r) for r in seen]
        facts = step_facts(observed(boundaries=[first, *later]), [window("plain", [5.0] * 8)])
        assert facts is not None
        return facts.rebuilt

    name = boundary(1.0).loader
    assert rebuilt(True, True) == {name}
    assert rebuilt(True, False) == frozenset()
    assert rebuilt() == frozenset()


@pytest.mark.parametrize(
    ("at_40", "at_10", "loader_ms", "own_ms", "wall_ms"),
    [
        ((5, 15), (8, 18), None, 99.0, 15.0),  # either is met, at steps of its own
        ((5, 15), (), None, 10.0, 15.0),  # the loop's own work is known from elsewhere
        ((), (8, 18), 40.0, 99.0, 15.0),  # the loader's was timed next to the window
        ((), (), 40.0, 10.0, 15.0),
    ],
)
def test_a_trials_boundary_is_its_loaders_and_the_loops_own(
    at_40: tuple[int, ...], at_10: tuple[int, ...], loader_ms: float | None, own_ms: float,
    wall_ms: float,
) -> None:  # fmt: skip
    steps = [10.0 + 40.0 * (i in at_40) + 10.0 * (i in at_10) for i in range(20)]
    w = window("trial", steps, boundary_steps=at_10, crossed_steps=at_40)
    found = window_times(w).wall_of_trial(10, loader_ms, own_ms)
    assert found.value == pytest.approx(wall_ms)


@pytest.mark.parametrize(
    ("at_40", "at_10"),
    [
        ((5, 15, 25, 35), (5, 25)),  # a batch twice as large: each other end is of both
        ((5, 20, 35), (5, 15, 25, 35)),  # some are of both, some of either
        ((5, 25), (5, 15, 25, 35)),  # a batch half as large
    ],
)
def test_a_trials_boundary_that_is_partly_at_the_loops_own_counts_either_once(
    at_40: tuple[int, ...], at_10: tuple[int, ...]
) -> None:
    steps = [10.0 + 40.0 * (i in at_40) + 10.0 * (i in at_10) for i in range(40)]
    w = window("trial", steps, boundary_steps=at_10, crossed_steps=at_40)
    assert window_times(w).wall_of_trial(10, None, 10.0).value == pytest.approx(15.0)


def test_a_trials_boundary_at_the_loops_own_is_both_and_counts_once() -> None:
    steps = [10.0 + 50.0 * (i in (5, 15)) for i in range(20)]
    w = window("trial", steps, boundary_steps=(5, 15), crossed_steps=(5, 15))
    assert window_times(w).wall_of_trial(10, 7.0, 99.0).value == pytest.approx(15.0)
    # Whole epochs need no model: their mean is what a step takes.
    assert window_times(w).wall_of_trial(10, None, 0.0).value == pytest.approx(sum(steps) / 20)
