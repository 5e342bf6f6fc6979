"""Axes that only the script itself can set, `ddp` and `dali`: which trials run, how, and why not.

A model is wrapped in DistributedDataParallel, and NVIDIA DALI takes the place of a loader, by a
change of the script. Recipes have options for that, which their recipe.json names; such a trial
runs in a process of its own with these words. A script of the user's that trains as a job under
torch's launcher needs no option for `ddp=ddp`: it is started as one, and whether its ranks form a
group is seen there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.recipes import Options
from loaderdoctor.settings import AXES, AXES_BY_NAME, Value
from loaderdoctor.tryout.trials import Trial

BY_SCRIPT = tuple(axis.name for axis in AXES if axis.where == "script")


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What there is for these axes."""

    script: Script  # the sweep's own
    recipe: str | None = None
    options: Options = field(default_factory=dict)  # of the recipe
    n_devices: int = 0
    n_ranks: int | None = None  # as asked for; None: one for each device
    why_no_dali: str | None = None
    replicated: bool = False  # the loop as it is calls a DataParallel

    @property
    def ranks(self) -> int:
        """Processes of a `ddp` trial."""
        return self.n_devices if self.n_ranks is None else self.n_ranks


def place(trial: Trial, means: Means) -> None:
    """Give the trial the script that does what its settings say, or skip it with the reason."""
    asked = {
        name: value
        for name, value in trial.settings.changed().items()
        if name in BY_SCRIPT and (means.replicated or not AXES_BY_NAME[name].is_idle(value))
    }
    if trial.status != "ok" or not asked:
        return
    script, reason = means.script, None
    for name, value in asked.items():
        words = means.options.get(name, {}).get(typed(value))
        launched = name == "ddp" and value == "ddp"
        if words is None and launched and means.recipe is None:
            words = ()  # as torch's launcher starts it: see `job`
        reason = _missing(name, value, means) or (None if words is not None else _why(name, means))
        if reason is not None:
            trial.fail("skipped", reason)
            return
        script = replace(
            script,
            args=(*script.args, *(words or ())),
            n_ranks=means.ranks if launched else script.n_ranks,
        )
    trial.script, trial.place = script, "process"


def typed(value: Value) -> str:
    """A value as a user types it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _missing(name: str, value: Value, means: Means) -> str | None:
    if name == "dali":
        return means.why_no_dali
    there = "there is 1" if means.n_devices == 1 else f"there are {means.n_devices}"
    if value == "data_parallel" and means.n_devices < 2:
        return f"DataParallel needs two GPUs; {there}"
    if value == "ddp" and means.ranks < 2:
        return f"DDP needs two GPUs; {there}" if means.n_ranks is None else "DDP needs two ranks"
    return None


def _why(name: str, means: Means) -> str:
    """Why this script can't be told to do it."""
    if means.recipe is not None:
        return f"the script of recipe {means.recipe} has no option for it"
    if name == "dali":
        return "DALI takes the place of the script's own loader: a change of the script"
    return "wrapping the model, or no longer wrapping it, is a change of the script"
