"""How a sweep's figures were measured, in sentences for the report."""

from __future__ import annotations

from typing import Protocol

from loaderdoctor.tryout.outcome import ALLOWANCE_SHARE, Outcome

_ENDINGS = {
    "separated": "the leader was separated from the rest",
    "nothing-better": "nothing could still beat the loop's own settings by what matters",
    "spent": "its allowance of steps, or its time, was spent",
}


class HowAsked(Protocol):
    """Of the command's options, what changes how trials are measured."""

    @property
    def loader_only(self) -> bool: ...
    @property
    def isolate(self) -> bool: ...
    @property
    def search(self) -> str: ...
    @property
    def engine(self) -> str: ...


def sweep_method(asked: HowAsked, outcome: Outcome) -> tuple[str, ...]:
    """One sentence for each thing to know."""
    if asked.loader_only:
        return (
            "The loop stands still while a new loader over the same data is drained as fast as it "
            "delivers; the model alone runs in the loop on batches that are ready.",
        )
    found = [_rounds(asked, outcome)]
    found.append(
        "Trials are compared within rounds; two are tied where the 95 % interval of their "
        "difference, widened for the number of trials, holds 0."
    )
    if asked.engine == "ray":
        found.append(
            "Each group of trials had a machine of its own, and the loop's own settings with it: a "
            "trial counts as its ratio to those in the same round, times their mean over all nodes."
        )
    if any(trial.of("confirm") for trial in outcome.trials):
        found.append(
            "The candidate's gain is measured again beside the loop's own settings after it was "
            "chosen."
        )
    if any(trial.place == "process" and trial.measurements for trial in outcome.trials):
        found.append(
            "Trials in processes of their own start the script anew for each visit; start-up is "
            "its first iterator's."
        )
    return tuple(found)


def _rounds(asked: HowAsked, outcome: Outcome) -> str:
    n_rounds = outcome.n_ranked_rounds
    where = "a process of its own" if asked.isolate else "a new loader over the same data"
    if asked.search == "auto":
        n_steps = outcome.n_timed_steps
        grid = outcome.grid_steps or 0
        share = f", {n_steps / grid:.0%} of the grid's" if grid else ""
        return (
            f"Each trial is {where}; a race of {n_rounds} rounds dropped clear losers and ended "
            f"because {_ENDINGS.get(outcome.elimination or 'spent', 'it was cut short')}. It took "
            f"{n_steps:,} steps{share} (at most {ALLOWANCE_SHARE:.0%})."
        )
    return (
        f"Each trial is {where} in the running loop; after a first visit that only sizes the "
        f"windows, {n_rounds} shuffled rounds rank them. Batches until the queues are steady are "
        "not counted."
        if not asked.isolate
        else f"Each visit to a trial is {where}; {n_rounds} shuffled rounds rank them after a "
        "first visit."
    )
