"""What a change would break is refused for the same reason when it is tried and when advised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.hazards import RULES, Change, FeedBatch, Room, fits, hazard, most_that_fit
from loaderdoctor.instrument.wire.records import SafetyRecord
from loaderdoctor.settings import Settings

MIB = 2**20
FOUR = Settings(num_workers=4)


def change(settings: Settings = FOUR, **other: Any) -> Change:
    """From no workers to four, of batches of 10 MiB, on a machine that has room."""
    whole = settings.over(Settings(num_workers=0, pin_memory=False))
    plain = Change(
        settings=settings,
        whole=whole,
        had=0,
        had_queue=2,
        alongside=False,
        dataset="Images",
        iterable=False,
        safety=SafetyRecord(),
        start_method="fork",
        room=Room(
            shm_free_bytes=2**30,
            available_bytes=2**33,
            open_files_limit=1024,
            device_memory_bytes=2**34,
        ),
        batches=(FeedBatch(cpu_bytes=10 * MIB, n_tensors=2),),
        n_new=whole.num_workers or 0,
        dataset_bytes=2**33,
    )
    return replace(plain, **other)


ROOM = change().room
AT_BOTH_MOMENTS: dict[str, Change] = {
    "deliver every sample 4 times": change(safety=SafetyRecord(unsharded_iterable=True)),
    "CUDA tensors": change(safety=SafetyRecord(cuda_tensors=True)),
    "open files (index)": change(safety=SafetyRecord(open_handles=("index",))),
    "does not pickle: a lambda": change(
        safety=SafetyRecord(pickles=False, pickle_error="a lambda"), start_method="spawn"
    ),
    "changes `y` of the dataset": change(
        Settings(persistent_workers=True), safety=SafetyRecord(changed="y")
    ),
    "samples that are kept would stay": change(
        Settings(cache=True), safety=SafetyRecord(changed="its length")
    ),
    "go on with copies of it as they were": change(
        safety=SafetyRecord(changed_while_read="buffer")
    ),
    "while it trains: samples that are kept would stay": change(
        Settings(cache=True), safety=SafetyRecord(changed_while_read="buffer")
    ),
    "would run the script again": change(main_runs_again=True, start_method="spawn"),
    # 8 batches are queued, the loop holds one more: 90 MiB of 0.9 x 99.
    "4 workers keep 90.0 MiB": change(room=replace(ROOM, shm_free_bytes=99 * MIB)),
    # With 512 MiB that must stay free, and 4 x 40 for the workers.
    "takes about 250 MiB": change(room=replace(ROOM, available_bytes=750 * MIB)),
    "needs about 178 open files": change(room=replace(ROOM, open_files_limit=177)),
    "that threads would share": change(
        Settings(threads=2), safety=SafetyRecord(open_handles=("index",))
    ),
    "one stream": change(Settings(threads=2), iterable=True),
    "more than half": change(
        Settings(resident=True), room=replace(ROOM, device_memory_bytes=2**33)
    ),
}


def test_nothing_speaks_against_what_has_room() -> None:
    assert hazard(change()) is None
    assert hazard(change(alongside=True)) is None
    assert hazard(change(room=Room(), safety=SafetyRecord())) is None  # what is not known


@pytest.mark.parametrize("words", AT_BOTH_MOMENTS)
@pytest.mark.parametrize("alongside", [False, True])
def test_the_reason_is_the_same_before_a_trial_and_before_advice(
    words: str, alongside: bool
) -> None:
    found = hazard(replace(AT_BOTH_MOMENTS[words], alongside=alongside))
    assert found is not None
    assert words in found.reason


def test_every_rule_has_a_case() -> None:
    fired = {rule.__name__ for rule in RULES for case in AT_BOTH_MOMENTS.values() if rule(case)} | {
        "_one_pass"
    }
    assert fired == {rule.__name__ for rule in RULES}


def test_data_that_comes_once_is_not_opened_a_second_time_but_may_be_read_by_a_new_run() -> None:
    once = SafetyRecord(one_pass=True, one_pass_reason="the sampler goes on")
    no_workers = change(Settings(background="host"), safety=once)
    assert hazard(no_workers) is None
    assert hazard(change(safety=once)) is None  # a sampler that goes on starts anew with the run
    assert hazard(replace(no_workers, alongside=True)) is not None
    stream = hazard(change(safety=once, iterable=True))
    assert stream is not None
    assert "tear it up" in stream.reason


def test_a_trial_takes_room_next_to_the_running_pool_and_advice_only_what_it_adds() -> None:
    full = replace(ROOM, shm_free_bytes=MIB)
    pinned = change(Settings(pin_memory=True), had=4, whole=FOUR, n_new=0, room=full)
    assert hazard(pinned) is None
    assert hazard(replace(pinned, alongside=True)) is not None


def test_workers_as_they_are_now_are_no_new_hazard() -> None:
    for safety in (
        SafetyRecord(unsharded_iterable=True),
        SafetyRecord(cuda_tensors=True),
        SafetyRecord(open_handles=("index",)),
    ):
        assert hazard(change(safety=safety, had=4)) is None


def test_spawned_workers_hold_the_dataset_and_its_tensors_lie_in_shared_memory() -> None:
    tight = replace(ROOM, shm_free_bytes=120 * MIB, available_bytes=4096 * MIB)
    spawned = change(start_method="spawn", shared_bytes=40 * MIB, room=tight)
    assert hazard(replace(spawned, start_method="fork")) is None
    found = hazard(spawned)
    assert found is not None
    assert "/dev/shm" in found.reason
    heavy = hazard(
        change(start_method="spawn", pickled_bytes=2**30, room=replace(tight, shm_free_bytes=None))
    )
    assert heavy is not None
    assert "host memory" in heavy.reason


def test_ranks_of_one_machine_share_its_memory_and_start_as_many_workers_each() -> None:
    # 90 MiB of batches a rank: too much of 140 only where a second rank takes as much.
    alone = change(room=replace(ROOM, shm_free_bytes=140 * MIB))
    assert hazard(alone) is None
    found = hazard(replace(alone, room=replace(alone.room, n_ranks=2)))
    assert found is not None
    assert "8 workers of 2 ranks keep" in found.reason
    tight = change(room=replace(ROOM, available_bytes=1600 * MIB))
    assert hazard(tight) is None
    found = hazard(replace(tight, room=replace(tight.room, n_ranks=8)))
    assert found is not None
    assert "of host memory of 8 ranks" in found.reason


def test_forked_workers_come_to_copy_the_datasets_python_objects() -> None:
    # 90 MiB of batches, 4 x (40 + 600) of workers, 4096 less a tenth are there.
    heavy = change(container_bytes=600 * MIB, container="samples, a list of 9,000,000 (str)")
    assert hazard(replace(heavy, room=replace(ROOM, available_bytes=4096 * MIB))) is None
    found = hazard(replace(heavy, room=replace(ROOM, available_bytes=2600 * MIB)))
    assert found is not None
    assert "it takes about 2.59 GiB of host memory" in found.reason
    assert "600 MiB (samples, a list of 9,000,000 (str)): arrays, tensors" in found.reason
    assert hazard(change(room=replace(ROOM, available_bytes=2600 * MIB))) is None


def test_what_workers_were_seen_to_take_counts_where_it_is_more() -> None:
    tight = replace(ROOM, available_bytes=2600 * MIB)
    assert hazard(change(room=tight, worker_bytes=100 * MIB)) is None
    assert hazard(change(room=tight, worker_bytes=700 * MIB)) is not None


def test_workers_of_now_go_on_growing_but_for_what_they_have_copied() -> None:
    eight = Settings(num_workers=8)
    more = change(
        eight, had=4, whole=eight, n_new=4, container_bytes=600 * MIB, start_method="fork"
    )
    assert more.still_grows_bytes == 4 * 600 * MIB
    assert replace(more, worker_bytes=640 * MIB).still_grows_bytes == 0
    assert replace(more, start_method="spawn").still_grows_bytes == 0
    assert replace(more, alongside=True).still_grows_bytes == 0  # with or without a trial


@pytest.mark.parametrize("alongside", [False, True])
@pytest.mark.parametrize(
    ("room", "expected"),
    [
        ({}, 8),
        ({"shm_free_bytes": 120 * MIB}, 4),  # 2 x 5 + 1 batches of 10 MiB are more than 108
        ({"available_bytes": 1310 * MIB}, 3),  # 70 + 3 x 240, and 512 that stay free
        ({"open_files_limit": 128 + 26}, 2),  # 8 each, and 2 tensors of 5 batches
        ({"available_bytes": 400 * MIB}, 0),
    ],
)
def test_the_most_workers_that_fit(room: dict[str, int], expected: int, alongside: bool) -> None:
    eight = Settings(num_workers=8)
    wanted = change(
        eight,
        whole=eight,
        n_new=8,
        container_bytes=200 * MIB,
        room=replace(ROOM, **room),
        alongside=alongside,
    )
    assert most_that_fit(wanted) == expected
    assert fits(wanted) is (expected == 8)
