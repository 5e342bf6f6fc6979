"""Rows as published -> trials of this machine and this loop, and their results in the report.

Every row becomes a trial, in order, after trial 0 (the loop as it is). One that can't run is
skipped with the reason; one that means the same as another here points at it and is not run. The
report holds them in published order, with the claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import UsageError
from loaderdoctor.facts import meaning, own_settings
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.report.model import ReportWarning
from loaderdoctor.report.model import Trial as TrialRow
from loaderdoctor.setting_words import heading
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import grid
from loaderdoctor.sweep.grid import Means
from loaderdoctor.sweep.presets.loading import LOADER, LOADER_ONLY, MODEL
from loaderdoctor.sweep.presets.model import ONE_WINDOW, Figures, Preset
from loaderdoctor.tryout import Published, Row, Trial
from loaderdoctor.tryout.results import Result

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


def preset_rows(
    preset: Preset,
    rows: Sequence[TrialRow],
    trials: Sequence[Trial],
    results: Sequence[Result],
    *,
    has_accelerator: bool,
    tensor_cores: Mapping[int, float],
) -> tuple[TrialRow, ...]:
    """The report's rows with what was published: settings, name, group, ratio to the baseline."""
    found = []
    for one, trial in zip(rows, trials, strict=True):
        row = trial.row
        if row is None:
            found.append(one)
            continue
        source = trial.index if trial.same_as is None else trial.same_as
        shares = one.shares or rows[source].shares
        busy = shares is not None and has_accelerator
        found.append(
            msgspec.structs.replace(
                one,
                settings=row_settings(trial, row),
                label=row.name,
                row=row.name,
                group=row.group or None,
                same_as=trial.same_as,
                shares=shares,
                time_ratio=_ratio(preset, trial, trials, results),
                note=note_of(row, has_accelerator=has_accelerator),
                changes_numerics=one.changes_numerics or (row.note or "").startswith("changes"),
                gpu_busy_share=(shares.compute or 0.0) + (shares.communication or 0.0)
                if busy and shares is not None
                else None,
                tensor_core_share=tensor_cores.get(source),
                host_bytes=one.host_bytes if row.host_memory else None,
            )
        )
    return tuple(found)


def row_settings(trial: Trial, row: Row) -> dict[str, Any]:
    """Every axis: those of the published row as published, what our own search found, else null."""
    searched = row.searched_from is not None or row.found_before
    return {
        **Settings().as_dict(),
        **row.settings,
        **(trial.settings.changed() if searched else {}),
    }


def _ratio(
    preset: Preset, trial: Trial, trials: Sequence[Trial], results: Sequence[Result]
) -> float | None:
    """Time for the same work over that of the baseline of the row's group."""
    row, own = trial.row, results[trial.index]
    assert row is not None
    name = row.base or preset.baseline
    base = next(
        (
            results[t.index]
            for t in trials
            if t.row is not None and t.row.name == name and t.row.group == row.group
        ),
        None,
    )
    if base is None or own.cost_ms is None or base.cost_ms is None or own.status != "ok":
        return None
    return own.cost_ms.value / base.cost_ms.value if base.cost_ms.value else None


def claim_rows(preset: Preset, figures: Figures) -> tuple[dict[str, Any], ...]:
    """Each claim with its published figure, ours, the verdict, and why where there is a why."""
    rows = []
    for claim in preset.claims:
        judged = claim.rule(figures)
        rows.append(
            {
                "preset": preset.name,
                "claim": claim.text,
                "published": claim.published,
                "ours": judged.ours,
                "verdict": judged.verdict,
                "reason": judged.reason,
            }
        )
    return tuple(rows)


def claims_sentence(preset: Preset, claims: Sequence[Mapping[str, Any]]) -> str | None:
    """`11 published claims of who-is-faster: 3 agree here, …`; None where it makes none."""
    if not claims:
        return None
    counts = Counter(claim["verdict"] for claim in claims)
    words = {
        "agrees": ("agrees here", "agree here"),
        "disagrees": ("disagrees", "disagree"),
        "not separable from noise": ("can't be told from noise",) * 2,
        "not testable here": ("can't be tested here",) * 2,
    }
    parts = [
        fmt.count(counts[verdict], *text) for verdict, text in words.items() if counts[verdict]
    ]
    number = fmt.count(len(claims), "published claim")
    once = sum(claim.get("reason") == ONE_WINDOW for claim in claims)
    more = " Rows were measured once only: give a larger --budget." if once else ""
    return f"{number} of {preset.name}: {', '.join(parts)}.{more}"


def shortened_row(preset: Preset) -> tuple[ReportWarning, ...]:
    """What is smaller here than in the published experiment."""
    if preset.shortened is None:
        return ()
    return (ReportWarning(kind="shortened", text=f"{preset.name}: {preset.shortened}"),)


def ceilings(preset: Preset, rows: Sequence[TrialRow]) -> str | None:
    """Of `--loader-only`: what the loader gives, what the model takes, who waits for whom."""
    if preset is not LOADER_ONLY:
        return None
    rates = [(r.row, r.samples_per_s) for r in rows if r.group == LOADER and r.samples_per_s]
    model = next((r.samples_per_s for r in rows if r.row == MODEL), None)
    if not rates or model is None:
        return None
    enough = next((name for name, rate in rates if rate >= model), None)
    best = max(rates, key=lambda item: item[1])
    takes = f"The model alone takes {fmt.samples_per_s(model)}; the loader alone gives"
    if enough is not None:
        return f"{takes} that with {enough} already ({fmt.samples_per_s(best[1])} with {best[0]})."
    return f"{takes} {fmt.samples_per_s(best[1])} at most (with {best[0]}): the loop waits for it."
