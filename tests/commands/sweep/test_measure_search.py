"""What the searches within a preset start from, and what of them an interrupted sweep keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.commands.sweep.measure import found_before
from loaderdoctor.commands.sweep.plan import SweepOptions, Target, searches, trials
from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import timings_file
from loaderdoctor.sweep.presets.published import Found
from loaderdoctor.tryout import Trial
from tests.tryout.simulator import observed

OPTIONS = SweepOptions(preset="ladder", recipe="cifar10-mobilenetv2")
TARGET = Target(
    script=Script(script="train.py", args=("--crop", "32")),
    recipe="cifar10-mobilenetv2",
    name="cifar10-mobilenetv2",
    axes=(),
)
FOUND = {
    "pinned, non_blocking": Found(settings=Settings(num_workers=8, prefetch_factor=4)),
    "fused optimizer": Found(settings=Settings(num_workers=12, background="device")),
}


def saved(planned: list[Trial]) -> timings_file.Description:
    return timings_file.Description(
        schema=timings_file.SCHEMA,
        options={},
        trials=tuple(
            timings_file.SavedTrial(
                settings=trial.settings.changed(),
                status=trial.status,
                reason=trial.reason,
                dropped=False,
                row=trial.row.name if trial.row is not None else None,
            )
            for trial in planned
        ),
        spent_s=1.0,
    )


def test_each_search_starts_from_the_script_of_its_rung() -> None:
    scripts = searches(OPTIONS, TARGET, observed(device="cuda:0"))
    assert list(scripts) == list(FOUND)
    first, last = scripts.values()
    assert first.args[:2] == last.args[:2] == ("--crop", "32")  # the user's own words stay
    assert first.args[-3:] == ("2", "--pin-memory", "--non-blocking")
    assert last.args == (*first.args, "--channels-last", "--cudnn-benchmark", "--fused-optimizer")
    assert not searches(OPTIONS, replace(TARGET, recipe=None), observed())
    assert not searches(replace(OPTIONS, preset="reuse"), TARGET, observed())


def test_an_interrupted_ladder_goes_on_with_what_it_had_found() -> None:
    seen = observed(device="cuda:0")
    planned = trials(OPTIONS, TARGET, seen, found=FOUND)
    before = saved(planned)
    again = trials(OPTIONS, TARGET, seen, found=found_before(OPTIONS, seen, before))
    timings_file.check_same(again, before)
    assert [t.settings for t in again] == [t.settings for t in planned]
    with pytest.raises(UsageError):  # another find would be other trials
        timings_file.check_same(trials(OPTIONS, TARGET, seen), before)


def test_rows_that_were_not_reached_are_visited_after_an_interruption() -> None:
    seen = observed(device="cuda:0")
    planned = trials(OPTIONS, TARGET, seen, found=FOUND)
    for trial in planned[5:]:
        trial.fail("skipped", "not reached: interrupted: what was measured until then stands")
    before = saved(planned)
    again = trials(OPTIONS, TARGET, seen, found=found_before(OPTIONS, seen, before))
    timings_file.check_same(again, before)
    assert all(trial.status == "ok" for trial in again)


def test_a_search_that_failed_stays_failed_with_its_reason() -> None:
    seen = observed(device="cuda:0")
    found = FOUND | {"fused optimizer": Found(settings=Settings(), why_not="our own search failed")}
    planned = trials(OPTIONS, TARGET, seen, found=found)
    again = trials(OPTIONS, TARGET, seen, found=found_before(OPTIONS, seen, saved(planned)))
    assert [t.reason for t in again] == [t.reason for t in planned]
    assert again[-1].reason == "our own search failed"
