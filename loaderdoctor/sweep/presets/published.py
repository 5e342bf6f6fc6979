"""A preset's results as the report holds them: rows in published order, and claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.report.model import ReportWarning
from loaderdoctor.report.model import Trial as TrialRow
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import ONE_WINDOW
from loaderdoctor.sweep.presets.loading import LOADER, LOADER_ONLY, MODEL
from loaderdoctor.sweep.presets.model import Preset
from loaderdoctor.sweep.presets.resolve import note_of
from loaderdoctor.tryout.results import Result
from loaderdoctor.tryout.trials import Row, Trial


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
        return f"{takes} that from {enough} on ({fmt.samples_per_s(best[1])} with {best[0]})."
    return f"{takes} {fmt.samples_per_s(best[1])} at most (with {best[0]}): the loop waits for it."
