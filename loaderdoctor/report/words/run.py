"""A whole run in words: where its hours went, what was told of it, what `--tune` came to.

By epoch too, and over time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loaderdoctor import format as fmt
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.instrument.wire.measured import TriedRecord, TuningRecord
from loaderdoctor.report.model import Report, Verdict
from loaderdoctor.report.run_model import Run, RunAlert, RunEpoch, RunTime
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings

# (field of RunTime, words, colour of the page): in the order of the time line, bottom up.
PARTS = (
    ("step_s", "steps", "compute"),
    ("input_s", "waiting for batches", "input"),
    ("copy_s", "copying to the device", "copy"),
    ("starts_s", "epochs' starts", "fetch"),
    ("validation_s", "other loaders (validation)", "communication"),
    ("saving_s", "saving", "host"),
    ("other_s", "other work between steps", "other"),
)
LEVELS = "▁▂▃▄▅▆▇█"
MAX_ROWS = 12
_LINE = 60
# Less says nothing of a run.
_MIN_STEPS = 100
_MIN_S = 2.0


def lead(run: Run) -> str:
    """How long it ran, and whether it was over."""
    text = f"{fmt.seconds(run.took_s)} and {fmt.count(run.n_steps, 'step')}"
    if not run.complete:
        text += ", not over when this was written"
    elif run.how != "script-ended":
        text += f", ended with exit code {run.exit_code}"
    if not run.time.recorded_s:
        return f"{text}: over within the first window, before anything else was recorded."
    return f"{text}; recorded from {fmt.seconds(run.before_s)} on."


def parts(time: RunTime) -> Iterator[tuple[str, str, float]]:
    """(words, colour, share 0…1) of what took any time."""
    for name, words, colour in PARTS:
        seconds = getattr(time, name) or 0.0
        if time.recorded_s > 0 and seconds >= 0.0005 * time.recorded_s:
            yield words, colour, seconds / time.recorded_s


def went_to(time: RunTime) -> str | None:
    """`steps 2 h 5 min (80 %), waiting for batches …`: the largest first; None of no time."""
    if not time.recorded_s:
        return None
    found = sorted(parts(time), key=lambda part: -part[2])
    text = ", ".join(
        f"{words} {fmt.seconds(share * time.recorded_s)} ({fmt.share(share)})"
        for words, _, share in found
    )
    if time.gc_s >= 0.005 * time.recorded_s:
        text += f"; garbage collection {fmt.seconds(time.gc_s)} within these"
    return f"{text}."


# Shares of one thing that differ by more would be taken for a contradiction.
UNLIKE_SHARE = 0.1


def unlike_window(report: Report) -> str | None:
    """Where the loader's part in the first window is another than in the run; else None."""
    share = report.shares.input if report.shares is not None else None
    whole = report.run.input_share if report.run is not None else None
    if share is None or whole is None or abs(share - whole) < UNLIKE_SHARE:
        return None
    return (
        "In the first window, which the step and the findings are of, the loader cost "
        f"{fmt.share(share)} of the step."
    )


def judged(run: Run) -> Verdict | None:
    """What the whole run says of its loader, where nothing else does; None of too short a one."""
    time, share = run.time, run.input_share
    if share is None or time.n_steps < _MIN_STEPS or time.recorded_s < _MIN_S:
        return None
    of = f"of the {fmt.seconds(time.recorded_s)} that were recorded ({fmt.share(share)})"
    late = _since_tuned(run)
    if late is not None:
        of += f", and {fmt.share(late)} since the loader was tuned"
    if share < MODERATE_SHARE:
        text = f"Waiting for batches took hardly any {of}; --profile records what else costs."
        return Verdict(bound="unknown", severity="none", summary=text)
    why = "" if run.tuning is not None else " `loaderdoctor diagnose` says why, and what helps."
    return Verdict(
        bound="input",
        severity="high" if share >= HIGH_SHARE else "moderate",
        summary=f"Waiting for batches took {fmt.seconds(time.input_s)} {of}.{why}",
    )


def _since_tuned(run: Run) -> float | None:
    """Share of waiting in what came behind the last change of the loader's settings."""
    if run.tuning is None or run.tuning.chosen is None:
        return None
    at_s = max((a.at_s for a in run.alerts if a.kind == "tuned"), default=run.took_s)
    behind = [row.time for row in run.timeline if row.start_s >= at_s]
    recorded_s = sum(time.recorded_s for time in behind)
    return sum(time.input_s for time in behind) / recorded_s if recorded_s > 0 else None


def step_times(run: Run) -> str | None:
    """The distribution of the step, and of its wait."""
    if run.step_ms_quantiles is None:
        return None
    half, most, rare, rarest = run.step_ms_quantiles
    text = (
        f"Half of the steps take up to {fmt.ms(half)}, 99 % up to {fmt.ms(rare)}, all but one in a "
        f"thousand up to {fmt.ms(rarest)}"
    )
    if run.wait_ms_quantiles is not None:
        text += f"; 90 % wait up to {fmt.ms(run.wait_ms_quantiles[1])} for their batch"
    return f"{text} (within 9 %)." if most else None


EPOCH_HEADINGS = ("epoch", "steps", "took", "a step", "waiting")
EpochCells = tuple[str, str, str, str, str]  # under these headings


