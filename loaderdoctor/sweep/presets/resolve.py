"""Rows as published -> trials of this machine and this loop.

Every row becomes a trial, in order, after trial 0 (the loop as it is). One that can't run is
skipped with the reason; one that means the same as another here points at it and is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace

from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import UsageError
from loaderdoctor.facts.own_settings import meaning, own_settings
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.setting_words import heading
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import grid
from loaderdoctor.sweep.grid import Means
from loaderdoctor.sweep.presets.model import Preset
from loaderdoctor.tryout.trials import Published, Row, Trial

KNOWN_AXES = frozenset(field.name for field in fields(Settings))
# Without an accelerator these change nothing; torch itself only warns.
_NO_EFFECT_ON_CPU = ("pin_memory", "non_blocking", "cudnn_benchmark")
_NO_EFFECT = "without an accelerator nothing changes by {names}"
_DEVICE_IS_CPU = "no accelerator: the background thread only fetches batches"

NO_MEANS = Means(script=Script())

# The script of a recipe with these words after its own; raises UsageError where it can't run.
ScriptOf = Callable[[str, tuple[str, ...]], Script]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What our own search recommends for the loop of one row, or why there is nothing."""

    settings: Settings
    why_not: str | None = None


NOT_SEARCHED = Found(settings=Settings())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the rows are to run."""

    observed: Observed
    recipe: str | None  # None: a script of the user's
    script_of: ScriptOf
    n_accelerators: int = 0
    found: Mapping[str, Found] = field(default_factory=dict)  # by the row that was searched from
    isolate: bool = False  # every row in its own process
    means: Means = NO_MEANS  # for what only the script itself can set

    def searched(self, row: Row) -> Settings:
        """What was found for this row, later finds over earlier ones."""
        settings = Settings()
        for source in row.found_before:
            settings = self._found(source).settings.over(settings)
        if row.searched_from is not None:
            settings = self._found(row.searched_from).settings.over(settings)
        return settings

    def why_not_searched(self, row: Row) -> str | None:
        """Why nothing was found for it."""
        return self._found(row.searched_from).why_not if row.searched_from is not None else None

    def _found(self, source: str) -> Found:
        return self.found.get(source, NOT_SEARCHED)


def trials_of(preset: Preset, rows: tuple[Row, ...], place: Place) -> list[Trial]:
    """Trial 0 and one trial for each row."""
    own = own_settings(place.observed)
    first = Trial(index=0, settings=Settings())
    seen: dict[Hashable, int] = {}
    if preset.one_loop:
        seen["loop", None, meaning(Settings(), own), True] = 0
    trials = [first]
    for index, row in enumerate(rows, 1):
        trial = _trial(index, row, preset, place)
        trials.append(trial)
        if trial.status != "ok":
            continue
        key = (trial.place, trial.script, meaning(trial.settings, own), row.host_memory)
        if key in seen:
            trial.same_as = seen[key]
        else:
            seen[key] = index
    return trials


def _trial(index: int, row: Row, preset: Preset, place: Place) -> Trial:
    trial = Trial(index=index, settings=Settings(), row=row)
    on_recipe = row.args is not None and place.recipe == preset.recipe
    on_recipe = on_recipe and (place.isolate or not row.in_loop)
    trial.other_loop = row.recipe is not None or not preset.one_loop
    reason = row.skip or _missing(row, place)
    reason = reason or place.why_not_searched(row)
    if reason is None and on_recipe:
        try:
            script = place.script_of(row.recipe or preset.recipe, row.args or ())
            n_ranks = place.n_accelerators if row.settings.get("ddp") == "ddp" else 1
            trial.script = replace(script, n_ranks=n_ranks)
        except UsageError as error:
            reason = str(error)
        trial.place = "process"
        trial.settings = place.searched(row)
    elif reason is None:
        trial.settings, reason = _in_loop(row, preset, place)
        trial.place = "process" if place.isolate else "loop"
        if reason is None:
            grid.place(trial, place.means)
    if reason is not None:
        trial.fail("skipped", reason)
    return trial


def _missing(row: Row, place: Place) -> str | None:
    if row.needs is not None and place.observed.device is None:
        return "needs an accelerator"
    if row.needs == "two-accelerators" and place.n_accelerators < 2:
        return f"needs two accelerators; there is {place.n_accelerators}"
    return None


def _in_loop(row: Row, preset: Preset, place: Place) -> tuple[Settings, str | None]:
    """The row's settings for the running loop, and why it can't run there."""
    if row.args is not None and not row.settings:
        where = row.recipe or preset.recipe
        return Settings(), f"an option of the recipe {where}: sweep --preset {preset.name}"
    unknown = sorted(set(row.settings) - KNOWN_AXES)
    if unknown:
        return Settings(), f"{', '.join(unknown)}: this version has no such setting"
    settings, _ = fitted(row.settings, has_accelerator=place.observed.device is not None)
    settings = place.searched(row).over(settings)
    full = settings.over(Settings(num_workers=own_settings(place.observed).num_workers))
    return settings, invalid_reason(full, has_accelerator=place.observed.device is not None)


def fitted(
    published: Mapping[str, Published], *, has_accelerator: bool
) -> tuple[Settings, str | None]:
    """Published values as settings for this machine, and what that leaves out.

    Off is off wherever nothing else is possible: such values are left unset.
    """
    values = {name: value for name, value in published.items() if value is not None}
    notes = []
    if not has_accelerator:
        on = [name for name in _NO_EFFECT_ON_CPU if values.pop(name, False)]
        if on:
            notes.append(_NO_EFFECT.format(names=" and ".join(map(heading, on))))
        if values.get("background") == "device":
            values["background"] = "host"
            notes.append(_DEVICE_IS_CPU)
        for name in ("side_stream", "resident"):
            if values.get(name) is False:
                del values[name]
    elif values.get("resident") is True:
        # Nothing is copied: pinned or not, blocking or not, is no question any more.
        for name in ("pin_memory", "non_blocking", "side_stream"):
            if values.get(name) is False:
                del values[name]
    return Settings(**values), "; ".join(notes) or None  # type: ignore[arg-type]


def note_of(row: Row, *, has_accelerator: bool) -> str | None:
    """What a reader must know about a row next to its figures."""
    known = {name: value for name, value in row.settings.items() if name in KNOWN_AXES}
    in_loop = fitted(known, has_accelerator=has_accelerator)[1]
    return "; ".join(text for text in (row.note, in_loop) if text) or None
