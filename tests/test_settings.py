"""The axes: only valid combinations, each once, and words a user can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.combinations import combinations, invalid_reason
from loaderdoctor.errors import UsageError
from loaderdoctor.settings import AXES, AXES_BY_NAME, Settings, Value

VALUES: dict[str, tuple[Value, ...]] = {
    "num_workers": (0, 1, 4),
    "prefetch_factor": (2, 8),
    "persistent_workers": (False, True),
    "pin_memory": (False, True),
    "in_order": (True, False),
    "start_method": ("fork", "spawn"),
    "background": ("off", "host", "device"),
    "non_blocking": (False, True),
    "side_stream": (False, True),
    "resident": (False, True),
    "cache": (False, True),
    "synthetic": (False, True),
    "fields": ("all", "image"),
}


def test_every_axis_is_a_field_and_every_field_an_axis() -> None:
    assert [axis.name for axis in AXES] == list(Settings().as_dict())


@pytest.mark.parametrize("has_accelerator", [False, True])
def test_only_valid_combinations_come_out_each_once(has_accelerator: bool) -> None:
    found = list(combinations(VALUES, has_accelerator=has_accelerator))
    assert len(found) == len(set(found))
    for settings in found:
        assert invalid_reason(settings, has_accelerator=has_accelerator) is None
        if not settings.num_workers:
            assert settings.prefetch_factor is None  # torch raises there
            assert not settings.persistent_workers
        if not has_accelerator:
            assert not (settings.pin_memory or settings.resident or settings.side_stream)


def test_worker_only_axes_fold_into_one_row_at_no_workers() -> None:
    values = {"num_workers": (0, 2), "prefetch_factor": (2, 4, 8)}
    found = list(combinations(values, has_accelerator=False))
    assert found[0] == Settings(num_workers=0)
    assert len(found) == 4


@given(st.fixed_dictionaries({name: st.sampled_from((None, *v)) for name, v in VALUES.items()}))
def test_overlaying_nothing_changes_nothing_and_own_values_win(chosen: dict[str, Value]) -> None:
    settings = Settings(**chosen)  # type: ignore[arg-type]
    base = Settings(num_workers=3, background="host")
    assert Settings().over(settings) == settings
    assert settings.over(Settings()) == settings
    assert settings.over(base).num_workers == (
        3 if settings.num_workers is None else settings.num_workers
    )


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        (Settings(), "as is"),
        (Settings(num_workers=1), "num_workers=1"),
        (Settings(num_workers=0, background="off"), "num_workers=0"),
        (
            Settings(num_workers=4, prefetch_factor=8, pin_memory=True),
            "num_workers=4, prefetch_factor=8, pin_memory=True",
        ),
        (
            Settings(persistent_workers=False, in_order=False),
            "persistent_workers=False, in_order=False",
        ),
        (Settings(start_method="spawn"), "multiprocessing_context='spawn'"),
        (Settings(background="host"), "a background thread (prefetch_generator)"),
        (
            Settings(portion=0.4, cache=True, augment="off"),
            "the first 40 % of the data, keeping prepared samples in memory, no augmentation",
        ),
        (
            Settings(augment="no-RandomCrop", storage="cold"),
            "reading files that are not cached yet, no RandomCrop",
        ),
        (Settings(storage="/mnt/ssd"), "reading the files from /mnt/ssd"),
        (Settings(threads=2), "loading in 2 threads instead of workers"),
        (Settings(num_workers=2, worker_cpus="inherited"), "num_workers=2"),
        (Settings(storage="original", fields="all", augment="on", amp=False), "as is"),
        (Settings(fields="image", batch_size=32), "only the input image, batch_size=32"),
        (Settings(tf32=False, amp=True), "AMP, no TF32"),
        (Settings(ddp="data_parallel", num_threads=1), "DataParallel, torch.set_num_threads(1)"),
    ],
)
def test_labels_read_like_words(settings: Settings, label: str) -> None:
    assert settings.label() == label


@pytest.mark.parametrize(
    ("axis", "text", "value"),
    [("num_workers", "4", 4), ("pin_memory", "True", True), ("pin_memory", "off", False),
     ("background", "HOST", "host"), ("portion", "40", 0.4), ("portion", "40%", 0.4),
     ("portion", "0.4", 0.4), ("portion", "1", 0.01), ("portion", "1.0", 1.0),
     ("portion", "0.5%", 0.005), ("storage", "Cold", "cold"), ("storage", "/mnt/ssd", "/mnt/ssd"),
     ("augment", "no-RandomCrop", "no-RandomCrop"), ("augment", "OFF", "off"),
     ("fields", "image", "image"), ("amp", "yes", True), ("batch_size", "32", 32)],
)  # fmt: skip
def test_values_are_read_as_people_write_them(axis: str, text: str, value: Value) -> None:
    assert AXES_BY_NAME[axis].parse(text) == value


@pytest.mark.parametrize(
    ("axis", "text"), [("num_workers", "-1"), ("num_workers", "two"), ("pin_memory", "maybe"),
                       ("background", "gpu"), ("portion", "0"), ("portion", "140"),
                       ("portion", "half"), ("storage", "tmpf"), ("augment", "RandomCrop")]
)  # fmt: skip
def test_a_wrong_value_names_the_axis_and_what_is_accepted(axis: str, text: str) -> None:
    with pytest.raises(UsageError, match=axis):
        AXES_BY_NAME[axis].parse(text)


def test_what_changes_numerics_or_only_answers_a_question_is_told_apart() -> None:
    settings = Settings(num_workers=2, portion=0.1, amp=True, compile=False, storage="cold")
    assert settings.numerics == ("amp",)
    assert settings.probes == ("portion", "storage")
    keep = Settings(storage="tmpfs", cache=True, uint8=True, portion=1.0, augment="on")
    assert (keep.numerics, keep.probes) == ((), ())
    assert Settings(cudnn_benchmark=False, zero_grad_none=True).numerics == (
        "cudnn_benchmark", "zero_grad_none",
    )  # fmt: skip


def test_what_leaves_workers_as_they_are_needs_none() -> None:
    idle = Settings(num_workers=0, worker_gc="automatic", worker_cpus="inherited", spdl=False)
    assert invalid_reason(idle, has_accelerator=False) is None
    apart = Settings(num_workers=0, worker_cpus="all")  # those that its own affinity leaves out too
    assert invalid_reason(apart, has_accelerator=False) == "worker_cpus needs num_workers > 0"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (Settings(synthetic=True, num_workers=2), "ready"),
        (Settings(synthetic=True, augment="off"), "ready"),
        (Settings(cache=True, storage="cold"), "not read from storage"),
        (Settings(resident=True, uint8=True), "on the device already"),
        (Settings(resident=True, batched=True), "on the device already"),
        (Settings(fields="image", batch_size=8), "loop's own"),
        (Settings(fields="image", side_stream=True), "side_stream"),
        (Settings(portion=1.5), "at most 1"),
        (Settings(batch_size=0), "at least 1"),
    ],
)
def test_data_settings_that_mean_nothing_together_say_why(settings: Settings, why: str) -> None:
    assert why in (invalid_reason(settings, has_accelerator=True) or "")