def epoch_rows(epochs: Sequence[RunEpoch]) -> list[EpochCells]:
    """What each took; of a long run those in the middle are named alone."""
    half, rows = MAX_ROWS // 2, [_epoch_cells(row) for row in epochs]
    left_out = epochs[half:-half]
    if len(rows) <= MAX_ROWS:
        return rows
    between = f"{left_out[0].first}–{left_out[-1].last}"
    return [*rows[:half], (between, "…", "…", "…", "…"), *rows[-half:]]


def _epoch_cells(row: RunEpoch) -> EpochCells:
    time = row.time
    steps_s = time.step_s + time.input_s + (time.copy_s or 0.0)
    return (
        f"{row.first}" if row.first == row.last else f"{row.first}–{row.last}",
        f"{time.n_steps:,}",
        fmt.seconds(time.recorded_s),
        fmt.ms(1e3 * steps_s / time.n_steps if time.n_steps else None),
        fmt.share(time.input_s / time.recorded_s if time.recorded_s else None),
    )


def sparkline(run: Run) -> str | None:
    """How much of the time went to waiting, over the run: a character for a stretch."""
    rows = run.timeline
    if len(rows) < 2:
        return None
    width = min(_LINE, len(rows))
    cells = []
    for i in range(width):
        part = rows[i * len(rows) // width : (i + 1) * len(rows) // width]
        total = sum(r.time.recorded_s for r in part)
        share = sum(r.time.input_s for r in part) / total if total > 0 else 0.0
        cells.append(LEVELS[min(len(LEVELS) - 1, int(share * len(LEVELS)))])
    return "".join(cells)


def alert_line(alert: RunAlert) -> str:
    text = f"after {fmt.seconds(max(0.0, alert.at_s))}: {alert.text}"
    return f"{text} {alert.advice}" if alert.advice else text


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


def tuning_left_alone(tuning: TuningRecord) -> str:
    """Nothing is tried, and why."""
    return f"The loader is not tuned: {tuning.not_tuned}."


def tuning_began(tuning: TuningRecord) -> str:
    """Nothing has been chosen yet."""
    kind = EXACT if tuning.exact else ORDER
    own = tuned_settings(tuning.own, tuning.own)
    return f"Tuning {tuning.loader} while it trains, from {own}. {kind}"


def tuning_changed(tuning: TuningRecord, *, at_end: bool = False) -> str:
    """Other settings serve from now on; at the end of the run since when, too."""
    if tuning.chosen is None:
        return f"{tuning.loader} is back at its own settings: the gain was not confirmed."
    was, now = tuning.own_ms, tuning.chosen_ms
    pace = ""
    if was is not None and now is not None:
        pace = f": {fmt.ms(was[0])} a step became {fmt.ms(now[0])}"
    since = ""
    if at_end and tuning.chosen_at_step is not None:
        since = f" since step {tuning.chosen_at_step}"
    if at_end and not tuning.proven:
        since += "; not yet held against its own settings once more"
    text = f"{tuning.loader} goes on with {tuned_settings(tuning.own, tuning.chosen)}{pace}{since}."
    return f"{text} {DRAWS}" if tuning.draws else text


def tuning_summary(tuning: TuningRecord) -> str:
    """At the end of the run, in whole sentences."""
    if tuning.not_tuned is not None:
        return tuning_left_alone(tuning)
    cost = f"Trying took the time of {tuning.lost_steps:.0f} of {tuning.n_steps} steps."
    if tuning.chosen is None:
        return f"Tuning kept {tuning.loader} at its own settings. {cost}"
    saved = f"Saved so far: {fmt.seconds(max(0.0, tuning.saved_s))}, trying included. {cost}"
    return f"{tuning_changed(tuning, at_end=True)} {saved}"


def tuned_settings(own: Settings, chosen: Settings) -> str:
    """What differs; all that is set of the loader's own where nothing does."""
    differs = settings_to_write(own, chosen)
    return differs.label() if differs.changed() else chosen.label()


def settings_to_write(own: Settings, chosen: Settings) -> Settings:
    """The arguments that bring a loader from `own` to `chosen`, both complete."""
    known = own.as_dict()
    differs = {k: v for k, v in chosen.changed().items() if known[k] != v}
    if not own.num_workers:  # what torch does anyway, once there are workers
        for name, value in chosen.changed().items():
            if name == "start_method" or _AS_TORCH.get(name) == value:
                differs.pop(name, None)
    return Settings(**differs)  # type: ignore[arg-type]


def came_of(one: TriedRecord) -> str:
    """What its trial ended with."""
    return _CAME_OF_IT[one.verdict] + (f": {one.reason}" if one.reason else "")


def tried_words(one: TriedRecord) -> str:
    """The same with its figures, where the setting is named."""
    if one.step_ms is None or one.against_ms is None:
        return came_of(one)
    return f"{fmt.ms(one.step_ms)} a step next to {fmt.ms(one.against_ms)} before, {came_of(one)}"


TRIED_HEADINGS = ("tried", "a step", "before", "at step", "")


def tried_rows(tuning: TuningRecord) -> list[tuple[str, str, str, str, str]]:
    """(setting, its step, the best one's before it, when, what came of it), in order."""
    return [
        (
            tuned_settings(tuning.own, one.settings),
            fmt.ms(one.step_ms),
            fmt.ms(one.against_ms),
            f"{one.at_step:,}",
            came_of(one),
        )
        for one in tuning.tried
    ]
