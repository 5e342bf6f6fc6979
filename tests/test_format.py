"""Figures have a unit, their noise, and no digit more than the noise allows."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor import format as fmt


@pytest.mark.parametrize(
    ("value", "ci", "text"),
    [
        (13.1182, (12.9, 13.4), "13.1 ± 0.2 ms"),
        (13.1182, (13.0, 13.24), "13.12 ± 0.12 ms"),
        (13.1182, (11.1, 15.1), "13 ± 2 ms"),
        (1240.4, (1230.0, 1250.0), "1,240 ± 10 ms"),
        (0.0412, (0.0401, 0.0423), "0.041 ± 0.001 ms"),
        (13.1182, None, "13.1 ms"),
        (13.1182, (-math.inf, math.inf), "13.1 ms"),
        (-0.04, (-0.5, 0.4), "0.0 ± 0.5 ms"),
        (-2.0, (-2.5, -1.5), "-2.0 ± 0.5 ms"),
        (5.0, (5.0, 5.0), "5.000 ± 0.000 ms"),
        (9.996, None, "10.0 ms"),
        (0.0, None, "0 ms"),
        (0.00004, None, "< 0.001 ms"),
        (None, None, "not recorded"),
    ],
)
def test_milliseconds_have_the_digits_their_noise_allows(
    value: float | None, ci: tuple[float, float] | None, text: str
) -> None:
    assert fmt.ms(value, ci) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.873, "87 %"), (0.0042, "0.4 %"), (0.0001, "< 0.1 %"), (0.0, "0 %"), (1.0, "100 %"),
     (0.0094, "0.9 %"), (0.0099, "1 %"), (None, "not recorded")],
)  # fmt: skip
def test_shares_become_percent_only_here(value: float | None, text: str) -> None:
    assert fmt.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(40, "40 B"), (1024, "1.00 KiB"), (1.5 * 2**30, "1.50 GiB"), (512 * 2**20, "512 MiB"),
     (3 * 2**40, "3.00 TiB"), (5000 * 2**40, "5,000 TiB"), (None, "not recorded")],
)  # fmt: skip
def test_memory_is_in_binary_units(value: float | None, text: str) -> None:
    assert fmt.n_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 s"), (0.00042, "420 µs"), (0.42, "420 ms"), (45.2, "45.2 s"), (200, "3 min 20 s"),
     (180, "3 min"), (7500, "2 h 5 min"), (3600, "1 h"), (359_999, "100 h")],
)  # fmt: skip
def test_durations_use_the_units_people_say(value: float, text: str) -> None:
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("batch_ms", 11.234, "batch 11.2 ms"),
        ("waits_ms", (255.0, 0.0, 140.2), "waits 255, 0, 140 ms"),
        ("waits_ms", tuple(map(float, range(10))), "waits 0, 1.00, 2.00, 3.00, 4.00, 5.00, 6.00, "
         "7.00, … (2 more) ms"),
        ("exposed_share", 0.42, "exposed 42 %"),
        ("n_iterators_created", 20, "iterators created 20"),
        ("bytes_per_step", 2.0, "bytes 2.00 a step"),
        ("pickles", False, "pickles no"),
        ("num_workers_needed", 3, "num_workers needed 3"),
        ("pin_memory", True, "pin_memory yes"),
        ("cpu_share", None, "CPU not recorded"),
        ("site", "train.py:4\x1b[31m", "site train.py:4\\x1b[31m"),
    ],
)  # fmt: skip
def test_evidence_reads_its_unit_off_its_name(name: str, value: Any, text: str) -> None:
    assert fmt.evidence(name, value) == text


def test_text_of_the_user_cannot_steer_the_terminal() -> None:
    assert fmt.plain("a\x1b]0;title\x07b\u202ec\n") == "a\\x1b]0;title\\x07b\\x202ec\\x0a"
    assert fmt.plain("größe → [bold]") == "größe → [bold]"


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_reads_as_one_short_figure(value: float) -> None:
    text = fmt.number(value)
    assert "e" not in text.replace("not recorded", "")
    if math.isfinite(value) and 1e-3 < abs(value) < 1e12:
        read = float(text.replace(",", ""))
        assert read == pytest.approx(value, rel=0.006 if abs(value) >= 1 else 0.051, abs=0.0006)


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (-1.0, "nearly done"),
        (0.4, "nearly done"),
        (44.6, "about 45 s left"),
        (89.4, "about 89 s left"),
        (100.0, "about 2 min left"),
        (3700.0, "about 62 min left"),
    ],
)
def test_time_left_is_an_estimate_and_reads_as_one(left_s: float, text: str) -> None:
    assert fmt.time_left(left_s) == text


@pytest.mark.parametrize(
    ("value", "ci", "text"),
    [
        (0.17, (-0.03, 0.37), "17 % (0 to 37 %)"),
        (0.15, (-1.63, 1.93), "15 % (0 to 100 %)"),
        (0.92, (0.918, 0.922), "92 % (92 to 92 %)"),
        (0.92, None, "92 %"),
        (0.92, (float("-inf"), float("inf")), "92 %"),
    ],
)
def test_shares_with_noise_are_whole_percents_of_the_step(
    value: float, ci: tuple[float, float] | None, text: str
) -> None:
    assert fmt.share_within(value, ci) == text


def test_a_time_whose_noise_is_larger_than_itself_is_no_figure() -> None:
    assert fmt.step_ms(217.0, (-190.0, 624.0)) == "roughly 217 ms"
    assert fmt.step_ms(217.0, (1.0, 433.0)) == "217 ± 216 ms"
    assert fmt.step_ms(217.0, None) == "217 ms"
    assert fmt.step_ms(None, None) == fmt.NOT_RECORDED
