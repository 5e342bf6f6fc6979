"""Axes that only a script can set: run by its options or by torch's launcher, else said why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command.job import NoJobError
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.records import ComputeRecord
from loaderdoctor.recipes import Options as ScriptOptions
from loaderdoctor.recipes import find
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.grid import Means, asked_trials, place
from loaderdoctor.tryout import Options, Trial
from loaderdoctor.tryout.measuring import Equipment, FreshRuns
from tests.tryout.simulator import BATCH, SimulatedRun, Truth, observed

SCRIPT = Script(script="train.py", args=("--epochs", "3"))
OPTIONS: ScriptOptions = {
    "ddp": {
        "none": ("--parallel", "none"),
        "data_parallel": ("--parallel", "data_parallel"),
        "ddp": ("--parallel", "ddp"),
    },
    "dali": {"true": ("--dali",)},
}
RECIPE = Means(script=SCRIPT, recipe="own", options=OPTIONS, n_devices=4)
USERS = Means(script=SCRIPT, n_devices=2)


def placed(settings: Settings, means: Means) -> Trial:
    trial = Trial(index=1, settings=settings)
    place(trial, means)
    return trial


def test_a_recipe_is_told_by_its_own_words_and_ddp_has_a_rank_for_each_device() -> None:
    ddp = placed(Settings(ddp="ddp", num_workers=2), RECIPE)
    assert (ddp.status, ddp.place) == ("ok", "process")
    assert ddp.script == replace(SCRIPT, args=(*SCRIPT.args, "--parallel", "ddp"), n_ranks=4)
    assert ddp.switched == Settings(num_workers=2)  # the rest is switched in the running loop
    both = placed(Settings(ddp="data_parallel", dali=True), RECIPE)
    words = (*SCRIPT.args, "--parallel", "data_parallel", "--dali")
    assert both.script == replace(SCRIPT, args=words)
    assert not both.switched.changed()


@pytest.mark.parametrize(
    ("settings", "means", "why"),
    [
        (Settings(ddp="ddp"), replace(RECIPE, n_devices=1), "DDP needs two GPUs; there is 1"),
        (Settings(ddp="ddp"), replace(USERS, n_devices=0), "DDP needs two GPUs; there are 0"),
        (Settings(ddp="data_parallel"), replace(RECIPE, n_devices=1), "there is 1"),
        # Ranks may be processes on one CPU; DataParallel is of GPUs only.
        (Settings(ddp="data_parallel"), replace(RECIPE, n_devices=0, n_ranks=2), "there are 0"),
        (Settings(ddp="data_parallel"), USERS, "a change of the script"),
        (Settings(ddp="none"), replace(USERS, replicated=True), "a change of the script"),
        (Settings(ddp="ddp"), replace(RECIPE, options={}), "recipe own has no option"),
        (
            Settings(dali=True),
            replace(RECIPE, why_no_dali="DALI is not installed"),
            "not installed",
        ),
        (Settings(dali=True), USERS, "a change of the script"),
    ],
)
def test_what_can_not_be_done_is_skipped_with_the_reason(
    settings: Settings, means: Means, why: str
) -> None:
    trial = placed(settings, means)
    assert trial.status == "skipped"
    assert why in (trial.reason or "")


def test_a_script_of_the_users_is_started_as_a_job_and_none_is_the_loop_as_it_is() -> None:
    assert placed(Settings(ddp="ddp"), USERS).script == replace(SCRIPT, n_ranks=2)
    asked = placed(Settings(ddp="ddp"), replace(USERS, n_devices=0, n_ranks=3))
    assert asked.script == replace(SCRIPT, n_ranks=3)
    idle = placed(Settings(num_workers=2, ddp="none", dali=False), USERS)
    assert (idle.status, idle.place, idle.script) == ("ok", "loop", None)


def test_a_loop_that_calls_dataparallel_is_that_already() -> None:
    loop = msgspec.structs.replace(
        observed(device="cuda:0"), compute=ComputeRecord(n_steps=2, n_replicas=2)
    )
    words = ("ddp=none,data_parallel,ddp",)
    assert asked_trials(words, loop) == (Settings(), Settings(ddp="none"), Settings(ddp="ddp"))
    plain = observed(device="cuda:0")
    assert asked_trials(words, plain)[1:] == (Settings(ddp="data_parallel"), Settings(ddp="ddp"))


class Jobs:
    """Processes of a script: two ranks take 6 ms a step where one takes 10."""

    def __init__(self, *, no_job: bool = False) -> None:
        self.opened: list[Script | None] = []
        self.no_job = no_job

    @contextmanager
    def __call__(self, script: Script | None) -> Iterator[ScriptRunLike]:
        self.opened.append(script)
        if self.no_job:
            raise NoJobError("they train each on its own")
        script_run = SimulatedRun(lambda _: Truth(step_ms=6.0), Truth(step_ms=6.0), noise=0.01)
        script_run.observed = observed()
        yield script_run


def swept(jobs: Jobs) -> Sweep:
    main = SimulatedRun(lambda _: Truth(step_ms=10.0), Truth(step_ms=10.0), noise=0.01)
    trials = [Trial(index=0, settings=Settings()), placed(Settings(ddp="ddp"), USERS)]
    options = Options(budget_s=300.0, n_rounds=3)
    sweep = Sweep(
        observed(),
        trials,
        options,
        Equipment(script_run=main, fresh=FreshRuns(jobs), clock=main.clock),
    )
    sweep.run()
    return sweep


def test_a_step_of_a_job_has_the_samples_of_all_its_ranks() -> None:
    jobs = Jobs()
    sweep = swept(jobs)
    own, ddp = sweep.ranking().results
    assert all(script is not None and script.n_ranks == 2 for script in jobs.opened)
    assert own.samples_per_s is not None
    assert ddp.samples_per_s is not None
    assert abs(own.samples_per_s / (BATCH / 0.010) - 1) < 0.05
    assert abs(ddp.samples_per_s / (2 * BATCH / 0.006) - 1) < 0.05
    assert ddp.cost_ms is not None  # for as many samples as the loop's own step has
    assert abs(ddp.cost_ms.value / 3.0 - 1) < 0.05


def test_processes_that_form_no_group_are_a_skipped_trial() -> None:
    trial = swept(Jobs(no_job=True)).outcome.trials[1]
    assert (trial.status, trial.reason) == ("skipped", "they train each on its own")


def test_recipes_name_words_for_their_axes() -> None:
    assert find("cifar10-mobilenetv2").options["ddp"]["ddp"] == ("--parallel", "ddp")
    assert find("compute").options["ddp"]["data_parallel"] == ("--parallel", "data_parallel")
    assert find("imagefolder").options == {"dali": {"true": ("--dali",)}}
    assert find("mnist").options == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('{"num_workers": {"2": []}}', "those that a script sets are ddp, dali"),
        ('{"ddp": {"dpp": []}}', "its values are none, data_parallel, ddp"),
        ('{"dali": {"yes": []}}', "its values are true, false"),
    ],
)
def test_options_of_a_recipe_that_mean_nothing_are_refused(
    tmp_path: Path, options: str, why: str
) -> None:
    (tmp_path / "train.py").write_text("")
    text = f'{{"name": "x", "summary": "x", "script": "train.py", "options": {options}}}'
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(UsageError, match=why):
        find(str(tmp_path))
