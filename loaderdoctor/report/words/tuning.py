"""Sentences on what `--tune` tried, chose and saved."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.instrument.wire.beats import TuningRecord
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings

EXACT = "Batches and their order are those of the untuned run, bit for bit."
ORDER = "Samples and their order are those of the untuned run."
DRAWS = (
    "Workers draw other random numbers for the same samples than untuned (the same distribution); "
    "--tune=exact leaves such settings out."
)

_AS_TORCH = {
    "prefetch_factor": DEFAULT_PREFETCH_FACTOR,
    "persistent_workers": False,
    "in_order": True,
}
_CAME_OF_IT = {
    "kept": "kept",
    "slower": "no faster",
    "not-separable": "no difference shown",
    "too-dear": "given up: trying it on would have cost too much",
    "failed": "failed",
    "refused": "not tried",
}


def left_alone(tuning: TuningRecord) -> str:
    """Nothing is tried, and why."""
    return f"The loader is not tuned: {tuning.not_tuned}."


def began(tuning: TuningRecord) -> str:
    """Nothing has been chosen yet."""
    kind = EXACT if tuning.exact else ORDER
    return f"Tuning {tuning.loader} while it trains, from {change(tuning.own, tuning.own)}. {kind}"


def changed(tuning: TuningRecord) -> str:
    """Other settings serve from now on."""
    if tuning.chosen is None:
        return f"{tuning.loader} is back at its own settings: the gain was not confirmed."
    was, now = tuning.own_ms, tuning.chosen_ms
    pace = ""
    if was is not None and now is not None:
        pace = f": {fmt.ms(was[0])} a step became {fmt.ms(now[0])}"
    text = f"{tuning.loader} goes on with {change(tuning.own, tuning.chosen)}{pace}."
    return f"{text} {DRAWS}" if tuning.draws else text


def summary(tuning: TuningRecord) -> str:
    """At the end of the run, in whole sentences."""
    if tuning.not_tuned is not None:
        return left_alone(tuning)
    cost = f"Trying took the time of {tuning.lost_steps:.0f} of {tuning.n_steps} steps."
    if tuning.chosen is None:
        return f"Tuning kept {tuning.loader} at its own settings. {cost}"
    text = changed(tuning)[:-1]
    if tuning.chosen_at_step is not None:
        text += f" since step {tuning.chosen_at_step}"
    if not tuning.proven:
        text += "; not yet held against its own settings once more"
    saved = f"Saved so far: {fmt.seconds(max(0.0, tuning.saved_s))}, trying included. {cost}"
    return f"{text}. {saved}"


def change(own: Settings, chosen: Settings) -> str:
    """What differs; all that is set of the loader's own where nothing does."""
    differs = to_write(own, chosen)
    return differs.label() if differs.changed() else chosen.label()


def to_write(own: Settings, chosen: Settings) -> Settings:
    """The arguments that bring a loader from `own` to `chosen`, both complete."""
    known = own.as_dict()
    differs = {k: v for k, v in chosen.changed().items() if known[k] != v}
    if not own.num_workers:  # what torch does anyway, once there are workers
        for name, value in chosen.changed().items():
            if name == "start_method" or _AS_TORCH.get(name) == value:
                differs.pop(name, None)
    return Settings(**differs)  # type: ignore[arg-type]


TRIED_HEADINGS = ("tried", "a step", "before", "at step", "")


def tried_rows(tuning: TuningRecord) -> list[tuple[str, str, str, str, str]]:
    """(setting, its step, the best one's before it, when, what came of it), in order."""
    return [
        (
            change(tuning.own, one.settings),
            fmt.ms(one.step_ms),
            fmt.ms(one.against_ms),
            f"{one.at_step:,}",
            _CAME_OF_IT[one.verdict] + (f": {one.reason}" if one.reason else ""),
        )
        for one in tuning.tried
    ]
