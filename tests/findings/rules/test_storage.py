"""Rules about where samples come from: disks, files, memory."""

from __future__ import annotations

import pytest

from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.storage import cold_storage, many_small_files, memory_short
from tests.findings.builders import healthy, line, loader, machine, with_exposed, workers
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import LOW

CASES = (
    Case(
        rule=cold_storage,
        ill=with_exposed(
            input_=0.3, workers=workers(first_touch_ratio=5.0, first_touch_ms=99 / 64)
        ),
        share=0.3,
        severity=Severity.HIGH,
        evidence={"first_touch_ratio": 5.0, "cold_ms_per_batch": 25.0, "rest_of_step_ms": 7.0},
        says=("5.0x as long the first time",),
        silent={
            "as fast the first time": with_exposed(input_=0.3),
            "cold, yet fast enough": healthy(
                workers=workers(first_touch_ratio=5.0, first_touch_ms=0.2)
            ),
            "microseconds in memory": with_exposed(
                input_=0.3,
                workers=workers(
                    first_touch_ratio=5.0,
                    first_touch_ms=0.01,
                ),
            ),
        },
        missing={
            "a second pass": with_exposed(
                input_=0.3, workers=workers(first_touch_ratio=None, first_touch_ms=None)
            )
        },
    ),
    Case(
        rule=many_small_files,
        ill=with_exposed(
            input_=0.5,
            workers=workers(
                batch_ms=40.0,
                cpu_share=0.2,
                lines=(line(code="with open(path, 'rb') as f:", share=0.8),),
            ),
        ),
        share=0.4,
        severity=Severity.HIGH,
        evidence={"open_share_of_batch": 0.8, "cpu_share": 0.2},
        says=(
            "80 % (80 of 100 stack samples of fetching) of making a batch is opening and reading",
        ),
        silent={
            "decoding, not reading": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, lines=(line(code="Image.open(p)", share=0.8),)),
            ),
            "the pool keeps up": with_exposed(
                input_=0.5, workers=workers(cpu_share=0.2, lines=(line(code="open(p)"),))
            ),
            "no file is opened": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, cpu_share=0.2, lines=(line(code="time.sleep(1)"),)),
            ),
            LOW: healthy(
                workers=workers(batch_ms=40.0, cpu_share=0.2, lines=(line(code="open(p)"),))
            ),
        },
        missing={
            "lines": with_exposed(input_=0.5, workers=workers(batch_ms=40.0, cpu_share=0.2)),
            "CPU times": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, cpu_share=None, lines=(line(code="open(p)"),)),
            ),
        },
    ),
    Case(
        rule=memory_short,
        ill=with_exposed(
            input_=0.3,
            machine=machine(memory_available_bytes=300 * 1024**2, swap_used_bytes=2 * 1024**3),
        ),
        share=0.3,
        severity=Severity.HIGH,
        evidence={"in_flight_bytes": 77_074_432, "swap_used_bytes": 2 * 1024**3},
        says=("Only 300 MiB of host memory", "2.00 GiB in swap", "pinned batches"),
        silent={
            "memory to spare": with_exposed(input_=0.3),
            "swap left over from before": with_exposed(
                input_=0.3, machine=machine(swap_used_bytes=2 * 1024**3)
            ),
            "nothing held": with_exposed(
                input_=0.3,
                machine=machine(memory_available_bytes=300 * 1024**2),
                loaders=(loader(settings={"num_workers": 0, "pin_memory": False}),),
            ),
            "short, but nothing waits": healthy(
                machine=machine(memory_available_bytes=300 * 1024**2)
            ),
        },
        missing={
            "memory": with_exposed(input_=0.3, machine=machine(memory_available_bytes=None)),
            "machine": with_exposed(input_=0.3, machine=None),
        },
    ),
)


def test_batches_that_are_cold_already_are_not_taken_for_warm_ones() -> None:
    """The windows lay in the first epoch: a cold batch takes what a batch took there."""
    facts = with_exposed(
        input_=0.3,
        workers=workers(
            batch_ms=101.0, fetch_ms=100.0, first_touch_ratio=30.0, first_touch_ms=100 / 64
        ),
    )
    found = cold_storage(facts)
    assert found is not None
    assert found.evidence["cold_ms_per_batch"] == pytest.approx(101 / 4)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)
