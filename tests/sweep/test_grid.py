"""Which trials a sweep consists of."""

from __future__ import annotations

import msgspec
import pytest

from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import UsageError
from loaderdoctor.facts import AS_IS, meaning, own_settings
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.grid import (
    asked_trials,
    default_trials,
    field_name,
    parse_grid,
    worker_counts,
)
from tests.tryout.simulator import observed


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [(0.5, (0, 1, 2)), (1, (0, 1, 2)), (2, (0, 1, 2, 3)), (6.5, (0, 1, 2, 4, 6, 9))],
)
def test_worker_counts_go_a_bit_beyond_the_usable_cpus(
    cpus: float, expected: tuple[int, ...]
) -> None:
    assert worker_counts(cpus) == expected


@pytest.mark.parametrize(
    ("cpus", "device", "low", "high"), [(2, None, 8, 20), (16, None, 8, 30), (16, "cuda:0", 24, 40)]
)
def test_the_default_grid_is_sensible_and_not_explosive(
    cpus: float, device: str | None, low: int, high: int
) -> None:
    seen = observed(usable_cpus=cpus, device=device)
    trials = default_trials(seen)
    assert low <= len(trials) <= high
    assert trials[0] == AS_IS
    assert len({meaning(t, own_settings(seen)) for t in trials}) == len(trials)
    has_accelerator = device is not None
    assert all(invalid_reason(t, has_accelerator=has_accelerator) is None for t in trials)


def test_a_trial_that_means_the_loops_own_settings_is_left_out() -> None:
    own = Settings(num_workers=2, persistent_workers=True)
    seen = observed(own=own)
    trials = default_trials(seen)
    same = Settings(num_workers=2, prefetch_factor=2, persistent_workers=True)
    assert same not in trials
    assert Settings(num_workers=2, prefetch_factor=4, persistent_workers=True) in trials


def test_axes_that_mean_nothing_for_a_recipe_are_left_alone() -> None:
    trials = default_trials(observed(), ("num_workers", "background"))
    assert {name for t in trials for name in t.changed()} == {"num_workers", "background"}
    assert default_trials(observed(), ()) == (AS_IS,)


def test_grid_words_take_lists_ranges_and_words() -> None:
    grid = parse_grid(["num_workers=0:8:4,3", "persistent_workers=yes,no", "background=off,host"])
    assert grid == {
        "num_workers": (0, 4, 8, 3),
        "persistent_workers": (True, False),
        "background": ("off", "host"),
    }
    assert len(parse_grid(["num_workers=0:50:5"])["num_workers"]) == 11


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("workers=2", "AXIS is one of num_workers"),
        ("num_workers", "write AXIS=VALUES"),
        ("num_workers=", "no values"),
        ("num_workers=two", "not a whole number"),
        ("num_workers=5:0", "a range goes up"),
        ("num_workers=0:5:0", "a range goes up"),
        ("num_workers=0:5:1:1", "start:end:step"),
        ("num_workers=0:100000", "at most 200"),
        ("num_workers=0:99999999999", "at most 200"),
        ("num_workers=0:99999999999999999999", "start:end:step"),
        ("num_workers=\u00b2", "not a whole number"),
        ("num_workers=0:\u00b2", "start:end:step"),
        ("num_workers=" + 5000 * "9", "not a whole number"),
        ("batch_size=0,32", "at least 1"),
        ("num_threads=0:4", "at least 1"),
        ("prefetch_factor=0,2", "at least 1"),
        ("pin_memory=maybe", "true or false"),
        ("background=gpu", "choose from off, host, device"),
    ],
)
def test_a_grid_word_that_cannot_be_used_says_what_is_accepted(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_grid([word])


def test_an_axis_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        parse_grid(["num_workers=1", "num_workers=2"])


def test_asked_combinations_come_after_the_loops_own_settings() -> None:
    trials = asked_trials(["num_workers=0,2", "prefetch_factor=2,4"], observed())
    assert trials == (
        AS_IS,
        Settings(num_workers=2, prefetch_factor=2),
        Settings(num_workers=2, prefetch_factor=4),
    )


def test_worker_axes_alone_apply_to_the_loops_own_workers() -> None:
    trials = asked_trials(["prefetch_factor=2,8"], observed(own=Settings(num_workers=3)))
    assert trials == (AS_IS, Settings(num_workers=3, prefetch_factor=8))


def test_a_grid_without_any_valid_change_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="need an accelerator"):
        asked_trials(["pin_memory=true"], observed())
    with pytest.raises(UsageError, match="num_workers > 0"):
        asked_trials(["prefetch_factor=4"], observed())


def test_millions_of_combinations_are_refused_before_they_are_made() -> None:
    words = ["num_workers=1:200", "prefetch_factor=1:200", "batch_size=1:200", "num_threads=1:200"]
    with pytest.raises(UsageError, match="more than 2,000 combinations"):
        asked_trials(words, observed())


def test_portions_are_percents_and_ranges_of_them() -> None:
    assert parse_grid(["portion=10,40"]) == {"portion": (0.1, 0.4)}
    assert parse_grid(["portion=10:30:10"]) == {"portion": (0.1, 0.2, 0.3)}


def test_each_names_the_transforms_and_the_inputs_of_this_loop() -> None:
    seen = observed()
    loader = msgspec.structs.replace(seen.loaders[0], augmentations=("Crop", "Flip"))
    seen = msgspec.structs.replace(seen, loaders=(loader,))
    trials = asked_trials(["augment=off,each"], seen)
    assert [t.augment for t in trials[1:]] == ["off", "no-Crop", "no-Flip"]
    assert [t.fields for t in asked_trials(["fields=each"], seen)[1:]] == ["0", "1"]
    with pytest.raises(UsageError, match="no transform"):
        asked_trials(["augment=each"], observed())


@pytest.mark.parametrize(
    ("path", "name"), [("['image']", "image"), ("[0]", "0"), (".pixels['a']", "pixels"), ("", "")]
)
def test_an_input_is_named_as_the_batch_names_it(path: str, name: str) -> None:
    assert field_name(path) == name


def test_values_that_leave_the_loop_as_it_is_make_no_trial_and_no_mark() -> None:
    trials = asked_trials(["batch_size=64,128", "cache=false", "amp=false,true"], observed())
    assert [t.label() for t in trials[1:]] == ["AMP", "batch_size=128", "AMP, batch_size=128"]
